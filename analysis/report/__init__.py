"""One self-contained HTML file that says what a training step spends its time on."""

from __future__ import annotations

from foretrace.analysis.report.write import render_report, write_report

__all__ = ["render_report", "write_report"]
