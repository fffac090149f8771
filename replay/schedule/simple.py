"""GPipe and one-forward-one-backward, plain and interleaved."""

from __future__ import annotations

import numpy as np

from foretrace.replay.graph import I64
from foretrace.replay.schedule.order import Phase, Schedule
from foretrace.traces.errors import LayoutError


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al., arXiv 1811.06965)."""
    phase = np.repeat([Phase.FORWARD, Phase.BACKWARD], micro_batches)
    batch = np.tile(np.arange(micro_batches), (ranks, 2))
    own = np.arange(ranks)[:, None]
    return _columns("gpipe", ranks, (np.tile(phase, (ranks, 1)), batch, own))


def one_forward_one_backward(ranks: int, micro_batches: int) -> Schedule:
    """1F1B (PipeDream-Flush, arXiv 2006.09503): ``ranks - 1 - rank`` forwards to warm up."""
    warm = np.minimum(np.arange(ranks)[::-1], micro_batches)
    phase, batch = _alternating(warm, micro_batches)
    return _columns("1f1b", ranks, (phase, batch, np.arange(ranks)[:, None]))


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B (Narayanan et al., arXiv 2104.04473), ``chunks`` stages a rank.

    Rank r holds stages r, r + ranks, ... . Micro-batches go in groups of ``ranks``: a group
    passes one stage of the rank, then the next.

    Raises:
        LayoutError: the micro-batches do not fill groups.
    """
    if micro_batches % ranks:
        raise LayoutError(
            f"an interleaved schedule of {ranks} pipeline ranks takes a multiple of {ranks} "
            f"micro-batches, found {micro_batches}"
        )
    total = micro_batches * chunks
    warm = np.minimum((np.arange(ranks)[::-1]) * 2 + (chunks - 1) * ranks, total)
    phase, number = _alternating(warm, total)
    group, inside = np.divmod(number, ranks * chunks)
    chunk, place = np.divmod(inside, ranks)
    chunk = np.where(phase == Phase.FORWARD, chunk, chunks - 1 - chunk)
    stage = chunk * ranks + np.arange(ranks)[:, None]
    batch = group * ranks + place
    return _columns(f"interleaved-{chunks}", ranks * chunks, (phase, batch, stage))


def _alternating(warm: I64, count: int) -> tuple[I64, I64]:
    """Phases and numbers where each rank does ``warm`` forwards and then takes turns.

    Returns:
        Phases and numbers, each of shape ``(ranks, 2 * count)``.
    """
    place = np.arange(2 * count)[None, :]
    before = warm[:, None]
    late = place - before
    last = before + 2 * (count - before)  # from here on backwards only
    forward = (place < before) | ((late % 2 == 0) & (place < last))
    number = np.where(forward, np.cumsum(forward, axis=1), np.cumsum(~forward, axis=1)) - 1
    phase = np.where(forward, Phase.FORWARD, Phase.BACKWARD)
    return phase, number


def _columns(name: str, stages: int, orders: tuple[I64, I64, I64]) -> Schedule:
    """From phases, micro-batches and stages, each of shape ``(ranks, operations of a rank)``."""
    phase, batch, stage = orders
    ranks, each = phase.shape
    return Schedule(
        name, ranks, stages, int(batch.max()) + 1,
        rank=np.repeat(np.arange(ranks, dtype=np.int32), each),
        phase=phase.reshape(-1).astype(np.int8),
        micro_batch=batch.reshape(-1).astype(np.int32),
        stage=np.broadcast_to(stage, phase.shape).reshape(-1).astype(np.int32),
        beside=np.zeros(phase.size, np.bool_),
    )  # fmt: skip
