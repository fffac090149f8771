"""Importers: traces of other programs to trace sets."""

from foretrace.traces.importers.job import import_paths
from foretrace.traces.importers.report import FileReport, ImportReport

__all__ = ["FileReport", "ImportReport", "import_paths"]
