"""How many tokens each rank sends to each expert."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rows_between(
    ranks: int, tokens: int, hot_expert: int = -1, hot_share: float = 0.0
) -> NDArray[np.int64]:
    """Tokens from rank (row) to the expert of a rank (column), shape ``(ranks, ranks)``.

    All ranks send alike: the hot expert's share to it and the rest evenly to the others.

    Args:
        ranks: ranks, with one expert each.
        tokens: tokens of each rank.
        hot_expert: rank of the hot expert, -1 for none.
        hot_share: its share of all tokens.
    """
    row = np.full(ranks, tokens / ranks)
    if hot_expert >= 0:
        row[:] = tokens * (1 - hot_share) / (ranks - 1)
        row[hot_expert] = tokens * hot_share
    ends = np.rint(np.cumsum(row)).astype(np.int64)
    return np.tile(np.diff(ends, prepend=0), (ranks, 1))
