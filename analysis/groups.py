"""How groups of ranks are called: in short, and by what groups of one kind have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ranks_text(ranks: Sequence[int], limit: int = 4) -> str:
    """Ranks in short: ``0-7``, ``0,4``, ``0-28 by 4``, ``3,7,8,9,... (12)``.

    Args:
        ranks: global ranks in order.
        limit: how many to write out where they follow no pattern.
    """
    if not ranks:
        return "none"
    if len(ranks) == 1:
        return str(ranks[0])
    stride = stride_of(ranks)
    if stride == 1:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) <= limit:
        return ",".join(map(str, ranks))
    if stride:
        return f"{ranks[0]}-{ranks[-1]} by {stride}"
    return f"{','.join(map(str, ranks[:limit]))},... ({len(ranks)})"


def stride_of(ranks: Sequence[int]) -> int:
    """Distance between neighbours if it is the same for all, else 0."""
    gaps = np.diff(np.asarray(ranks))
    return int(gaps[0]) if len(gaps) and (gaps == gaps[0]).all() else 0


def family(ranks: Sequence[int], world: int) -> str:
    """What groups of one kind (all tensor groups, say) share: size and distance.

    Args:
        ranks: global ranks of the group.
        world: ranks of the job.
    """
    size, stride = len(ranks), stride_of(ranks)
    if not size:
        return "unknown group"
    if size == world:
        return f"all {size} ranks"
    if not stride:
        return f"{size} ranks"
    return f"{size} neighbours" if stride == 1 else f"{size} ranks, {stride} apart"


def families(groups: Sequence[Sequence[int]]) -> list[str]:
    """The family of each group; a job's world is the union of its groups."""
    world = len({rank for group in groups for rank in group})
    return [family(group, world) for group in groups]
