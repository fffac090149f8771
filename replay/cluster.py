"""What a job runs on: GPU types, nodes, networks and switch tiers, read from TOML files.

Bundled descriptions live beside this module in ``clusters/``; each figure names its source.
A user's own file has the same form and is given by path::

    description = "our pod"
    gpu = "h100"
    gpus_per_node = 8
    nics_per_node = 8
    nic_gbit_per_s = 400
    fabric = "rdma"
    [[tiers]]
    name = "leaf"
    nodes = 16
    oversubscription = 2.0
    [sources]
    nics_per_node = "purchase order"

Rates are bytes per second in one direction; sizes are bytes.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from foretrace.traces.errors import LayoutError

Generation = Literal["none", "volta", "ampere", "hopper", "blackwell", "cdna3", "cdna4"]
NIC_EFFICIENCY = 0.96
"""Usable share of a NIC's line rate: NCCL's speed steps 48 of 50, 24 of 25, 12 of 12.5 GB/s
(src/graph/search.cc)."""

_FIGURES = ("gpus_per_node", "nics_per_node", "nic_gbit_per_s")


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One GPU type.

    Attributes:
        name: key in ``gpus.toml``.
        vendor: ``nvidia``, ``amd`` or ``none``.
        generation: selects the collective library's constants.
        sms: streaming multiprocessors (compute units).
        hbm_bytes: device memory, bytes.
        hbm_bytes_per_s: peak device memory bandwidth.
        l2_bytes: last cache shared by the whole device, bytes.
        link_raw_bytes_per_s: NVLink or xGMI, one direction, all links, as printed.
        link_usable_bytes_per_s: the same as the collective library can use it.
        flops: dense peak, FLOP/s by dtype (``bf16``, ``fp8`` ...).
        sources: where each figure is from.
    """

    name: str = ""
    vendor: str
    generation: Generation
    sms: int
    hbm_bytes: float
    hbm_bytes_per_s: float
    l2_bytes: float
    link_raw_bytes_per_s: float
    link_usable_bytes_per_s: float
    flops: dict[str, float]
    sources: dict[str, str] = {}


class Fabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One class of network.

    Attributes:
        name: key in ``fabrics.toml``.
        reported_us: latency that the network plugin reports to NCCL, µs a hop.
        sources: where each figure is from.
    """

    name: str = ""
    reported_us: float = 0.0
    sources: dict[str, str] = {}


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One level of switches above the nodes.

    Attributes:
        name: such as ``leaf``, ``pod``.
        nodes: nodes below one switch (or plane of rail switches) of this tier.
        oversubscription: downlink over uplink bandwidth for traffic that leaves it, >= 1.
    """

    name: str
    nodes: int
    oversubscription: float = 1.0


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of machine.

    Attributes:
        name: its file's name.
        description: one line for people.
        gpu: GPU type.
        fabric: class of network.
        gpus_per_node: GPUs of one NVLink (xGMI) domain.
        nics_per_node: NICs of one such domain.
        nic_gbit_per_s: line rate of one NIC, Gbit/s.
        cpu: host processor; NCCL's tables depend on it.
        nvswitch: all GPUs of a node hang on a switch (else a mesh of links).
        nic_far: GPUs reach their NIC only through the host bridge, which turns LL128 off.
        rails: GPU g of every node shares leaf switches, so rings stay on their rail.
        nccl: version of the collective library, ``major.minor``.
        tiers: switch levels, lowest first.
        sources: where each figure is from.
    """

    name: str = ""
    description: str = ""
    gpu: Gpu
    fabric: Fabric
    gpus_per_node: int
    nics_per_node: int
    nic_gbit_per_s: float
    cpu: Literal["intel", "amd", "arm"] = "intel"
    nvswitch: bool = True
    nic_far: bool = False
    rails: bool = True
    nccl: str = "2.30"
    tiers: tuple[Tier, ...] = ()
    sources: dict[str, str] = {}

    @property
    def nic_bytes_per_s(self) -> float:
        """Usable rate of one NIC, bytes/s one way."""
        return self.nic_gbit_per_s * 1e9 / 8 * NIC_EFFICIENCY

    @property
    def version(self) -> tuple[int, int]:
        """``nccl`` as numbers."""
        major, _, minor = self.nccl.partition(".")
        return int(major), int(minor.partition(".")[0] or 0)


def cluster_names() -> list[str]:
    """Bundled clusters, sorted."""
    names = (item.name for item in files(__package__).joinpath("clusters").iterdir())
    kinds = ("gpus.toml", "fabrics.toml")
    return sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml") and n not in kinds)


def gpu_names() -> list[str]:
    """GPU types, in the order of ``gpus.toml``."""
    return list(_bundled("gpus.toml"))


def fabric_names() -> list[str]:
    """Classes of network."""
    return list(_bundled("fabrics.toml"))


def load_gpu(name: str) -> Gpu:
    """A bundled GPU type.

    Raises:
        LayoutError: there is none of that name.
    """
    table = _bundled("gpus.toml")
    if name not in table:
        raise LayoutError(f"no GPU type {name!r}{_hint(name, list(table))}")
    gpu: Gpu = _convert({**_with_base(table, name), "name": name}, Gpu, "gpus.toml")
    return gpu


def load_fabric(name: str) -> Fabric:
    """A bundled class of network.

    Raises:
        LayoutError: there is none of that name.
    """
    table = _bundled("fabrics.toml")
    if name not in table:
        raise LayoutError(f"no fabric {name!r}{_hint(name, list(table))}")
    fabric: Fabric = _convert({**table[name], "name": name}, Fabric, "fabrics.toml")
    return fabric


def load_cluster(name: str | Path) -> Cluster:
    """A cluster by bundled name, or by the path of a TOML file.

    Args:
        name: ``h100-8x400g`` or ``./our-pod.toml``.

    Raises:
        LayoutError: unknown name, unreadable file, or figures that cannot be.
    """
    text = str(name)
    if text in cluster_names():
        return _parse(files(__package__).joinpath("clusters", f"{text}.toml").read_text(), text)
    path = Path(text)
    if path.suffix != ".toml" and not path.is_file():
        raise LayoutError(
            f"no cluster {text!r}{_hint(text, cluster_names())}; or give the path of a .toml file"
        )
    try:
        return _parse(path.read_text("utf-8"), text)
    except (OSError, UnicodeDecodeError) as error:
        raise LayoutError(f"{path}: cannot be read as a cluster file: {error}") from error


def _parse(text: str, where: str) -> Cluster:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LayoutError(f"{where}: not a TOML file: {error}") from error
    for key in ("gpu", "fabric"):
        if not isinstance(raw.get(key), str):
            raise LayoutError(f'{where}: expected {key} = "...", found {raw.get(key)!r}')
    raw["gpu"], raw["fabric"] = load_gpu(raw["gpu"]), load_fabric(raw["fabric"])
    raw.setdefault("name", Path(where).stem)
    cluster: Cluster = _convert(raw, Cluster, where)
    _check(cluster, where)
    return cluster


def _check(cluster: Cluster, where: str) -> None:
    for key in _FIGURES:
        if getattr(cluster, key) <= 0:
            raise LayoutError(f"{where}: {key} must be positive, found {getattr(cluster, key)}")
    parts = cluster.nccl.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts):
        raise LayoutError(f'{where}: expected nccl = "2.27", found {cluster.nccl!r}')
    below = 1
    for tier in cluster.tiers:
        if tier.nodes < below or tier.nodes % below:
            raise LayoutError(
                f"{where}: tier {tier.name!r} has {tier.nodes} nodes, expected a multiple of the "
                f"{below} of the tier below it (tiers go from the lowest up)"
            )
        if tier.oversubscription < 1:
            raise LayoutError(
                f"{where}: tier {tier.name!r}: oversubscription {tier.oversubscription} is below 1 "
                "(write 2.0 where two bytes come up for each that can leave)"
            )
        below = tier.nodes


def _with_base(table: dict[str, Any], name: str) -> dict[str, Any]:
    own = dict(table[name])
    base = own.pop("like", None)
    if base is None:
        return own
    merged = {**_with_base(table, base), **own}
    merged["sources"] = {**_with_base(table, base)["sources"], **own.get("sources", {})}
    return merged


def _convert(raw: dict[str, Any], kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise LayoutError(f"{where}: {error}") from error


def _hint(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


@cache
def _bundled(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("clusters", name).read_text("utf-8"))
