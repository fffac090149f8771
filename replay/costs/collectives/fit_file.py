"""What a calibration keeps: parameters by scope, the measured points, their residuals."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.shapes import ALL_TO_ALL
from foretrace.traces.errors import LayoutError

FORMAT = 1
SCOPES = ("one node", "several nodes", "one node, p2p", "several nodes, p2p")


class ScopeFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of one scope.

    Attributes:
        overhead_us: added to every operation.
        hop_us: a network hop beyond NCCL's constant.
        rate: reached share of the modelled bandwidth.
        ll_hop_us: see ``SharedConstants``.
        ll_cap: see ``SharedConstants``.
        rows: measurements that the fit has seen.
        median_error: median of |predicted - measured| / measured over them, parameters alone.
        p90_error: 90th percentile of the same.
    """

    overhead_us: float
    hop_us: float
    rate: float
    ll_hop_us: float
    ll_cap: float = 1.0
    rows: int = 0
    median_error: float = 0.0
    p90_error: float = 0.0


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement.

    Attributes:
        kind: code in ``shapes.KINDS``.
        size_bytes: largest buffer of a rank.
        ranks: members of the group.
        nodes: nodes they were on.
        time_us: measured.
        ratio: measured over what the fitted parameters give.
    """

    kind: int
    size_bytes: float
    ranks: int
    nodes: int
    time_us: float
    ratio: float = 1.0


class MachineFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``foretrace calibrate`` writes.

    Attributes:
        format: version of this form.
        cluster: name of the cluster description that was fitted.
        scopes: parameters by scope.
        points: measurements with residuals.
        warnings: where the fabric behaves unlike the model.
        sources: files the measurements came from.
    """

    format: int
    cluster: str
    scopes: dict[str, ScopeFit]
    points: list[Point]
    warnings: list[str] = []
    sources: list[str] = []


def write_fit(fit: MachineFit, path: str | Path) -> None:
    """Write a fit as JSON; atomic."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.part")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(fit), indent=1))
    beside.replace(target)


def read_fit(path: str | Path) -> MachineFit:
    """Read a fit.

    Raises:
        LayoutError: not such a file, or of a newer form.
    """
    try:
        fit = msgspec.json.decode(Path(path).read_bytes(), type=MachineFit)
    except (OSError, msgspec.DecodeError) as error:
        raise LayoutError(f"{path}: not a fit written by 'foretrace calibrate': {error}") from error
    if fit.format > FORMAT:
        raise LayoutError(f"{path}: fit of form {fit.format}, this version reads {FORMAT}")
    return fit


def by_scope(ops: Collectives) -> list[tuple[str, NDArray[np.int64]]]:
    """Rows of each scope."""
    code = (ops.nodes > 1) + 2 * (ops.kind >= ALL_TO_ALL)
    return [(name, np.flatnonzero(code == n)) for n, name in enumerate(SCOPES)]
