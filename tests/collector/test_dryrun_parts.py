"""Routing, messages and step marks of dry runs, without torch."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collector.tables import recording

from foretrace.collector.dryrun.mailbox import Mailbox, wanted_ranks
from foretrace.collector.dryrun.roles import candidates, places
from foretrace.collector.dryrun.routing import parse_routing
from foretrace.collector.dryrun.spec import Mark, Record
from foretrace.collector.dryrun.tables import steps_of
from foretrace.traces.errors import ForetraceError


@given(st.integers(0, 10**6), st.integers(1, 300), st.floats(0, 4), st.integers(0, 9))
def test_every_token_goes_to_one_expert(
    tokens: int, experts: int, exponent: float, layer: int
) -> None:
    routing = parse_routing(f"zipf:{exponent}")
    counts = routing.counts(tokens, experts, layer)
    assert counts.sum() == tokens
    assert (counts >= 0).all()
    assert (np.abs(counts - routing.shares(experts, layer) * tokens) < 1 + 1e-6).all()


def test_laws() -> None:
    assert parse_routing("uniform").counts(10, 4, 0).tolist() == [3, 3, 2, 2]
    shares = np.sort(parse_routing("zipf:1").shares(3, 0))[::-1]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    layers = [parse_routing("zipf:1").shares(64, layer).argmax() for layer in range(8)]
    assert len(set(layers)) > 1  # not the same expert is popular everywhere


def test_recorded_counts_keep_their_shares(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text("[[1, 3], [2, 2]]")
    routing = parse_routing(str(path))
    assert routing.counts(8, 2, 0).tolist() == [2, 6]
    assert routing.counts(8, 2, 1).tolist() == [4, 4]
    assert routing.counts(8, 2, 2).tolist() == [2, 6]
    with pytest.raises(ForetraceError, match="counts of 2 experts, but the script has 3"):
        routing.counts(8, 3, 0)


@pytest.mark.parametrize("text", ["", "zipf", "zipf:-1", "zipf:x", "pareto:2", "missing.json"])
def test_unknown_routings(text: str) -> None:
    with pytest.raises(ForetraceError, match="expected 'uniform'"):
        parse_routing(text)


@pytest.mark.parametrize("text", ["[]", "[[1], [1, 2]]", "[0, 0]", "[-1, 2]", "[[1], 2]"])
def test_counts_that_are_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(text)
    with pytest.raises(ForetraceError, match=r"counts\.json"):
        parse_routing(str(path))


def test_a_message_reaches_whoever_waits_for_it(tmp_path: Path) -> None:
    taken: list[bytes] = []
    waiting = threading.Thread(
        target=lambda: taken.append(Mailbox(tmp_path).take(("g", 3, 0, 1), sender=3))
    )
    waiting.start()
    while not wanted_ranks(tmp_path):
        pass
    assert wanted_ranks(tmp_path) == {3}
    Mailbox(tmp_path).put(("g", 3, 0, 1), b"shape")
    waiting.join()
    assert taken == [b"shape"]
    with pytest.raises(TimeoutError, match="rank 2"):
        Mailbox(tmp_path, timeout_s=0.01).take(("g", 2, 0, 1), sender=2)


def record(**more: object) -> Record:
    given: dict[str, object] = {
        "recording": recording(),
        "fake": True,
        "operations": [],
        "first": 5,
        "marks": [],
        "families": [],
        "notes": [],
    }
    return Record(**(given | more))  # type: ignore[arg-type]


def test_a_step_ends_with_the_last_of_its_optimizers() -> None:
    marks = [Mark(9, True, 1), Mark(10, False, 1), Mark(20, True, 1), Mark(21, False, 1)]
    steps = steps_of(record(marks=marks))
    assert [(s.step, s.start_ns, s.end_ns) for s in steps] == [(0, 5, 10), (1, 10, 21)]
    assert steps_of(record()) == []


def test_ranks_differ_by_their_places_in_groups_with_sends() -> None:
    made = [("default_pg", [0, 1, 2, 3]), ("mesh_pp", [0, 2]), ("mesh_pp", [1, 3])]
    made += [("mesh_dp", [0, 1]), ("mesh_dp", [2, 3])]
    several = record(families=made)
    assert places(several, {("mesh_pp", 2)}) == [(0,), (0,), (1,), (1,)]
    assert candidates(several, {("mesh_pp", 2)}) == {0: [0, 1], 2: [2, 3]}
    assert candidates(several, set()) == {0: [0, 1, 2, 3]}


def test_too_many_places_are_not_traced_unasked() -> None:
    everyone = record(
        recording=recording(world_size=128), families=[("default_pg", list(range(128)))]
    )
    with pytest.raises(ForetraceError, match="128 places"):
        candidates(everyone, {("default_pg", 128)})
