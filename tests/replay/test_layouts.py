"""Groups whose members no trace recorded: regular layouts, found again from what is known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.replay.build.communicators import Communicator
from foretrace.replay.build.layouts import rank_sets, search_layouts
from foretrace.traces.schema import COLLECTIVE_KINDS

MS = 1_000_000
SEND_RECV = COLLECTIVE_KINDS.index("send_recv")


def groups_of(sizes: list[int]) -> list[list[tuple[int, ...]]]:
    """Groups of each dimension of a mesh whose first dimension varies fastest."""
    world = np.arange(int(np.prod(sizes))).reshape(sizes[::-1])
    axes = []
    for axis in range(len(sizes)):
        lines = np.moveaxis(world, len(sizes) - 1 - axis, -1).reshape(-1, sizes[axis])
        axes.append([tuple(int(r) for r in line) for line in lines])
    return axes


def communicators(
    group: tuple[int, ...], kinds: list[int], ends: np.ndarray, **known: object
) -> list[Communicator]:
    """Each member's view of one group; ``ends`` has shape ``(members, operations)``."""
    return [
        Communicator(
            rank=rank,
            operations=np.arange(len(kinds)),
            kinds=np.array(kinds, np.int8),
            ends=ends[number],
            starts=ends[number] - 1_000,
            ranks=(),
            handle="",
            group_rank=number if known.get("numbered") else -1,
            group_size=len(group) if known.get("sized") else -1,
            seq=np.full(len(kinds), -1, np.int64),
            p2p=bool(known.get("p2p")),
        )
        for number, rank in enumerate(group)
    ]


def found(comms: list[Communicator]) -> list[tuple[int, ...]]:
    return sorted(tuple(sorted(c.rank for c in g)) for g in search_layouts(comms, {}))


def ends_of(rng: np.random.Generator, group: tuple[int, ...], count: int) -> np.ndarray:
    """Members leave an operation within 20 us; operations and groups are unrelated in time."""
    common = np.sort(rng.integers(0, 600 * MS, count))
    return common + rng.integers(0, 20_000, (len(group), count))


def test_three_dimensions_of_two() -> None:
    """Tensor (r, r+1), data (r, r+2) and pipeline (r, r+4) groups of 8 ranks, as Megatron has.

    Numbers in the group are known, pipeline operations are fused sends and receives.
    """
    rng = np.random.default_rng(0)
    tensor, data, pipe = groups_of([2, 2, 2])
    assert (tensor[0], data[0], pipe[0]) == ((0, 1), (0, 2), (0, 4))
    comms = []
    for groups, kinds, p2p in (
        (tensor, [1, 2] * 40, False), (data, [0] * 5, False), (pipe, [SEND_RECV] * 16, True)
    ):  # fmt: skip
        for g in groups:
            ends = ends_of(rng, g, len(kinds))
            comms += communicators(g, kinds, ends, numbered=True, p2p=p2p)
    whole = tuple(range(8))
    comms += communicators(whole, [3, 3, 0], ends_of(rng, whole, 3), numbered=True)
    assert found(comms) == sorted([*tensor, *data, *pipe, whole])


SHAPES = [s for n in (2, 4, 8) for s in product([1, 2, 4, 8], repeat=3) if np.prod(s) == n]


@settings(max_examples=40)
@given(
    st.sampled_from(SHAPES),
    st.booleans(),
    st.booleans(),
    st.integers(4, 30),
    st.integers(0, 2**32 - 1),
)
def test_random_layouts(
    sizes: tuple[int, ...], numbered: bool, sized: bool, count: int, seed: int
) -> None:
    """Every group of every dimension is found, whatever else is unknown."""
    rng = np.random.default_rng(seed)
    comms, expected = [], []
    for dimension, groups in enumerate(groups_of(list(sizes))):
        # Another pattern of operations in each dimension, the same in all of its groups.
        kinds = [(dimension + i) % (dimension + 2) for i in range(count)]
        for g in (g for g in groups if len(g) > 1):
            expected.append(g)
            ends = ends_of(rng, g, count)
            comms += communicators(g, kinds, ends, numbered=numbered, sized=sized)
    assert found([comms[i] for i in rng.permutation(len(comms))]) == sorted(expected)


def test_dimensions_with_the_same_operations_are_told_apart_by_time() -> None:
    rng = np.random.default_rng(3)
    comms, expected = [], []
    for groups in groups_of([2, 4]):
        for g in groups:
            expected.append(g)
            comms += communicators(g, [0] * 20, ends_of(rng, g, 20), sized=True)
    assert found(comms) == sorted(expected)


@pytest.mark.parametrize("ms", [0.0, 5.0])
def test_clocks_that_differ_do_not_change_the_groups(ms: float) -> None:
    """Two data-parallel halves do the same at nearly the same time; one rank's clock is off."""
    rng = np.random.default_rng(4)
    common = np.sort(rng.integers(0, 600 * MS, 30))
    comms = []
    groups = [(0, 1), (2, 3)]
    for number, g in enumerate(groups):
        # The halves differ by half a millisecond here and there.
        ends = common + number * rng.integers(-MS // 2, MS // 2, 30)
        ends = ends + rng.integers(0, 20_000, (2, 30))
        ends[0] += round(ms * MS) if number == 0 else 0
        comms += communicators(g, [0] * 30, ends, numbered=True, sized=True)
    assert found(comms) == groups


def test_a_missing_rank_breaks_its_own_groups_only() -> None:
    rng = np.random.default_rng(5)
    tensor, data = groups_of([2, 2])
    comms = []
    for groups, kinds in ((tensor, [1, 2] * 9), (data, [0] * 9)):
        for g in groups:
            comms += communicators(g, kinds, ends_of(rng, g, len(kinds)), numbered=True, sized=True)
    assert found([c for c in comms if c.rank != 3]) == [(0, 1), (0, 2)]


def test_regular_sets_by_hand() -> None:
    sets = set(rank_sets(4))
    assert {(0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3)} <= sets
    assert all(len(s) >= 2 and list(s) == sorted(set(s)) and s[-1] < 4 for s in sets)
    assert {(0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6)} <= set(rank_sets(8))
    order = [len(s) for s in rank_sets(8)]
    assert order == sorted(order, reverse=True)


def test_a_pipeline_of_four_is_no_barrier() -> None:
    """Fused sends and receives of four stages without peers: pairs, never all four at once."""
    rng = np.random.default_rng(6)
    stages = (0, 1, 2, 3)
    comms = communicators(
        stages, [SEND_RECV] * 12, ends_of(rng, stages, 12) + rng.integers(0, 9 * MS, (4, 12)),
        numbered=True, sized=True, p2p=True,
    )  # fmt: skip
    assert all(len(g) == 2 for g in found(comms))


def test_first_and_last_stage_of_a_pipeline() -> None:
    """Tensor groups of two and four stages: the embeddings' group is (0, 6) and (1, 7)."""
    rng = np.random.default_rng(7)
    ends = [(0, 6), (1, 7)]
    comms = [
        c
        for g in ends
        for c in communicators(g, [0] * 9, ends_of(rng, g, 9), numbered=True, sized=True)
    ]
    comms += communicators(tuple(range(8)), [3] * 4, ends_of(rng, tuple(range(8)), 4))
    assert found(comms) == sorted([*ends, tuple(range(8))])
