"""One door for all backends: NCCL (and RCCL) where there are GPUs, gloo where there are none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.cost import Collectives, Costs, collective_costs
from foretrace.replay.costs.collectives.gloo import gloo_costs
from foretrace.replay.costs.collectives.shared import DEFAULT, SharedConstants


def price(
    ops: Collectives,
    cluster: Cluster,
    shared: SharedConstants = DEFAULT,
    allowed: NDArray[np.bool_] | None = None,
) -> Costs:
    """Price operations on the backend that the cluster runs, see the two pricing functions."""
    if cluster.gpu.vendor == "none":
        return gloo_costs(ops, cluster, shared)
    return collective_costs(ops, cluster, shared, allowed)


def switches(
    kind: int, ranks: int, nodes: int, cluster: Cluster, shared: SharedConstants = DEFAULT
) -> list[tuple[int, int, int, float]]:
    """Sizes at which the algorithm or protocol changes, and what that does to the time.

    A send goes on twice the channels from some sizes on; these are listed too.

    Args:
        kind: code in ``shapes.KINDS``.
        ranks: members of the group.
        nodes: nodes they are on.
        cluster: the machine.
        shared: constants of the model.

    Returns:
        (first size with the new pick, old pick, new pick, time there over time just below) for
        each change from 8 bytes to 64 GiB, found on a grid of 64 sizes an octave.
    """
    sizes = np.unique(np.round(2.0 ** np.arange(3, 36, 1 / 64)))
    costs = price(Collectives.of(kind, sizes, ranks, nodes), cluster, shared)
    changed, dropped = np.diff(costs.pick) != 0, np.diff(costs.time_us) < -1e-9 * costs.time_us[1:]
    at = np.flatnonzero(changed | dropped) + 1
    return [
        (
            int(sizes[i]),
            int(costs.pick[i - 1]),
            int(costs.pick[i]),
            float(costs.time_us[i] / costs.time_us[i - 1]),
        )
        for i in at
    ]
