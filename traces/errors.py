"""Every error foretrace raises on purpose.

::

    ForetraceError
    ├── TraceFormatError       a file is not what it claims to be, or is damaged beyond salvage
    ├── IncompleteTraceError   ranks, files or columns are missing
    ├── GraphError             no consistent dependency graph can be built
    ├── ScenarioError          a what-if cannot be understood or matches nothing
    └── LayoutError            a parallel layout or cluster is impossible

A message names the file or rank, what was expected, what was found and what to do.
"""

from __future__ import annotations


class ForetraceError(Exception):
    """Base of every error that is the input's fault, printed as one line by the CLI.

    Attributes:
        exit_code: the status that the command line ends with.
    """

    exit_code = 2


class TraceFormatError(ForetraceError):
    """A file is not what it claims to be, or is damaged beyond salvage."""


class IncompleteTraceError(ForetraceError):
    """Ranks, files or columns that the question needs are missing."""


class GraphError(ForetraceError):
    """No consistent dependency graph can be built from the trace."""


class ScenarioError(ForetraceError):
    """A what-if cannot be understood, or matches no task."""


class LayoutError(ForetraceError):
    """A parallel layout or a cluster description is impossible."""
