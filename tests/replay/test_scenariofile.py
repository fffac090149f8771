"""Scenario files: what they may say, how they compose, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.random_graphs import job_graphs
from tests.replay.test_rates import WAITING, WAITS, job_of
from tests.replay.test_whatif import GRAPH

from foretrace.replay.engine import replay, replay_each
from foretrace.replay.graph import JobGraph
from foretrace.replay.scenario import parse
from foretrace.replay.scenariofile import parse_scenarios, parse_transform, read_scenarios
from foretrace.replay.transforms import TRANSFORMS, transform_class
from foretrace.replay.whatif import apply, evaluate
from foretrace.traces.errors import ScenarioError

TWO = """
[[scenario]]
name = "faster"
what_if = "comm=x0.5"

[[scenario.change]]
transform = "scale"
select = "kernel:*gemm*"
factor = 0.5

[[scenario.change]]
transform = "set"
select = "kernel:*gemm*"
to = "5us"

[[scenario]]
name = "slower"
change = [{ transform = "delay", select = "rank:1,compute", add = "5us" }]
"""


def test_changes_apply_in_order() -> None:
    faster, slower = parse_scenarios(TWO)
    assert (faster.name, slower.name) == ("faster", "slower")
    dur = apply(GRAPH, faster)
    assert (dur[6], dur[4]) == (250, 5_000), "comm by what_if, then the gemm scaled and set"
    assert apply(GRAPH, slower)[8] == 40 + 5_000
    assert (GRAPH.dur_ns[[6, 4, 8]] == [500, 60, 40]).all()


def test_order_matters() -> None:
    swapped = TWO.replace('"scale"', '"X"').replace('"set"', '"scale"').replace('"X"', '"set"')
    swapped = swapped.replace('to = "5us"', "factor = 0.5", 1)
    swapped = swapped.replace("factor = 0.5", 'to = "5us"', 1)
    (first, _) = parse_scenarios(swapped)
    assert apply(GRAPH, first)[4] == 2_500


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no [[scenario]]"),
        ("[[scenarios]]\nname='a'", "no field 'scenarios' (did you mean 'scenario'?)"),
        ("scenario = 3", "holds no [[scenario]]"),
        ("scenario = [3]", "expected a table"),
        ("x = [", "not TOML"),
        ("[[scenario]]\nwhat_if='comm=0'", "`name`"),
        ("[[scenario]]\nname='a'\nfactor=1", "there are name, what_if, change"),
        ("[[scenario]]\nname='a'\nwhat_if='comm'", "expected SELECTOR=CHANGE"),
        ("[[scenario]]\nname='a'\n[[scenario]]\nname='a'", "two scenarios are called 'a'"),
        ("[[scenario]]\nname='a'\nchange=[{transform='scal'}]", "did you mean 'scale'?"),
        ("[[scenario]]\nname='a'\nchange=[{select='comm'}]", "there are scale, set"),
        (
            "[[scenario]]\nname='a'\nchange=[{transform='scale',select='comm',facto=1}]",
            "scenario 1 (a), change 1 (scale): no field 'facto' (did you mean 'factor'?); "
            "there are select, factor",
        ),
        ("[[scenario]]\nname='a'\nchange=[{transform='scale',select='comm'}]", "`factor`"),
        (
            "[[scenario]]\nname='a'\nchange=[{transform='scale',select='comm',factor='x'}]",
            "Expected `float`",
        ),
        (
            "[[scenario]]\nname='a'\nchange=[{transform='set',select='comm',to='5'}]",
            "expected a time such as 40us",
        ),
        (
            "[[scenario]]\nname='a'\nchange=[{transform='scale',select='rank:x',factor=1}]",
            "expected numbers",
        ),
        ("[[scenario]]\nname='a'\nchange=[{transform='equalise',to='mean'}]", "Invalid enum"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenarios(text, "file.toml")
    assert says in str(caught.value)
    assert str(caught.value).startswith("file.toml")
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_scenarios(tmp_path / "none.toml")


def test_every_transform_exists_and_says_what_its_fields_are() -> None:
    for name in TRANSFORMS:
        cls = transform_class(name)
        assert cls.__struct_config__.forbid_unknown_fields
        assert cls.__struct_config__.frozen
        for field in set(cls.__struct_fields__) - {"select"}:
            assert f"{field}:" in (cls.__doc__ or ""), f"{name}.{field}"


@given(job_graphs(shuffled=False), st.integers(0, 20), st.integers(0, 2**32))
def test_many_at_once_equal_one_by_one(graph: JobGraph, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    costs = [random.integers(0, 50, len(graph)) for _ in range(count)]
    runs = list(replay_each(graph, ((str(i), c) for i, c in enumerate(costs))))
    assert [run.label for run in runs] == [str(i) for i in range(count)]
    for cost, run in zip(costs, runs, strict=True):
        alone = replay(graph, cost)
        assert (run.start_ns == alone.start_ns).all()
        assert (run.end_ns == alone.end_ns).all()
        assert (run.bound == alone.bound).all()


def test_outcomes_keep_their_order_whatever_they_change() -> None:
    texts = [f"comm=x0.{i}" for i in range(1, 10)]
    scenarios = [*map(parse, texts), *parse_scenarios(TWO)]
    found = evaluate(GRAPH, scenarios)
    assert [o.scenario.name for o in found] == [*texts, "faster", "slower"]
    assert [o.timeline.label for o in found] == [*texts, "faster", "slower"]
    assert found[-1].tasks == 1
    assert (found[-1].before_ns, found[-1].after_ns) == (40, 5_040)


def test_a_line_says_what_a_file_says() -> None:
    line = parse_transform(
        "scale: select = 'kernel:*gemm*', factor = 0.5; "
        "set: select = \"kernel:a; set b\", to = '5us';"
    )
    (file,) = parse_scenarios(
        "[[scenario]]\nname = 'x'\n"
        "[[scenario.change]]\ntransform = 'scale'\nselect = 'kernel:*gemm*'\nfactor = 0.5\n"
        "[[scenario.change]]\ntransform = 'set'\nselect = 'kernel:a; set b'\nto = '5us'\n"
    )
    assert line.transforms == file.transforms
    assert line.rules == ()
    assert parse_transform("equalise").transforms == parse_transform(" equalise: ").transforms


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("scal: factor = 2", "did you mean 'scale'"),
        ("scale: factr = 2", "did you mean 'factor'"),
        ("scale: factor = 2", "select"),
        ("scale: factor = ", "expected NAME: FIELD = VALUE"),
        ("scale: factor = -1, select = 'a'", "factor"),
    ],
)
def test_a_line_that_says_nothing_known_is_refused(text: str, says: str) -> None:
    with pytest.raises(ScenarioError, match=says) as error:
        parse_transform(text)
    assert "\n" not in str(error.value)


@given(st.text())
def test_any_line_parses_or_says_why(text: str) -> None:
    try:
        found = parse_transform(text)
    except ScenarioError:
        return
    assert found.transforms


@given(st.permutations(range(6)))
def test_scenarios_keep_their_order_whatever_they_change(order: list[int]) -> None:
    """Those that change dependencies stand between those that share a pass."""
    texts = [f"comm=x{i}" for i in range(2, 6)]
    drop = "dependency: edge = 'rendezvous', action = 'duplicate', delay = '{}us'"
    every = [parse(text) for text in texts] + [parse_transform(drop.format(i)) for i in (3, 5)]
    asked = [every[i] for i in order]
    graph = job_of(WAITING, WAITS)
    together = evaluate(graph, asked)
    assert [o.scenario for o in together] == asked
    for outcome in together:
        (alone,) = evaluate(graph, [outcome.scenario])
        assert (outcome.timeline.start_ns == alone.timeline.start_ns).all()
        assert outcome.timeline.label == outcome.scenario.name
