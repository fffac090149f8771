"""Importers: traces of other programs to trace sets."""

from foretrace.traces.importers.job import FileReport, ImportReport, import_paths

__all__ = ["FileReport", "ImportReport", "import_paths"]
