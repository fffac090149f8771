"""``foretrace cost alltoallv``: one exchange from its full traffic matrix."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace.traces.errors import LayoutError

if TYPE_CHECKING:
    from foretrace.replay.cluster import Cluster

KIND = "alltoallv"


def is_traffic(collective: str) -> bool:
    """Whether a collective's cost asks for a matrix."""
    return collective.lower().replace("_", "").replace("-", "") == KIND


def cost_of_traffic(
    path: str, cluster: Cluster, group: int | None, nodes: int | None, distinct: float
) -> dict[str, Any]:
    """Cost of the exchange, plain and in two steps, as ``foretrace cost --json`` writes it.

    Args:
        path: CSV of bytes from rank (row) to rank (column).
        cluster: the machine.
        group: ranks, where given it must be the matrix's.
        nodes: nodes that the ranks fill evenly, in order; the fewest by default.
        distinct: part of the bytes between nodes left when a node gets each token once.

    Raises:
        LayoutError: no square table of numbers, or ranks that do not fill the nodes evenly.
    """
    from foretrace.replay.costs.collectives.alltoall import all_to_all_v_cost, hierarchical_cost
    from foretrace.replay.costs.collectives.p2p import fused_p2p_cost
    from foretrace.replay.costs.collectives.shapes import nodes_for
    from foretrace.replay.costs.collectives.terms import Parts

    sends = read_traffic(Path(path))
    ranks = len(sends)
    if group not in (None, ranks):
        raise LayoutError(f"--group {group}, but {path} has {ranks} rows: leave --group out")
    several = int(nodes_for(ranks, cluster)) if nodes is None else nodes
    if several < 1 or ranks % several or ranks // several > cluster.gpus_per_node:
        raise LayoutError(
            f"{ranks} ranks do not fill {several} nodes of {cluster.name} evenly "
            f"({cluster.gpus_per_node} GPUs each): give --nodes"
        )
    node = np.arange(ranks) // (ranks // several)
    plain = all_to_all_v_cost(sends, node, cluster)
    busiest = int(np.argmax(fused_p2p_cost(sends, node, cluster)))
    start = float(fused_p2p_cost(np.sign(sends), node, cluster)[busiest])
    terms = {f"{name}_s": 0.0 for name in Parts.__slots__}
    terms |= {"latency_s": start / 1e6, "wire_s": (plain - start) / 1e6}
    two_steps = hierarchical_cost(sends, node, cluster, outside_share=distinct)
    return {
        "seconds": plain / 1e6,
        "algorithm": "P2P",
        "protocol": "",
        "terms": terms,
        "nearest": [],
        "ranks": ranks,
        "nodes": several,
        "busiest_rank": busiest,
        "hierarchical_seconds": two_steps / 1e6,
    }


def read_traffic(path: Path) -> np.ndarray:
    """A square table of bytes.

    Raises:
        LayoutError: cannot be read, or is none.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [[float(cell) for cell in row] for row in csv.reader(lines) if row]
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise LayoutError(
            f"{path}: expected a CSV of bytes from rank (row) to rank (column): {error}"
        ) from error
    if not rows or any(len(row) != len(rows) for row in rows):
        raise LayoutError(f"{path}: expected as many columns as rows, found {len(rows)} rows")
    return np.array(rows)


def print_traffic(result: dict[str, Any], cluster: Cluster) -> None:
    """The same for people."""
    from foretrace.cli.terminal import duration, print_line

    print_line(
        f"all_to_all_v over {result['ranks']} ranks on {result['nodes']} "
        f"node{'s' * (result['nodes'] > 1)} of {cluster.name}: {duration(1e9 * result['seconds'])}"
    )
    print_line(
        f"rank {result['busiest_rank']} is the busiest: start "
        f"{duration(1e9 * result['terms']['latency_s'])}, bytes "
        f"{duration(1e9 * result['terms']['wire_s'])}"
    )
    print_line(
        f"along rails first, then inside the nodes: "
        f"{duration(1e9 * result['hierarchical_seconds'])}"
    )
