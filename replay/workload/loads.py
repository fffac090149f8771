"""How unevenly routing fills the ranks that hold experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrace.replay.workload.operations import Operations
from foretrace.traces.errors import LayoutError

F64 = NDArray[np.float64]
_SEED = 7


def rank_loads(counts: ArrayLike, ep: int) -> F64:
    """Tokens of each expert-parallel rank over an even share, shape ``(ep,)``.

    Args:
        counts: tokens of each expert, shape ``(experts,)``; neighbours share a rank.
        ep: expert-parallel ranks.

    Raises:
        LayoutError: the experts do not split evenly, or nothing is routed.
    """
    tokens = np.asarray(counts, np.float64)
    if len(tokens) % ep or not tokens.sum() > 0 or tokens.min() < 0:
        raise LayoutError(f"loads of {len(tokens)} experts on ep={ep}: expected a count for each")
    each = tokens.reshape(ep, -1).sum(axis=1)
    return np.asarray(each / each.mean(), np.float64)


def zipf_counts(experts: int, exponent: float) -> F64:
    """Popularity ``1 / k ** exponent`` of the k-th expert, in an order fixed by chance."""
    order = np.random.default_rng(_SEED).permutation(experts)
    return np.asarray(1.0 / (1.0 + order) ** exponent, np.float64)


def routed(operations: Operations) -> NDArray[np.bool_]:
    """Computations whose work follows the tokens that come to a rank's experts."""
    named = np.array([name.startswith("experts ") for name in operations.name], np.bool_)
    return named & (operations.collective < 0)
