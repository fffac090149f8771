"""What may hold a step back, one rule a module; adding one is a new module and a line here.

A rule looks at a replayed job and proposes causes: which tasks would get shorter, or which
waits would go, if the cause were removed. What that saves only a replay can tell, and it is
asked for every proposal alike in :mod:`foretrace.analysis.findings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foretrace.analysis.causes.bubbles import pipeline_bubbles
from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.copies import copies
from foretrace.analysis.causes.exposed import exposed_communication
from foretrace.analysis.causes.host import data_loading, launch_bound
from foretrace.analysis.causes.late import late_starts
from foretrace.analysis.causes.stalls import stalls
from foretrace.analysis.causes.stragglers import slow_devices, slow_hosts, uneven_work
from foretrace.analysis.causes.syncs import blocking_calls

RULES: tuple[Callable[[Case], Iterator[Cause]], ...] = (
    stalls,
    slow_devices,
    slow_hosts,
    uneven_work,
    exposed_communication,
    pipeline_bubbles,
    launch_bound,
    data_loading,
    blocking_calls,
    copies,
    late_starts,
)

__all__ = ["RULES", "Case", "Cause"]
