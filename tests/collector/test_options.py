"""Arguments that make no sense are refused before the loop starts."""

from __future__ import annotations

from typing import Any

import pytest

from foretrace.collector import profile
from foretrace.traces.errors import ForetraceError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": ""}, "path is empty"),
        ({"active": 0}, "active=0"),
        ({"wait": -1}, "wait=-1"),
        ({"warmup": 1.5}, "warmup=1.5"),
        ({"detail": "some"}, "'full' or 'light'"),
        ({"ranks": []}, "global ranks"),
        ({"ranks": [-1]}, "global ranks"),
        ({"layout": {"dp": 0}}, "sizes >= 1"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    given = {"path": "run.trace"} | arguments
    with pytest.raises(ForetraceError, match=message) as caught:
        profile(given.pop("path"), **given)
    assert len(str(caught.value).splitlines()) == 1


def test_triggers_are_signals_by_name_and_files_else() -> None:
    from foretrace.collector.options import Options

    def options(trigger: str | None) -> Options:
        return Options(
            path="x",
            wait=0,
            warmup=0,
            active=1,
            detail="full",
            ranks=frozenset({1, 2}),
            trigger=trigger,
            layout={},
            labels={},
            with_stack=False,
            profile_memory=False,
            timeout_s=1.0,
        )

    assert (options(None).signal_number, options(None).trigger_path) == (None, None)
    assert options("SIGUSR1").signal_number is not None
    assert options("SIGUSR1").trigger_path is None
    assert options("start.now").trigger_path == "start.now"
    assert [options(None).records(rank) for rank in (0, 1, 2, 3)] == [False, True, True, False]
