"""What is made, shaped and removed, without making anything."""

from __future__ import annotations

import pytest
from testbed import namespaces
from testbed.namespaces import Plan, stale


def test_every_namespace_that_is_made_is_also_removed() -> None:
    plan = Plan(owner=77, ranks=3)
    made = [command[-1] for command in plan.build() if command[:3] == ["ip", "netns", "add"]]
    assert sorted(made) == sorted(plan.names())
    assert len(set(made)) == 4
    # Interfaces lie inside namespaces only, so they go with them.
    links = [c for c in plan.build() if "veth" in c]
    assert all(c.count("netns") == 2 for c in links)
    assert len(links) == 3


def test_both_ends_of_every_link_are_shaped_alike() -> None:
    plan = Plan(owner=77, ranks=2)
    commands = plan.shape(12.5)
    ends = {(c[2], c[6]) for c in commands}
    hub, own = (
        {("ftb-77-hub", f"p{r}") for r in range(2)},
        {(f"ftb-77-{r}", "eth") for r in range(2)},
    )
    assert ends == hub | own
    assert {c[c.index("rate") + 1] for c in commands} == {"12500kbit"}
    assert namespaces.BURST_BYTES > namespaces.MTU + 100  # a token bucket never lets more through


def test_addresses_differ() -> None:
    plan = Plan(owner=1, ranks=16)
    assert len({plan.address(r) for r in range(16)}) == 16


def test_only_namespaces_of_gone_processes_are_stale() -> None:
    names = ["ftb-5-hub", "ftb-5-0", "ftb-6-0", "docker", "ftb-x-1", "ftb-7-probe"]
    found = stale(names, alive=lambda process: process == 6)
    assert found == ["ftb-5-hub", "ftb-5-0", "ftb-7-probe"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
@pytest.mark.parametrize("where", ["making", "using"])
def test_namespaces_go_however_it_ends(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], where: str
) -> None:
    removed: list[str] = []

    def fails(commands: list[list[str]]) -> None:
        if where == "making":
            raise error

    monkeypatch.setattr(namespaces, "existing", lambda: ["ftb-999999999-0", "other"])
    monkeypatch.setattr(namespaces, "remove", removed.extend)
    monkeypatch.setattr(namespaces, "_all", fails)
    monkeypatch.setattr(namespaces, "_settle", lambda name: None)
    with pytest.raises(error), namespaces.network(2):
        raise error
    assert removed[0] == "ftb-999999999-0"  # what a killed process left
    assert removed[1:] == Plan(namespaces.os.getpid(), 2).names()


def test_without_root_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    assert "root" in namespaces.why_not()
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None if tool == "tc" else tool)
    assert namespaces.why_not() == "needs tc (package iproute2)"
