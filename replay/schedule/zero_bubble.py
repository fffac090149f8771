"""Zero-bubble schedules: gradients of weights fill the time in which a rank would wait."""

from __future__ import annotations

from foretrace.replay.schedule.order import Op, Phase, Schedule, schedule_of
from foretrace.traces.errors import LayoutError

F, I, W = Phase.FORWARD, Phase.INPUT, Phase.WEIGHT  # noqa: E741


def zb_h1(ranks: int, micro_batches: int) -> Schedule:
    """ZB-H1 (Qi et al., arXiv 2401.10241): 1F1B with the memory of 1F1B.

    Rank r puts its gradients of weights off by r micro-batches, so that gradients of inputs
    reach the first rank sooner; what was put off fills the end of the step.
    """
    return schedule_of(
        "zb-h1", ranks, micro_batches, (_h1(ranks, r, micro_batches) for r in range(ranks))
    )


def _h1(ranks: int, rank: int, m: int) -> list[Op]:
    warm = min(ranks - 1 - rank, m)
    order: list[Op] = [(F, k, rank, False) for k in range(warm)]
    for k in range(m):
        if warm + k < m:
            order.append((F, warm + k, rank, False))
        order.append((I, k, rank, False))
        if k >= rank:
            order.append((W, k - rank, rank, False))
    return order + [(W, k, rank, False) for k in range(max(m - rank, 0), m)]


def zbv(ranks: int, micro_batches: int) -> Schedule:
    """ZBV (Qi et al., arXiv 2405.15362): two stages a rank, laid out as a V.

    Rank r holds stages r and ``2 ranks - 1 - r``, so a micro-batch comes back to the rank that
    it began on, and no rank waits if forwards and both halves of a backward last equally long.

    Raises:
        LayoutError: too few micro-batches to fill the V.
    """
    if micro_batches < 2 * ranks:
        raise LayoutError(
            f"zbv on {ranks} pipeline ranks takes {2 * ranks} micro-batches or more, "
            f"found {micro_batches}"
        )
    orders = (_v(ranks, r, micro_batches) for r in range(ranks))
    return schedule_of("zbv", 2 * ranks, micro_batches, orders)


def _v(ranks: int, rank: int, m: int) -> list[Op]:
    v = _V((rank, 2 * ranks - 1 - rank))
    v.add((F, 0), times=2 * (ranks - rank) - 1)
    v.add((F, 1), (F, 0), times=rank)
    v.add((F, 1), (I, 1), (W, 1), times=ranks - rank)
    while v.done[F, 1] < m:
        if v.done[F, 0] < m:
            v.add((F, 0))
        v.add((I, 0), (W, 0), (F, 1), (I, 1), (W, 1))
    v.add((I, 0), (I, 1), times=rank)
    v.add((I, 0), (W, 0), times=ranks - rank)
    for side in (1, 0):
        v.add((W, side), times=v.done[I, side] - v.done[W, side])
    return v.order


class _V:
    """A rank's order so far, and how far each phase is in each of its two stages."""

    def __init__(self, stages: tuple[int, int]) -> None:
        self.stages = stages
        self.order: list[Op] = []
        self.done = {(phase, side): 0 for phase in (F, I, W) for side in (0, 1)}

    def add(self, *ops: tuple[Phase, int], times: int = 1) -> None:
        """Append the next micro-batch of each phase and side, several times in turn."""
        for phase, side in ops * times:
            self.order.append((phase, self.done[phase, side], self.stages[side], False))
            self.done[phase, side] += 1
