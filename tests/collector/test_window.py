"""Which step does what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foretrace.collector.window import Phase, Window

counts = st.integers(0, 5)


def test_wait_warm_up_record() -> None:
    window = Window(1, 2, 3)
    letters = "".join(window.phase(step).value[0] for step in range(8))
    assert letters == "iwwrrroo"
    assert [step for step in range(8) if window.is_last(step)] == [5]
    assert window.recorded == "steps 3-5"
    assert Window(0, 0, 1).recorded == "step 0"


def test_nothing_happens_before_the_trigger() -> None:
    window = Window(0, 1, 2, first=None)
    assert {window.phase(step) for step in range(1000)} == {Phase.IDLE}
    assert window.recorded == "2 steps from a trigger on"
    window.first = 40
    assert [window.phase(step) for step in (39, 40, 41, 42, 43)] == [
        Phase.IDLE,
        Phase.WARMUP,
        Phase.RECORD,
        Phase.RECORD,
        Phase.OVER,
    ]


@given(wait=counts, warmup=counts, active=st.integers(1, 5), first=st.integers(0, 50))
def test_phases_come_in_order_and_in_number(
    wait: int, warmup: int, active: int, first: int
) -> None:
    window = Window(wait, warmup, active, first)
    phases = [window.phase(step) for step in range(first + wait + warmup + active + 3)]
    order = [Phase.IDLE, Phase.WARMUP, Phase.RECORD, Phase.OVER]
    assert phases == sorted(phases, key=order.index)
    assert phases.count(Phase.WARMUP) == warmup
    assert phases.count(Phase.RECORD) == active
    assert sum(window.is_last(step) for step in range(len(phases))) == 1
