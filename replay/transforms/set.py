"""Give the selected tasks a duration of their own."""

from __future__ import annotations

from foretrace.replay.graph import JobGraph
from foretrace.replay.scenario import parse_length_ns
from foretrace.replay.selection import selected
from foretrace.replay.transforms.base import Transform


class Set(Transform, frozen=True, kw_only=True):
    """Every selected task takes ``to``.

    Attributes:
        to: a time with its unit, such as ``40us``; ``0`` removes the work, not its dependencies.
    """

    to: str

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_length_ns(self.to, "set: to")

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with the selected durations set."""
        dur = graph.dur_ns.copy()
        dur[selected(graph, self.select)] = round(parse_length_ns(self.to, "set: to"))
        return graph.with_durations(dur)
