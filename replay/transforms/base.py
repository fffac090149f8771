"""What all transforms are: frozen records that turn one job graph into another."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

import msgspec

from foretrace.replay.graph import JobGraph
from foretrace.replay.scenario import MAX_FACTOR, parse_selector

Factor = Annotated[float, msgspec.Meta(ge=0, le=MAX_FACTOR)]
"""A factor from 0 on; larger ones are typing errors."""

Positive = Annotated[float, msgspec.Meta(ge=1 / MAX_FACTOR, le=MAX_FACTOR)]
"""A factor above 0."""

Rate = Annotated[float, msgspec.Meta(ge=1)]
"""Bytes a second."""

Count = Annotated[int, msgspec.Meta(ge=1)]
"""A whole number from 1 on."""


class Transform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a job; a pure function of the graph.

    Attributes:
        select: the tasks it means, as in ``--what-if``; every transform has its own default.
    """

    select: str

    def __post_init__(self) -> None:
        parse_selector(self.select)

    @abstractmethod
    def __call__(self, graph: JobGraph) -> JobGraph:
        """The changed job.

        Raises:
            ScenarioError: nothing is selected, or the trace lacks what the change needs.
        """
