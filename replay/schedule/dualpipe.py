"""DualPipe (DeepSeek-V3, arXiv 2412.19437): two pipelines in opposite directions.

Every rank holds two stages, one of each end of the model, and a full copy of the model is
spread over each direction. Half of the micro-batches enter at the first rank, half at the last;
where the two meet, a forward of one direction runs together with a backward of the other, so
that one's communication hides behind the other's computation.
"""

from __future__ import annotations

from foretrace.replay.schedule.order import Op, Phase, Schedule, schedule_of
from foretrace.traces.errors import LayoutError

F, B, I, W = Phase.FORWARD, Phase.BACKWARD, Phase.INPUT, Phase.WEIGHT  # noqa: E741


def dualpipe(ranks: int, micro_batches: int) -> Schedule:
    """Micro-batches ``0 .. m/2 - 1`` flow from rank 0 up, the others from the last rank down.

    Raises:
        LayoutError: odd numbers, or too few micro-batches to fill the pipeline.
    """
    if ranks % 2 or micro_batches % 2 or micro_batches < 2 * ranks:
        raise LayoutError(
            f"dualpipe takes an even number of pipeline ranks and an even number of micro-batches, "
            f"at least twice the ranks; found {ranks} ranks and {micro_batches} micro-batches"
        )
    orders = (_Rank(ranks, rank, micro_batches).order() for rank in range(ranks))
    return schedule_of("dualpipe", ranks, micro_batches, orders)


class _Rank:
    """Builds one rank's order. Side 0 is the direction whose first ranks are nearer."""

    def __init__(self, ranks: int, rank: int, micro_batches: int) -> None:
        self.half = ranks // 2
        self.inner = min(rank, ranks - 1 - rank)  # distance from the nearer end
        self.each = micro_batches // 2
        far = rank >= self.half
        self.stage = (ranks - 1 - rank, rank) if far else (rank, ranks - 1 - rank)
        self.first = (self.each, 0) if far else (0, self.each)
        self.done = {(phase, side): 0 for phase in (F, B) for side in (0, 1)}
        self.postponed: list[tuple[int, int]] = []
        self.ops: list[Op] = []

    def add(self, phase: Phase, side: int, beside: bool = False) -> None:
        key = (F if phase == F else B, side)
        batch = self.first[side] + self.done[key]
        self.done[key] += 1
        self.ops.append((phase, batch, self.stage[side], beside))
        if phase == I:
            self.postponed.append((batch, self.stage[side]))

    def weights(self) -> None:
        batch, stage = self.postponed.pop(0)
        self.ops.append((W, batch, stage, False))

    def together(self, forward: int, backward: int) -> None:
        self.add(F, forward)
        self.add(B, backward, beside=True)

    def order(self) -> list[Op]:
        outer = self.half - self.inner - 1
        for _ in range(2 * outer):
            self.add(F, 0)
        for _ in range(self.inner + 1):
            self.add(F, 0)
            self.add(F, 1)
        for _ in range(outer):
            self.add(I, 1)
            self.weights()
            self.add(F, 1)
        for turn in range(self.each - 2 * self.half + self.inner + 1):
            if turn == 0 and outer == 0:  # the middle ranks meet with nothing to overlap yet
                self.add(F, 0)
                self.add(B, 1)
            else:
                self.together(0, 1)
            self.together(1, 0)
        for _ in range(outer):
            self.add(B, 1)
            self.together(1, 0)
        self._drain()
        for _ in range(outer):
            self.weights()
            self.add(I, 0)
        while self.postponed:
            self.weights()
        return self.ops

    def _drain(self) -> None:
        """Backwards of both sides; from the middle on, gradients of weights are put off."""
        count = self.inner + 1
        split = False
        for turn in range(count):
            split = split or (turn == count // 2 and self.inner % 2 == 1)
            self.add(I if split else B, 1)
            split = split or (turn == count // 2 and self.inner % 2 == 0)
            self.add(I if split else B, 0)
