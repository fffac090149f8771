"""Passes: one micro-batch going forward or backward through the layers that a rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretrace.replay.graph import F64, I64
from foretrace.replay.workload.recognise.chain import Chain
from foretrace.replay.workload.recognise.repeats import (
    Repeat,
    occurrences,
    pattern,
    repeats,
)
from foretrace.traces.errors import LayoutError

_SHARE = 0.3  # of a pass that layers must explain
_AS_GOOD = 0.98  # of two patterns that explain alike much, the shorter one


@dataclass(frozen=True, slots=True)
class Pass:
    """A stretch of a chain; places are those in the chain.

    Attributes:
        chain: index of the chain.
        backward: phase.
        begin: first place of the pass.
        end: place behind the last one.
        main: places of the main stream's computations, shape ``(m,)``.
        layers: index into ``main`` of each layer's operations, shape ``(layers, period)``.
        after_transfer: a transfer between stages stands right before it.
    """

    chain: int
    backward: bool
    begin: int
    end: int
    main: I64
    layers: I64
    after_transfer: bool

    def bounds(self, layer: int) -> tuple[int, int]:
        """Places from which and up to which a layer's work lies in the chain.

        What stands between the last operation of a layer and the next layer is the layer's;
        behind the last one only what is not of the main stream.
        """
        stop = int(self.layers[layer, -1]) + 1
        if layer + 1 < len(self.layers):
            stop = int(self.layers[layer + 1, 0])
        end = int(self.main[stop]) if stop < len(self.main) else self.end
        return int(self.main[self.layers[layer, 0]]), max(end, int(self.main[stop - 1]) + 1)

    @property
    def layers_at(self) -> tuple[int, int]:
        """Places from which and up to which all layers lie."""
        return self.bounds(0)[0], self.bounds(len(self.layers) - 1)[1]


@dataclass(frozen=True, slots=True)
class Passes:
    """All passes of a job.

    Attributes:
        passes: sorted by chain and time; each has layers.
        tail: for each chain the place behind its last pass.
    """

    passes: list[Pass]
    tail: list[int]


def find_passes(chains: Sequence[Chain], transfers: Sequence[I64]) -> Passes:
    """Cut chains into passes, and find the layers in them.

    Args:
        chains: what each rank did in each step.
        transfers: places of each chain's transfers between stages.

    Raises:
        LayoutError: no layers recur.
    """
    pieces = [p for c in range(len(chains)) for p in _pieces(chains, c, transfers[c])]
    placed: list[Pass] = []
    for backward in (False, True):
        mine = [p for p in pieces if p.backward == backward]
        shape = _shape(chains, mine, backward)
        if shape is None:
            raise LayoutError(_nothing(chains, "backward" if backward else "forward"))
        for piece in mine:
            token = chains[piece.chain].token[piece.main]
            placed.append(replace(piece, layers=occurrences(token, shape)))
    found = [p for p in placed if len(p.layers)]
    found.sort(key=lambda p: (p.chain, p.begin))
    joined, tail = _joined(found, chains)
    return Passes(joined, tail)


def _nothing(chains: Sequence[Chain], phase: str) -> str:
    """Why no workload can be read."""
    if not any(chain.backward[chain.main].any() for chain in chains):
        return (
            "no layers found: nothing was launched by a thread that runs backward passes; record "
            "a training step, with host rows"
        )
    return (
        f"no layers found: the work of {phase} passes does not recur for the most part; a workload "
        "can be read off a stack of equal layers, such as a transformer's"
    )


def _pieces(chains: Sequence[Chain], number: int, transfers: I64) -> list[Pass]:
    """Stretches of one phase between transfers."""
    chain = chains[number]
    main = np.flatnonzero(chain.main)
    if not len(main):
        return []
    turned = np.diff(chain.backward[main].astype(np.int8)) != 0
    moved = np.diff(np.searchsorted(transfers, main)) != 0
    cuts = np.concatenate([[0], np.flatnonzero(turned | moved) + 1, [len(main)]])
    pieces = []
    for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        before = int(main[a - 1]) + 1 if a else 0
        between = transfers[(transfers >= before) & (transfers < main[a])]
        begin = int(between[-1]) + 1 if len(between) else (int(main[a]) if a else 0)
        end = int(main[b]) if b < len(main) else len(chain)
        behind = transfers[(transfers > main[b - 1]) & (transfers < end)]
        end = int(behind[0]) if len(behind) else end
        pieces.append(
            Pass(
                number, bool(chain.backward[main[a]]), begin, end, main[a:b],
                np.zeros((0, 1), np.int64), bool(len(between)),
            )
        )  # fmt: skip
    return pieces


def _shape(
    chains: Sequence[Chain], pieces: Sequence[Pass], backward: bool
) -> tuple[int, ...] | None:
    """Tokens of one layer: of what recurs that which explains most; None where nothing does."""
    distinct: dict[bytes, tuple[I64, F64, int]] = {}
    for piece in pieces:
        chain = chains[piece.chain]
        token = chain.token[piece.main]
        weight = chain.dur_ns[piece.main].astype(np.float64)
        _, _, count = distinct.get(token.tobytes(), (token, weight, 0))
        distinct[token.tobytes()] = (token, weight, count + 1)
    by_period: dict[int, list[tuple[I64, Repeat]]] = {}
    for token, weight, _ in distinct.values():
        for repeat in repeats(token, weight):
            by_period.setdefault(repeat.period, []).append((token, repeat))
    choices = []
    for period, alike in sorted(by_period.items()):
        shape = pattern([t for t, _ in alike], [r for _, r in alike], last=backward)
        explained = sum(
            _explained(token, weight, shape) * count for token, weight, count in distinct.values()
        )
        choices.append((explained, period, shape))
    best = max((explained for explained, _, _ in choices), default=0.0)
    if best == 0.0:
        return None
    return next(shape for explained, _, shape in choices if explained >= _AS_GOOD * best)


def _explained(token: I64, weight: F64, shape: tuple[int, ...]) -> float:
    """Weight of a pattern's occurrences, where they are most of a pass; several of them."""
    places = occurrences(token, shape)
    inside = float(weight[places].sum())
    return inside if len(places) > 1 and inside >= _SHARE * weight.sum() else 0.0


def _joined(found: list[Pass], chains: Sequence[Chain]) -> tuple[list[Pass], list[int]]:
    """Passes with the work without layers that stands before them, such as loading data."""
    joined: list[Pass] = []
    tail = [0] * len(chains)
    for p in found:
        before = tail[p.chain]
        if chains[p.chain].main[before : p.begin].any():
            joined.append(replace(p, begin=before, after_transfer=False))
        else:
            joined.append(p)
        tail[p.chain] = p.end
    return joined, tail
