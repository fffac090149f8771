"""Schedules by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from foretrace.replay.schedule.dualpipe import dualpipe
from foretrace.replay.schedule.order import Schedule
from foretrace.replay.schedule.simple import gpipe, interleaved, one_forward_one_backward
from foretrace.replay.schedule.zero_bubble import zb_h1, zbv
from foretrace.traces.errors import LayoutError

_ONE_STAGE: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "zb-h1": zb_h1,
    "zbv": zbv,
    "dualpipe": dualpipe,
}
_STAGES_PER_RANK = {"zbv": 2, "dualpipe": 2}
SCHEDULES = (*_ONE_STAGE, "interleaved")
"""Names that ``named_schedule`` takes."""


@lru_cache(maxsize=256)
def named_schedule(name: str, ranks: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """A schedule by name.

    Args:
        name: one of ``SCHEDULES``; ``1f1b`` with several chunks is ``interleaved``.
        ranks: pipeline ranks.
        micro_batches: micro-batches of a step.
        chunks: stages that each rank holds (virtual stages).

    Raises:
        LayoutError: unknown, or the numbers do not fit the schedule.
    """
    if min(ranks, micro_batches, chunks) < 1:
        raise LayoutError(
            f"a schedule takes at least one rank, micro-batch and chunk, "
            f"found {ranks}, {micro_batches} and {chunks}"
        )
    if name == "interleaved" or (name == "1f1b" and chunks > 1):
        return interleaved(ranks, micro_batches, chunks)
    if name not in _ONE_STAGE:
        raise LayoutError(f"no schedule {name!r}; known: {', '.join(SCHEDULES)}, or a .csv file")
    if chunks not in (1, _STAGES_PER_RANK.get(name, 1)):
        raise LayoutError(
            f"schedule {name!r} fixes the stages of a rank; leave out {chunks} chunks"
        )
    return _ONE_STAGE[name](ranks, micro_batches)
