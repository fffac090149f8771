"""Scale the durations of the selected tasks."""

from __future__ import annotations

from foretrace.replay.graph import JobGraph
from foretrace.replay.scenario import Change
from foretrace.replay.selection import selected
from foretrace.replay.transforms.base import Factor, Transform
from foretrace.replay.whatif import new_durations


class Scale(Transform, frozen=True, kw_only=True):
    """Every selected duration times ``factor``.

    Attributes:
        factor: 0.5 is twice as fast.
    """

    factor: Factor

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with the selected durations scaled."""
        mask = selected(graph, self.select)
        dur = graph.dur_ns.copy()
        dur[mask] = new_durations(dur[mask], Change(self.factor, 0.0))
        return graph.with_durations(dur)
