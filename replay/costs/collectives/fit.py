"""Fitting the model to one machine's measurements, and pricing with the fit.

A fit is a few numbers for each scope (one node, several nodes)::

    time = (latency + overhead) + hops x hop_us + protocol growth + (wire + pipeline) / rate

and the measurements themselves with their residuals: near measured points a prediction is also
multiplied by the smoothed ratio measured / modelled of its neighbours in size and scale. Beyond
the largest measured scale the structure extrapolates, with the ratio found at that scale.
NCCL's choice of algorithm is changed in one way only: another cap for LL, where the measured times
are clearly better explained by it, moves the size at which LL gives way.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.correction import correction, seen_operations
from foretrace.replay.costs.collectives.cost import Collectives, Costs, take
from foretrace.replay.costs.collectives.fit_file import (
    FORMAT,
    MachineFit,
    Point,
    ScopeFit,
    by_scope,
)
from foretrace.replay.costs.collectives.price import price
from foretrace.replay.costs.collectives.shapes import ALL_TO_ALL
from foretrace.replay.costs.collectives.shared import DEFAULT, SharedConstants
from foretrace.traces.errors import LayoutError

_Column = NDArray[np.float64]
FEWEST_ROWS = 4
_ODD_RATIO = 2.0  # a fabric "behaves unlike the model" where the typical ratio exceeds this
_PARAMETERS = ("overhead_us", "hop_us", "rate", "ll_hop_us")
_LL_CAPS = (0.85, 1.2, 0.7, 1.4, 0.6, 1.7, 0.5, 2.0)  # of equal losses the first wins
_CLEAR = 0.8  # another cap for LL than NCCL's must lower the loss to this part
_SCALE = np.array([10.0, 5.0, 0.3, 10.0])  # what counts as a large step of a parameter


def fit_machine(
    ops: Collectives,
    time_us: _Column,
    cluster: Cluster,
    shared: SharedConstants = DEFAULT,
    allowed: NDArray[np.bool_] | None = None,
) -> MachineFit:
    """Fit one machine.

    Args:
        ops: what was measured.
        time_us: how long it took, shape ``(rows,)``.
        cluster: the machine.
        shared: constants to start from, kept where a scope has too few rows.
        allowed: candidates that could run when it was measured.

    Raises:
        LayoutError: too few usable rows.
    """
    good = np.isfinite(time_us) & (time_us > 0) & (ops.ranks > 1)
    if good.sum() < FEWEST_ROWS:
        raise LayoutError(
            f"calibration needs at least {FEWEST_ROWS} measurements of groups of two ranks or "
            f"more, found {int(good.sum())}"
        )
    ops, time_us = take(ops, np.flatnonzero(good)), time_us[good]
    scopes = {}
    for name, rows in by_scope(ops):
        if len(rows) >= FEWEST_ROWS:
            scopes[name] = fit_scope(take(ops, rows), time_us[rows], cluster, shared, allowed)
    fit = MachineFit(FORMAT, cluster.name, scopes, [])
    ratio = time_us / _parametric(ops, cluster, fit, shared, allowed).time_us
    points = [
        Point(int(k), float(s), int(n), int(m), float(t), float(r))
        for k, s, n, m, t, r in zip(
            ops.kind, ops.size_bytes, ops.ranks, ops.nodes, time_us, ratio, strict=True
        )
    ]
    return msgspec.structs.replace(fit, points=points, warnings=_warnings(ops, ratio, scopes))


def fitted_costs(
    ops: Collectives,
    cluster: Cluster,
    fit: MachineFit,
    shared: SharedConstants = DEFAULT,
    allowed: NDArray[np.bool_] | None = None,
) -> Costs:
    """Price operations on a calibrated machine; as :func:`~.price.price` otherwise."""
    costs = _parametric(ops, cluster, fit, shared, allowed)
    seen = seen_operations(fit)
    seen_pick = _parametric(seen, cluster, fit, shared, allowed).pick
    factor = correction(ops, costs.pick, seen, seen_pick, fit)
    scaled = {name: getattr(costs.parts, name) * factor for name in costs.parts.__slots__}
    return replace(costs, time_us=costs.time_us * factor, parts=type(costs.parts)(**scaled))


def beyond_measured(ops: Collectives, fit: MachineFit) -> NDArray[np.bool_]:
    """Rows on more nodes, or more ranks of one node, than any measurement of their scope."""
    far = np.ones(len(ops.kind), dtype=bool)
    for point in {(p.nodes > 1, p.kind >= ALL_TO_ALL, p.nodes, p.ranks) for p in fit.points}:
        several, p2p, nodes, ranks = point
        same = ((ops.nodes > 1) == several) & ((ops.kind >= ALL_TO_ALL) == p2p)
        far &= ~(same & (ops.nodes <= nodes) & (ops.ranks <= ranks))
    return far


def _parametric(
    ops: Collectives,
    cluster: Cluster,
    fit: MachineFit,
    shared: SharedConstants,
    allowed: NDArray[np.bool_] | None,
) -> Costs:
    """The model with the fitted parameters, without the measured ratios."""
    costs = price(ops, cluster, shared, allowed)
    columns = {name: getattr(costs.parts, name).copy() for name in costs.parts.__slots__}
    pick = costs.pick.copy()
    for name, rows in by_scope(ops):
        scope = fit.scopes.get(name)
        if scope is None or not len(rows):
            continue
        part = price(take(ops, rows), cluster, _with(shared, scope, cluster), allowed)
        for key, values in columns.items():
            values[rows] = getattr(part.parts, key)
        pick[rows] = part.pick
        columns["latency"][rows] += scope.overhead_us
        columns["wire"][rows] /= scope.rate
        columns["pipeline"][rows] /= scope.rate
    floor = 0.2 * np.maximum(costs.parts.latency, 1.0)
    columns["latency"] = np.maximum(columns["latency"], floor)
    parts = type(costs.parts)(**columns)
    return replace(costs, time_us=parts.total(), pick=pick, parts=parts)


def _with(shared: SharedConstants, scope: ScopeFit, cluster: Cluster) -> SharedConstants:
    hops = {**shared.hop_us, cluster.fabric.name: scope.hop_us}
    return replace(
        shared,
        hop_us=hops,
        ll_hop_us={cluster.fabric.name: scope.ll_hop_us},
        ll_cap=scope.ll_cap,
    )


def fit_scope(
    ops: Collectives,
    time_us: _Column,
    cluster: Cluster,
    shared: SharedConstants = DEFAULT,
    allowed: NDArray[np.bool_] | None = None,
    free: tuple[str, ...] = (),
) -> ScopeFit:
    """Fit the parameters of one scope: least robust log error, weakly held to ``shared``.

    Args:
        ops: measured operations of one scope.
        time_us: how long they took.
        cluster: the machine.
        shared: where the parameters start.
        allowed: candidates that could run.
        free: names of the parameters to fit; by default what the rows can tell apart.
    """
    hop = shared.of_fabric("hop_us", cluster.fabric.name, 0.0)
    growth = shared.of_fabric("ll_hop_us", cluster.fabric.name, 0.0)
    start = np.array([0.0, hop, 0.0, growth])
    chosen = np.array([name in (free or _free(ops)) for name in _PARAMETERS])
    caps = _LL_CAPS if allowed is None and not free else ()
    tried = []
    for cap in (1.0, *caps):
        basis = _basis(ops, cluster, replace(shared, ll_cap=cap), allowed)
        values, loss = _least(basis, time_us, start, chosen)
        error = np.abs(_apply(basis, values) - time_us) / time_us
        tried.append((loss if cap == 1.0 else loss / _CLEAR, cap, values, error))
    _, cap, values, error = min(tried, key=lambda t: t[0])
    return ScopeFit(
        overhead_us=float(values[0]),
        hop_us=float(values[1]),
        rate=float(np.exp(values[2])),
        ll_hop_us=float(values[3]),
        ll_cap=cap,
        rows=len(time_us),
        median_error=float(np.median(error)),
        p90_error=float(np.quantile(error, 0.9)),
    )


def _free(ops: Collectives) -> tuple[str, ...]:
    """One hop count cannot tell overhead from hops; one node has no hops at all."""
    if (ops.nodes == 1).all():
        return ("overhead_us", "rate")
    if len(np.unique(ops.nodes)) == 1:
        return tuple(name for name in _PARAMETERS if name != "hop_us")
    return _PARAMETERS


def _least(
    basis: dict[str, _Column], time_us: _Column, start: _Column, free: NDArray[np.bool_]
) -> tuple[_Column, float]:
    """Parameters of least robust log error, held to ``start`` by a weak prior; and that error."""
    from scipy.optimize import least_squares

    def values(moved: _Column) -> _Column:
        out = start.copy()
        out[free] += moved * _SCALE[free]
        return out

    def residual(moved: _Column) -> _Column:
        log_error = np.log(_apply(basis, values(moved)) / time_us)
        return np.concatenate([log_error, 0.1 * moved])

    found = least_squares(residual, np.zeros(int(free.sum())), loss="soft_l1", f_scale=0.1)
    out = values(found.x)
    out[[1, 3]] = np.maximum(out[[1, 3]], 0.0)
    return out, float(found.cost)


def _basis(
    ops: Collectives,
    cluster: Cluster,
    shared: SharedConstants,
    allowed: NDArray[np.bool_] | None,
) -> dict[str, _Column]:
    """The parts that the parameters multiply; the time is linear in all but the rate."""
    fabric = cluster.fabric.name
    fixed = replace(shared, hop_us={fabric: 1.0}, ll_hop_us={})
    rest = price(ops, cluster, fixed, allowed).parts
    ll = price(ops, cluster, replace(fixed, ll_hop_us={fabric: 1.0}), allowed).parts
    return {
        "latency": rest.latency,
        "hops": rest.hops,
        "wire": rest.wire + rest.pipeline,
        "ll": ll.protocol,
    }


def _apply(basis: dict[str, _Column], values: _Column) -> _Column:
    overhead, hop, log_rate, ll = values
    latency = np.maximum(basis["latency"] + overhead, 0.2 * np.maximum(basis["latency"], 1.0))
    model = latency + max(hop, 0.0) * basis["hops"] + basis["wire"] / np.exp(log_rate)
    return np.asarray(model + max(ll, 0.0) * basis["ll"])


def _warnings(ops: Collectives, ratio: _Column, scopes: dict[str, ScopeFit]) -> list[str]:
    """Bands of size where the machine is far from what the fitted model can say."""
    out = []
    bands = (
        (0, 1 << 16, "below 64 KB"),
        (1 << 16, 1 << 20, "64 KB-1 MB"),
        (1 << 20, 64 << 20, "1-64 MB"),
        (64 << 20, 1 << 62, "64 MB and more"),
    )
    for name, rows in by_scope(ops):
        for low, high, words in bands:
            own = rows[(ops.size_bytes[rows] >= low) & (ops.size_bytes[rows] < high)]
            if len(own) < FEWEST_ROWS or name not in scopes:
                continue
            off = float(np.exp(np.median(np.abs(np.log(ratio[own])))))
            worst = float(np.exp(np.quantile(np.abs(np.log(ratio[own])), 0.9)))
            if off > 1.25 or worst > _ODD_RATIO:
                out.append(
                    f"{name}, {words}: measured times are {off:.2f}x off the fitted model in the "
                    f"median and {worst:.1f}x in a tenth of the rows: the fabric behaves unlike it"
                )
    return out
