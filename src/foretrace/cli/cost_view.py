"""How costs, clusters and fits are shown to people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.cli.terminal import duration, percent, print_line, print_table

if TYPE_CHECKING:
    from foretrace.replay.cluster import Cluster, Gpu
    from foretrace.replay.costs.collectives.cost import Collectives, Costs
    from foretrace.replay.costs.collectives.fit_file import MachineFit

_DTYPES = ("fp32", "tf32", "bf16", "fp8", "fp4")
_TERMS = {
    "latency": "launch and the library's latency constants",
    "hops": "network hops beyond those",
    "wire": "the slowest link",
    "protocol": "growth of LL hops with size",
    "pipeline": "the first chunk on its way",
}


def print_cost(result: dict[str, Any], ops: Collectives, costs: Costs, cluster: Cluster) -> None:
    """One cost: what runs, its terms, where the choice changes, measured points."""
    from foretrace.analysis.communication import bus_factor
    from foretrace.replay.costs.collectives.nccl_constants import ALGORITHMS, PICKS, PROTOCOLS
    from foretrace.replay.costs.collectives.price import switches
    from foretrace.replay.costs.collectives.shapes import KINDS

    kind, ranks, nodes = int(ops.kind[0]), int(ops.ranks[0]), int(ops.nodes[0])
    seconds = max(result["seconds"], 1e-12)
    rate = ops.size_bytes[0] / seconds / 1e9
    how = " ".join(filter(None, (result["algorithm"], result["protocol"])))
    print_line(
        f"{KINDS[kind]} of {ops.size_bytes[0] / 2**20:.6g} MiB over {ranks} ranks on {nodes} "
        f"node{'s' * (nodes > 1)} of {cluster.name}: {duration(seconds * 1e9)}"
    )
    print_line(
        f"{how}, {costs.channels[0]:.0f} channels; {rate:.1f} GB/s, bus "
        f"{rate * bus_factor(KINDS[kind], ranks):.1f} GB/s"
    )
    terms = [
        (words, duration(1e9 * result["terms"][f"{name}_s"])) for name, words in _TERMS.items()
    ]
    print_table(("term", "time"), terms)
    changes = [
        (
            f"{at / 1024:.6g} KiB",
            *(f"{ALGORITHMS[PICKS[p][0]]} {PROTOCOLS[PICKS[p][1]]}" for p in (a, b)),
            f"x{f:.2f}",
        )
        for at, a, b, f in switches(kind, ranks, nodes, cluster)
    ]
    if changes:
        print_line("Where the choice changes; the time may drop there")
        print_table(("from size", "before", "after", "time"), changes)
    if result["nearest"]:
        print_line("Nearest measured points")
        print_table(
            ("kind", "MiB", "ranks", "nodes", "time"),
            [
                (
                    near["kind"],
                    f"{near['size_bytes'] / 2**20:.6g}",
                    str(near["ranks"]),
                    str(near["nodes"]),
                    duration(1e9 * near["seconds"]),
                )
                for near in result["nearest"]
            ],
        )


def print_clusters(clusters: Sequence[Cluster], gpus: Sequence[Gpu]) -> None:
    """A line for each cluster, and one for each GPU type."""
    rows = [
        (c.name, f"{c.gpus_per_node} x {c.gpu.name}", _nics(c), c.fabric.name) for c in clusters
    ]
    print_table(("cluster", "GPUs a node", "NICs, Gbit/s", "fabric"), rows)
    print_line()
    figures = [
        (
            gpu.name,
            str(gpu.sms),
            f"{gpu.hbm_bytes / 1e9:.0f}",
            f"{gpu.hbm_bytes_per_s / 1e12:.2f}",
            f"{gpu.link_raw_bytes_per_s / 1e9:.0f} ({gpu.link_usable_bytes_per_s / 1e9:.0f})",
            *(f"{gpu.flops[t] / 1e12:.0f}" if t in gpu.flops else "-" for t in _DTYPES),
        )
        for gpu in gpus
    ]
    head = ("GPU", "SMs", "HBM GB", "TB/s", "link GB/s (usable)", *_DTYPES)
    print_table(head, figures)
    print_line("Peaks in dense TFLOP/s. Every figure has its source in --json.")


def _nics(cluster: Cluster) -> str:
    return f"{cluster.nics_per_node} x {cluster.nic_gbit_per_s:g}"


def print_fit(fit: MachineFit, output: Path) -> None:
    """The parameters of each scope and how well they fit."""
    rows = [
        (
            name,
            str(scope.rows),
            f"{scope.overhead_us:.1f}",
            f"{scope.hop_us:.1f}",
            f"{scope.rate:.2f}",
            f"{scope.ll_hop_us:.1f}",
            f"{scope.ll_cap:.2f}",
            percent(scope.median_error),
            percent(scope.p90_error),
        )
        for name, scope in fit.scopes.items()
    ]
    head = ("scope", "rows", "overhead µs", "hop µs", "rate", "LL hop µs", "LL cap")
    print_table((*head, "median error", "p90"), rows)
    print_line(
        f"{output}: {len(fit.points)} measured points with their residuals; the errors are of the "
        "parameters alone, on the rows they were fitted to"
    )
