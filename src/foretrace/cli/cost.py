"""``foretrace cost``, ``clusters`` and ``calibrate``: what communication costs, and on what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.traces.errors import LayoutError

if TYPE_CHECKING:
    from foretrace.replay.cluster import Cluster
    from foretrace.replay.costs.collectives.cost import Collectives, Costs
    from foretrace.replay.costs.collectives.fit_file import MachineFit
    from foretrace.replay.costs.collectives.measurements import Measurements

_JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
_ClusterOption = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="Bundled cluster, or a .toml file.")
]
_NEAREST = 5
_UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def cost_command(  # noqa: PLR0917 -- its options are the user's
    collective: Annotated[str, typer.Argument(metavar="KIND", help="Such as allreduce.")],
    size: Annotated[
        str,
        typer.Argument(
            metavar="SIZE",
            help="Largest buffer of a rank: 1GiB; for alltoallv a CSV of bytes from rank to rank.",
        ),
    ],
    cluster: _ClusterOption,
    group: Annotated[
        int | None, typer.Option("--group", metavar="N", help="Ranks in the group.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Nodes of the group; by default the fewest.")
    ] = None,
    fit: Annotated[
        Path | None, typer.Option(metavar="FIT.json", help="A fit of 'foretrace calibrate'.")
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="nccl-tests log or CSV to show beside the cost."),
    ] = None,
    topology: Annotated[
        Path | None, typer.Option(metavar="MAP", help="Host map: CSV or Slurm topology.conf.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(metavar="LIST", help="Hosts of the group: node[01-08].")
    ] = None,
    share: Annotated[
        float, typer.Option(metavar="X", help="Part of its NICs that the group has.")
    ] = 1.0,
    distinct: Annotated[
        float, typer.Option(metavar="X", help="alltoallv: distinct part of bytes between nodes.")
    ] = 1.0,
    as_json: _JsonOption = False,
) -> None:
    """What one collective costs: the chosen algorithm, the terms, the nearest measured points."""
    from foretrace.cli.cost_view import print_cost
    from foretrace.cli.terminal import print_json, print_note
    from foretrace.cli.traffic import cost_of_traffic, is_traffic, print_traffic
    from foretrace.replay.cluster import load_cluster
    from foretrace.replay.costs.collectives.fit import beyond_measured
    from foretrace.replay.costs.collectives.fit_file import read_fit

    machine = load_cluster(cluster)
    if is_traffic(collective):
        exchange = cost_of_traffic(size, machine, group, nodes, distinct)
        print_json(exchange) if as_json else print_traffic(exchange, machine)
        return
    if group is None:
        raise LayoutError("give --group, the number of ranks")
    own = read_fit(fit) if fit else None
    ops = _operation(collective, size, group, nodes, machine)
    if topology is not None or hosts is not None:
        ops = _placed(ops, topology, hosts, machine)
    ops.share[:] *= share
    costs = _priced(ops, machine, own)
    for note in _notes(ops, machine, own):
        print_note(note)
    if own is not None and beyond_measured(ops, own).any():
        print_note("larger than any measured group of the fit: extrapolated by structure")
    near = _nearest(ops, own, measured or [])
    result = _result(costs, near)
    if as_json:
        print_json(result)
    else:
        print_cost(result, ops, costs, machine)


def clusters_command(as_json: _JsonOption = False) -> None:
    """List the bundled clusters and GPU types."""
    import msgspec

    from foretrace.cli.cost_view import print_clusters
    from foretrace.cli.terminal import print_json
    from foretrace.replay.cluster import cluster_names, gpu_names, load_cluster, load_gpu

    clusters = [load_cluster(name) for name in cluster_names()]
    gpus = [load_gpu(name) for name in gpu_names() if name != "none"]
    if as_json:
        print_json({"clusters": msgspec.to_builtins(clusters), "gpus": msgspec.to_builtins(gpus)})
        return
    print_clusters(clusters, gpus)


def calibrate_command(
    measurements: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="nccl-tests logs, CSV tables, or trace sets."),
    ],
    cluster: _ClusterOption,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FIT.json", help="File to write.")
    ] = Path("fit.json"),
    collective: Annotated[
        str | None, typer.Option(metavar="KIND", help="What a log measured, if it does not say.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only these rows of a CSV.")
    ] = None,
    as_json: _JsonOption = False,
) -> None:
    """Fit the cost of collectives to one machine, from logs, tables or a recorded run."""
    import msgspec

    from foretrace.cli.cost_view import print_fit
    from foretrace.cli.terminal import print_json, print_note
    from foretrace.replay.cluster import load_cluster
    from foretrace.replay.costs.collectives.fit import fit_machine
    from foretrace.replay.costs.collectives.fit_file import write_fit
    from foretrace.replay.costs.collectives.measurements import join

    own = load_cluster(cluster)
    every = join([_read(path, collective, machine, own) for path in measurements])
    fit = fit_machine(every.ops, every.time_us, own)
    fit = msgspec.structs.replace(fit, sources=every.source.split(", "))
    write_fit(fit, output)
    for warning in fit.warnings:
        print_note(warning)
    if as_json:
        print_json({"fit": str(output), **msgspec.to_builtins(fit)})
        return
    print_fit(fit, output)


def parse_size(text: str) -> int:
    """Bytes of ``1GiB``, ``64K``, ``25e6`` or ``100MB`` (KB, MB and GB count thousands).

    Raises:
        LayoutError: no such size.
    """
    plain = text.strip().lower()
    digits = plain.rstrip("bikmgt")
    unit = plain[len(digits) :]
    known = unit.rstrip("b").rstrip("i")
    try:
        number = float(digits)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf") or known not in _UNITS:
        raise LayoutError(f"no size {text!r}: expected a positive number such as 1GiB, 64K, 25e6")
    if len(unit) == 2 and unit.endswith("b"):
        return round(number * 1000.0 ** (_UNITS[known] // 10))
    return round(number * 2.0 ** _UNITS[known])


def _operation(
    collective: str, size: str, group: int, nodes: int | None, cluster: Cluster
) -> Collectives:
    from foretrace.replay.costs.collectives.cost import Collectives
    from foretrace.replay.costs.collectives.shapes import kind_code, nodes_for

    several = int(nodes_for(group, cluster)) if nodes is None else nodes
    return Collectives.of(kind_code(collective), parse_size(size), group, several)


def _placed(
    ops: Collectives, topology: Path | None, hosts: str | None, cluster: Cluster
) -> Collectives:
    from dataclasses import replace

    import numpy as np

    from foretrace.replay.placement import group_share, host_names, read_host_map

    if topology is None or hosts is None:
        raise LayoutError("--topology and --hosts go together: a map, and the group's hosts on it")
    names = host_names(hosts)
    share = group_share(names, read_host_map(topology), cluster)
    several = np.array([len(set(names))])
    return replace(ops, nodes=several, share=np.array([share]))


def _priced(ops: Collectives, cluster: Cluster, fit: MachineFit | None) -> Costs:
    from foretrace.replay.costs.collectives.fit import fitted_costs
    from foretrace.replay.costs.collectives.price import price

    return price(ops, cluster) if fit is None else fitted_costs(ops, cluster, fit)


def _notes(ops: Collectives, cluster: Cluster, fit: MachineFit | None) -> list[str]:
    out = []
    if fit is not None and fit.cluster != cluster.name:
        out.append(f"the fit was made for {fit.cluster}, not for {cluster.name}")
    if fit is not None:
        return out + list(fit.warnings)
    several = int(ops.nodes[0]) > 1
    if several and cluster.fabric.name not in ("rdma", "efa", "cxi", "none"):
        out.append(f"fabric {cluster.fabric.name}: no measurements of its hops, IB's are taken")
    if several and 65536 <= ops.size_bytes[0] < 64 << 20:
        out.append("64 KB-64 MB over several nodes is the model's weakest band; calibrate")
    if cluster.gpu.vendor == "amd":
        out.append("RCCL chooses by its own tables; NCCL's choice is taken")
    if cluster.gpus_per_node > 8 and int(ops.ranks[0] / ops.nodes[0]) > 8:
        out.append("NVLink domains of more than 8 GPUs are extrapolated")
    return out


def _nearest(
    ops: Collectives, fit: MachineFit | None, files: Sequence[Path]
) -> list[dict[str, Any]]:
    """Measured points of the same kind, nearest in size and scale."""
    import numpy as np

    from foretrace.replay.costs.collectives.measurements import read_measurements
    from foretrace.replay.costs.collectives.shapes import KINDS

    rows = [
        (p.kind, p.size_bytes, p.ranks, p.nodes, p.time_us) for p in (fit.points if fit else [])
    ]
    for path in files:
        found = read_measurements(path)
        own = found.ops
        rows += list(
            zip(own.kind, own.size_bytes, own.ranks, own.nodes, found.time_us, strict=True)
        )
    rows = [row for row in rows if row[0] == ops.kind[0]]
    if not rows:
        return []
    table = np.array([row[1:4] for row in rows], dtype=float)
    here = np.array([ops.size_bytes[0], ops.ranks[0], ops.nodes[0]], dtype=float)
    apart = np.hypot.reduce(np.log2(np.maximum(table, 1) / here) * (1.0, 2.0, 2.0), axis=1)
    order = np.argsort(apart, kind="stable")[:_NEAREST]
    return [
        {
            "kind": KINDS[int(rows[i][0])],
            "size_bytes": int(rows[i][1]),
            "ranks": int(rows[i][2]),
            "nodes": int(rows[i][3]),
            "seconds": float(rows[i][4]) / 1e6,
        }
        for i in order
    ]


def _result(costs: Costs, near: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "seconds": float(costs.time_us[0]) / 1e6,
        "algorithm": costs.algorithm[0],
        "protocol": costs.protocol[0],
        "terms": {
            f"{name}_s": float(getattr(costs.parts, name)[0]) / 1e6
            for name in costs.parts.__slots__
        },
        "nearest": near,
    }


def _read(
    path: Path, collective: str | None, machine: str | None, cluster: Cluster
) -> Measurements:
    from foretrace.cli.recorded_collectives import read_recorded
    from foretrace.replay.costs.collectives.measurements import read_measurements

    if path.is_dir():
        return read_recorded(path, cluster)
    return read_measurements(path, collective, machine)
