"""The communication operations of one rank, put together from what its trace tells.

GPU traces: one per communication kernel, joined to the host operators that were running when
it was launched. gloo: one per ``gloo:*`` annotation, joined to the call it works for.
"""

from foretrace.traces.collectives.model import EventView, Metadata, Operation
from foretrace.traces.collectives.table import collective_table

__all__ = ["EventView", "Metadata", "Operation", "collective_table"]
