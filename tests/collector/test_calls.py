"""What a call moves, against sizes worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from foretrace.collector.calls import OPERATORS, payload, scalar_type
from foretrace.traces.schema import COLLECTIVE_KINDS

GROUP = object()


@dataclass
class Tensor:
    """As much of a tensor as sizes need: 4-byte elements."""

    shape: tuple[int, ...]
    dtype: str = "torch.float32"

    @property
    def nbytes(self) -> int:
        return 4 * self.numel()

    def numel(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dimension: int) -> int:
        return self.shape[dimension]


def t(*shape: int) -> Tensor:
    return Tensor(shape)


CASES: list[tuple[str, list[Any], int, tuple[int, int, int, Any]]] = [
    # operator, arguments, rank in the group -> bytes in, bytes out, root, splits
    ("allreduce_", [[t(10)], GROUP, None], 0, (40, 40, -1, None)),
    ("allreduce_coalesced_", [[t(10), t(5)], GROUP, None], 0, (60, 60, -1, None)),
    ("broadcast_", [[t(8)], GROUP, 1, 0], 1, (32, 32, 1, None)),
    ("broadcast_", [[t(8)], GROUP, 1, 0], 0, (0, 32, 1, None)),
    ("reduce_", [[t(8)], GROUP, None, 2, 0], 2, (32, 32, 2, None)),
    ("reduce_", [[t(8)], GROUP, None, 2, 0], 0, (32, 0, 2, None)),
    ("_allgather_base_", [t(12), t(3), GROUP], 0, (12, 48, -1, None)),
    ("allgather_", [[[t(3), t(3), t(3)]], [t(3)], GROUP], 0, (12, 36, -1, None)),
    ("_reduce_scatter_base_", [t(3), t(12), GROUP, None], 0, (48, 12, -1, None)),
    ("reduce_scatter_", [[t(3)], [[t(3), t(3)]], GROUP, None], 0, (24, 12, -1, None)),
    ("gather_", [[[t(2), t(2)]], [t(2)], GROUP, 0], 0, (8, 16, 0, None)),
    ("gather_", [[], [t(2)], GROUP, 0], 1, (8, 0, 0, None)),
    ("scatter_", [[t(2)], [[t(2), t(2)]], GROUP, 0], 0, (16, 8, 0, None)),
    ("scatter_", [[t(2)], [], GROUP, 0], 1, (0, 8, 0, None)),
    ("alltoall_base_", [t(4, 3), t(4, 3), GROUP, [], []], 0, (48, 48, -1, None)),
    (
        "alltoall_base_",  # splits count rows of three elements
        [t(5, 3), t(4, 3), GROUP, [4, 1], [1, 3]],
        0,
        (48, 60, -1, ([3, 9], [12, 3])),
    ),
    ("alltoall_", [[t(2), t(7)], [t(4), t(1)], GROUP], 0, (20, 36, -1, ([4, 1], [2, 7]))),
    ("send", [[t(6)], GROUP, 3, 0], 0, (24, 0, 3, None)),
    ("recv_", [[t(6)], GROUP, 3, 0], 0, (0, 24, 3, None)),
    ("recv_any_source_", [[t(6)], GROUP, 0], 0, (0, 24, -1, None)),
    ("barrier", [t(1), GROUP, []], 0, (0, 0, -1, None)),
]


@pytest.mark.parametrize(("name", "args", "rank", "expected"), CASES)
def test_payload(name: str, args: list[Any], rank: int, expected: tuple[Any, ...]) -> None:
    put, got, dtype, root, splits = payload(OPERATORS[name], args, rank)
    assert (put, got, root, splits) == expected
    assert dtype == (None if name == "barrier" else "torch.float32")


def test_empty_rows_have_no_elements() -> None:
    args = [t(0, 3), t(0, 3), GROUP, [0, 0], [0, 0]]
    assert payload(OPERATORS["alltoall_base_"], args, 0)[-1] == ([0, 0], [0, 0])


def test_kinds_are_those_of_the_schema() -> None:
    assert {operator.kind for operator in OPERATORS.values()} <= set(COLLECTIVE_KINDS)


def test_the_group_is_where_the_table_says() -> None:
    for name, args, _, _ in CASES:
        assert args[OPERATORS[name].group] is GROUP, name


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("torch.float32", "Float"),
        ("torch.bfloat16", "BFloat16"),
        ("torch.int64", "Long"),
        ("torch.uint8", "Byte"),
        ("torch.float8_e4m3fn", "Float8_e4m3fn"),
    ],
)
def test_scalar_types_are_those_of_c10(dtype: str, expected: str) -> None:
    assert scalar_type(dtype) == expected


@pytest.mark.torch
def test_every_operator_of_this_torch_is_known() -> None:
    torch = pytest.importorskip("torch")
    from foretrace.collector.hook import unknown_operators

    names = [str(name) for name in torch._C._dispatch_get_all_op_names()]
    assert unknown_operators(names) == []


@pytest.mark.torch
def test_arguments_lie_where_the_table_says() -> None:
    """The schemas of this torch against the positions in the table."""
    torch = pytest.importorskip("torch")
    for name, operator in OPERATORS.items():
        overload = getattr(torch.ops.c10d, name).default
        arguments = [argument.name for argument in overload._schema.arguments]
        assert arguments[operator.group] == "process_group", name
        if operator.root >= 0:
            assert arguments[operator.root] in ("root_rank", "dst", "src"), name
