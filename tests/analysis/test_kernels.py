"""The table of top kernels and the short names that reports use."""

from __future__ import annotations

import pytest
from tests.analysis.graphs import GraphBuilder, two_ranks

from foretrace.analysis.causes.wording import ms, short_name, size_text
from foretrace.analysis.groups import families, family, ranks_text
from foretrace.analysis.kernels import kernels
from foretrace.replay.graph import TaskKind


def test_by_hand() -> None:
    table = kernels(two_ranks(steps=2).replayed()).set_index("name")
    assert table.index.tolist() == ["gemm", "all_reduce", "copy"]
    assert table.loc["gemm"].to_dict() == {
        "class": "compute",
        "ranks": 2,
        "count": 4,
        "total_ns": 120,
        "share": 120 / 232,
        "mean_ns": 30,
        "max_ns": 40,
    }
    assert table.loc["all_reduce", "total_ns"] == 72  # the waiting is not counted
    assert table["share"].sum() == pytest.approx(1)


def test_one_step_only() -> None:
    assert kernels(two_ranks(steps=2).replayed(), step=1)["count"].tolist() == [2, 2, 2]


def test_host_work_where_there_is_no_device() -> None:
    b = GraphBuilder()
    b.task(TaskKind.HOST, 0, 30, stream=1, name="aten::mm")
    assert kernels(b.replayed()).loc[0, ["name", "class"]].tolist() == ["aten::mm", "compute"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), "none"),
        ((3,), "3"),
        ((0, 1, 2, 3), "0-3"),
        ((0, 4), "0,4"),
        (tuple(range(0, 32, 4)), "0-28 by 4"),
        ((0, 1, 3, 9, 11), "0,1,3,9,... (5)"),
    ],
)
def test_ranks_in_short(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text


def test_families_of_a_layout() -> None:
    groups = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3)]
    two, apart = "2 neighbours", "2 ranks, 2 apart"
    assert families(groups) == [two, two, apart, apart, "all 4 ranks"]
    assert family((), 4) == "unknown group"
    assert family((0, 1, 3), 8) == "3 ranks"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void cutlass::Kernel2<cutlass_80>(Params)", "cutlass::Kernel2<cutlass_80>"),
        ("void (anonymous namespace)::softmax<float>(int*)", "softmax<float>"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("(host stall)", "(host stall)"),
        ("aten::mm", "aten::mm"),
        ("k" * 80, "k" * 59 + "…"),
        ("operator<(int)", "operator<(int)"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0 ns"), (950, "950 ns"), (1_500, "1.5 µs"), (12_345_678, "12.3 ms"),
     (123_456_789, "123 ms"), (2.5e9, "2.5 s"), (-1_500, "-1.5 µs"), (5e12, "5,000 s")],
)  # fmt: skip
def test_times_for_people(time_ns: float, text: str) -> None:
    assert ms(time_ns) == text


@pytest.mark.parametrize(
    ("size", "text"), [(4, "4 B"), (1536, "1.5 KiB"), (1 << 26, "64 MiB"), (3 << 30, "3 GiB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert size_text(size) == text
