"""How much longer the runs of a template take where ranks that talk inside it are uneven.

The ranks of a *cell* talk within a template: those of a tensor-parallel group, of all
context-parallel ranks with it, of expert-parallel groups. They are simulated together, sample by
sample: each rank's computation gets a deviate of its own, a message begins when the last of its
members arrives, a message's own deviate is shared by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.extrapolate.merge import Merged, Slot
from foretrace.replay.extrapolate.template import NONE, Pieces
from foretrace.replay.graph import I64
from foretrace.replay.layout import Layout

F64 = NDArray[np.float64]
_DRAWN = 8192  # deviates at once: samples times ranks of a cell
_ROUNDS = 3  # the first one starts with all ranks even, which later ones do not


@dataclass(frozen=True, slots=True)
class Uneven:
    """Runs of a template; arrays of shape ``(runs,)``.

    Attributes:
        mean_ns: time of each run for the cell, ns.
        variance: of it, ns squared.
    """

    mean_ns: F64
    variance: F64


def cell_size(layout: Layout) -> int:
    """Ranks of a cell: neighbours, whole groups of every kind that talks inside a template."""
    return lcm(layout.tp * layout.cp, layout.ep * layout.etp)


def cell_groups(layout: Layout) -> dict[str, I64]:
    """Group of each rank of a cell by kind, as ``layout.group_of`` has them."""
    rank = np.arange(cell_size(layout))
    tp, cp, ep, etp = layout.tp, layout.cp, layout.ep, layout.etp
    return {
        "tp": rank // tp,
        "cp": rank // (tp * cp) * tp + rank % tp,
        "etp": rank // etp,
        "ep": rank // (ep * etp) * etp + rank % etp,
    }


def uneven_runs(
    pieces: Pieces, parts: Merged, time: tuple[F64, F64], groups: Mapping[str, I64],
    rng: np.random.Generator,
) -> Uneven:  # fmt: skip
    """Simulate the runs of a template, one behind the other, over and over.

    A run's time is that by which the cell's last rank is put off; what a rank lags behind at the
    end of a run adds to what the next run finds.

    Args:
        pieces: the template.
        parts: its runs.
        time: mean and standard deviation of each piece, shape ``(pieces,)`` each, ns.
        groups: from ``cell_groups``.
        rng: source of deviates.
    """
    ranks = len(groups["tp"])
    if ranks == 1 or not any(slot.messages for run in parts.runs for slot in run):
        return _in_turn(parts, time)
    at = np.zeros((max(_DRAWN // ranks, 64), ranks))
    talks = _Talks(pieces, groups)
    marks: list[F64] = []
    for _ in range(_ROUNDS):
        for run in parts.runs:
            marks.append(at.max(axis=1))
            for slot in run:
                at = _passed(at, slot, time, talks, rng)
    marks.append(at.max(axis=1))
    count = len(parts.runs)
    steps = np.diff(np.array(marks[count:]), axis=0).reshape(_ROUNDS - 1, count, -1)
    return Uneven(steps.mean(axis=(0, 2)), steps.var(axis=2).mean(axis=0))


def _in_turn(parts: Merged, time: tuple[F64, F64]) -> Uneven:
    """Runs of a rank that meets nobody: means and variances add up."""
    mean, variance = [], []
    for run in parts.runs:
        # Of what runs at once the longer part counts.
        sides = [[[s.work] if s.work != NONE else [], s.messages] for s in run]
        held = [max(both, key=lambda side: float(time[0][side].sum())) for both in sides]
        rows = [piece for side in held for piece in side]
        mean.append(float(time[0][rows].sum()))
        variance.append(float((time[1][rows] ** 2).sum()))
    return Uneven(np.array(mean), np.array(variance))


class _Talks:
    """Members of each message's group, as an order in which groups stand together."""

    def __init__(self, pieces: Pieces, groups: Mapping[str, I64]) -> None:
        self.pieces = pieces
        self.order = {kind: np.argsort(group, kind="stable") for kind, group in groups.items()}
        self.size = {kind: int(np.bincount(group)[0]) for kind, group in groups.items()}

    def met(self, at: F64, piece: int) -> F64:
        """When the last member of each rank's group arrives."""
        kind = self.pieces.messages[self.pieces.message[piece]].group
        order = self.order[kind]
        latest = at[:, order].reshape(len(at), -1, self.size[kind]).max(axis=2)
        result = np.empty_like(at)
        result[:, order] = np.repeat(latest, self.size[kind], axis=1)
        return result


def _passed(
    at: F64, slot: Slot, time: tuple[F64, F64], talks: _Talks, rng: np.random.Generator
) -> F64:
    mean, spread = time
    done = at
    if slot.work != NONE:
        work = mean[slot.work] + spread[slot.work] * rng.standard_normal(at.shape)
        done = at + np.maximum(work, 0.0)
    said = at
    for piece in slot.messages:
        shared = mean[piece] + spread[piece] * rng.standard_normal((len(at), 1))
        said = talks.met(said, piece) + np.maximum(shared, 0.0)
    return np.maximum(done, said)
