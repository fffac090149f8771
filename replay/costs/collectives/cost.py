"""The cost of collectives: NCCL's choice, then the time of what it chose."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.alltoall import all_to_all_costs
from foretrace.replay.costs.collectives.choice import Prediction, graph, predict
from foretrace.replay.costs.collectives.nccl_constants import (
    ALGORITHMS,
    CANDIDATES,
    NO_PROTOCOL,
    P2P,
    PICKS,
    PROTOCOLS,
    RING,
    SIMPLE,
    TREE,
    TREE_CORRECTION,
)
from foretrace.replay.costs.collectives.p2p import send_recv_costs
from foretrace.replay.costs.collectives.shapes import (
    ALL_REDUCE,
    ALL_TO_ALL,
    Shapes,
    check_shapes,
)
from foretrace.replay.costs.collectives.shared import DEFAULT, SharedConstants
from foretrace.replay.costs.collectives.terms import Parts, evaluate
from foretrace.replay.costs.collectives.timing import coefficients

PART_NAMES = tuple(f.name for f in fields(Parts))
_LATENCY, _WIRE = PART_NAMES.index("latency"), PART_NAMES.index("wire")
_BLOCK = 1 << 14  # rows at a time: temporaries stay in the cache
_FEW = 1 << 14  # rows that are sorted faster than pandas is loaded
_RING_SIMPLE = CANDIDATES.index((RING, SIMPLE))
_NUMBER_BITS = 15
_SLOWER = {n: 1 / TREE_CORRECTION[p] for n, (a, p) in enumerate(CANDIDATES) if a == TREE}


@dataclass(frozen=True, slots=True)
class Collectives:
    """Operations to price; arrays of shape ``(rows,)``.

    Attributes:
        kind: code in ``shapes.KINDS``.
        size_bytes: largest buffer of a rank, as nccl-tests counts.
        ranks: members of the group.
        nodes: nodes that they are on, evenly.
        share: part of its NICs that each group has, see ``shapes.Shapes``.
    """

    kind: NDArray[np.int64]
    size_bytes: NDArray[np.float64]
    ranks: NDArray[np.int64]
    nodes: NDArray[np.int64]
    share: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        kind: ArrayLike,
        size_bytes: ArrayLike,
        ranks: ArrayLike,
        nodes: ArrayLike,
        share: ArrayLike = 1.0,
    ) -> Collectives:
        """Columns from anything that broadcasts."""
        columns = np.broadcast_arrays(*map(np.atleast_1d, (kind, size_bytes, ranks, nodes, share)))
        kinds, sizes, members, several, shares = columns
        return cls(
            kinds.astype(np.int64),
            sizes.astype(np.float64),
            members.astype(np.int64),
            several.astype(np.int64),
            shares.astype(np.float64),
        )


def take(ops: Collectives, rows: NDArray[np.int64]) -> Collectives:
    """Some of the operations."""
    return Collectives(*(getattr(ops, name)[rows] for name in Collectives.__slots__))


@dataclass(frozen=True, slots=True)
class Costs:
    """What :func:`collective_costs` gives; arrays of shape ``(rows,)``.

    Attributes:
        time_us: time from the last rank's arrival to the end.
        pick: what runs, see ``nccl_constants.PICKS``.
        channels: channels of its graph; as many SMs are held.
        parts: the time by cause.
    """

    time_us: NDArray[np.float64]
    pick: NDArray[np.int64]
    channels: NDArray[np.float64]
    parts: Parts

    @property
    def algorithm(self) -> list[str]:
        """Name for each row."""
        return [ALGORITHMS[PICKS[p][0]] for p in self.pick]

    @property
    def protocol(self) -> list[str]:
        """Name for each row."""
        return [PROTOCOLS[PICKS[p][1]] for p in self.pick]


def collective_costs(
    ops: Collectives,
    cluster: Cluster,
    shared: SharedConstants = DEFAULT,
    allowed: NDArray[np.bool_] | None = None,
) -> Costs:
    """Price collectives.

    Args:
        ops: the operations.
        cluster: the machine.
        shared: constants of the physical model.
        allowed: candidates that may run, shape ``(candidates,)`` (NCCL_ALGO, NCCL_PROTO);
            all by default.

    Raises:
        LayoutError: a group does not fit the machine.
    """
    shapes, shape = _unique_shapes(ops)
    check_shapes(shapes, cluster)
    said, net = predict(shapes, cluster, shared.ll_cap), graph(shapes, cluster)
    if allowed is not None:
        said.latency_us[:, ~allowed] = np.inf
    table = coefficients(shapes, cluster, shared)
    plateau = _plateau(shapes, net.channels, cluster)
    pick = np.empty(len(shape), dtype=np.int64)
    columns = np.empty((len(PART_NAMES), len(shape)))
    for begin in range(0, len(shape), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        pick[rows] = choose(said, plateau, shape[rows], ops.size_bytes[rows])
        parts = evaluate(table, shape[rows], pick[rows], ops.size_bytes[rows])
        for number, name in enumerate(PART_NAMES):
            columns[number, rows] = getattr(parts, name)
    _point_to_point(ops, cluster, shared, pick, columns)
    columns[:, ops.ranks == 1] = 0.0
    parts = Parts(*columns)
    return Costs(parts.total(), pick, net.channels[shape], parts)


def _point_to_point(
    ops: Collectives,
    cluster: Cluster,
    shared: SharedConstants,
    pick: NDArray[np.int64],
    columns: NDArray[np.float64],
) -> None:
    """Fill in the rows that are all-to-alls or sends."""
    rows = np.flatnonzero(ops.kind >= ALL_TO_ALL)
    if not len(rows):
        return
    pick[rows], columns[:, rows] = PICKS.index((P2P, NO_PROTOCOL)), 0.0
    codes = (ops.ranks[rows] << 31) | (ops.nodes[rows] << 4) | ops.kind[rows]
    for code in np.unique(codes):
        own = rows[codes == code]
        kind, ranks, nodes = (int(x[own[0]]) for x in (ops.kind, ops.ranks, ops.nodes))
        price = all_to_all_costs if kind == ALL_TO_ALL else send_recv_costs
        start = price(np.zeros(1), ranks, nodes, cluster, shared)[0]
        total = price(ops.size_bytes[own], ranks, nodes, cluster, shared)
        columns[_LATENCY, own] = start
        columns[_WIRE, own] = (total - start) / ops.share[own]


def choose(
    said: Prediction,
    plateau: NDArray[np.float64],
    shape: NDArray[np.int64],
    size: NDArray[np.float64],
) -> NDArray[np.int64]:
    """The candidate that NCCL expects to be fastest, for each row.

    Args:
        said: NCCL's latencies and bandwidths of all shapes.
        plateau: bytes from which a Simple ring's latency is multiplied, and by how much;
            shape ``(2, shapes)``.
        shape: shape of each row.
        size: bytes of each row.
    """
    place = np.log2(np.maximum(size, 64.0) / 64).astype(np.int64)
    best = np.full(len(size), np.iinfo(np.int64).max)
    time, wire = np.empty(len(size)), np.empty(len(size))
    bits = time.view(np.int64)  # times are positive, so their bits sort as they do
    for number in map(int, np.flatnonzero(np.isfinite(said.latency_us).any(axis=0))):
        np.take(said.latency_us[:, number], shape, out=time, mode="clip")
        if number == _RING_SIMPLE:
            late = size >= np.take(plateau[0], shape, mode="clip")
            np.multiply(time, np.take(plateau[1], shape, mode="clip"), out=time, where=late)
        np.take(1 / (1e3 * said.gb_s[:, number]), shape, out=wire, mode="clip")
        wire *= size
        if number in _SLOWER:
            wire *= np.take(_SLOWER[number], place, mode="clip")
        time += wire
        bits &= ~_NUMBER_BITS  # the last bits name the candidate: no masked copies
        bits |= number
        np.minimum(best, bits, out=best)
    return best & _NUMBER_BITS


def _plateau(
    shapes: Shapes, channels: NDArray[np.float64], cluster: Cluster
) -> NDArray[np.float64]:
    """tuning.cc l.649-652: the latency of a Simple ring over nodes is taken 1.4 (1.9) times."""
    factor = 1.9 if cluster.gpu.generation == "volta" else 1.4
    on = (shapes.kind == ALL_REDUCE) & (shapes.nodes > 1)
    return np.stack([64.0 * channels * shapes.ranks, np.where(on, factor, 1.0)])


def _unique_shapes(ops: Collectives) -> tuple[Shapes, NDArray[np.int64]]:
    """The different shapes, and each row's number among them."""
    key = (ops.ranks << 31) | (ops.nodes << 4) | ops.kind
    if len(key) and ops.share.min() != ops.share.max():
        place, shares = _factorize(ops.share)
        key = key * len(shares) + place
    code, values = _factorize(key)
    first = np.zeros(len(values), dtype=np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    shapes = Shapes(ops.kind[first], ops.ranks[first], ops.nodes[first], ops.share[first])
    return shapes, code.astype(np.int64)


def _factorize(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Each value's number among the different ones, and those."""
    if len(values) < _FEW:
        different, code = np.unique(values, return_inverse=True)
        return code.reshape(-1), different
    import pandas as pd  # its hash table beats a sort by ten times, but takes long to load

    return pd.factorize(values)
