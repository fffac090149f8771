"""Network namespaces, one for each rank, on one bridge with shaped links.

::

    ftb-PID-hub                     ftb-PID-0      ftb-PID-1   ...
    bridge br0 -- p0 ------------------ eth
              `-- p1 ---------------------------------- eth

Both ends of each pair of interfaces send through a token bucket, so that a rank's way out and its
way in carry the same rate. Everything lies inside namespaces whose names hold the number of the
process that made them: deleting them removes the interfaces as well.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PREFIX = "ftb"
SUBNET = "10.77.0"
MTU = 9000
"""Fewer, larger packets cost less CPU than 1500 bytes."""
BURST_BYTES = 20_000
"""Tokens a link saves up: two packets, so that what follows a pause hardly gets away faster."""
QUEUE_BYTES = 16_000_000
"""Deep enough that nothing is ever dropped: sockets hold back before."""
SOCKET_BYTES = 1_000_000
"""Largest send and receive buffer of a socket."""

_ENDING = (signal.SIGINT, signal.SIGTERM)
_NAME = re.compile(rf"{PREFIX}-(\d+)-\w+$")
# Slow start and BBR's search for bandwidth would make a step depend on the ones before it.
_SETTINGS = {
    "net/ipv4/tcp_congestion_control": "reno",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv4/tcp_wmem": f"4096 {SOCKET_BYTES} {SOCKET_BYTES}",
    "net/ipv4/tcp_rmem": f"4096 {SOCKET_BYTES} {SOCKET_BYTES}",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Names and addresses of a set of namespaces.

    Attributes:
        owner: process that makes and removes them.
        ranks: how many.
    """

    owner: int
    ranks: int

    @property
    def hub(self) -> str:
        """Namespace of the bridge."""
        return f"{PREFIX}-{self.owner}-hub"

    def namespace(self, rank: int) -> str:
        """Namespace of a rank."""
        return f"{PREFIX}-{self.owner}-{rank}"

    def address(self, rank: int) -> str:
        """IPv4 address of a rank."""
        return f"{SUBNET}.{rank + 1}"

    def names(self) -> list[str]:
        """All namespaces."""
        return [self.hub, *(self.namespace(r) for r in range(self.ranks))]

    def build(self) -> list[list[str]]:
        """Commands that make everything but the shaping."""
        steps = [["ip", "netns", "add", name] for name in self.names()]
        steps += [
            ["ip", "-n", self.hub, "link", "add", "br0", "type", "bridge"],
            ["ip", "-n", self.hub, "link", "set", "br0", "mtu", str(MTU)],
            ["ip", "-n", self.hub, "link", "set", "br0", "up"],
        ]
        for rank in range(self.ranks):
            own, port = self.namespace(rank), f"p{rank}"
            steps += [
                ["ip", "link", "add", "eth", "netns", own, "type", "veth",
                 "peer", "name", port, "netns", self.hub],
                ["ip", "-n", own, "addr", "add", f"{self.address(rank)}/24", "dev", "eth"],
                ["ip", "-n", own, "link", "set", "eth", "mtu", str(MTU)],
                ["ip", "-n", self.hub, "link", "set", port, "mtu", str(MTU)],
                ["ip", "-n", own, "link", "set", "lo", "up"],
                ["ip", "-n", own, "link", "set", "eth", "up"],
                ["ip", "-n", self.hub, "link", "set", port, "master", "br0"],
                ["ip", "-n", self.hub, "link", "set", port, "up"],
            ]  # fmt: skip
        return steps

    def shape(self, mbit: float) -> list[list[str]]:
        """Commands that give every link, both ways, a rate in 10^6 bit/s."""
        ends = [
            end
            for rank in range(self.ranks)
            for end in ((self.namespace(rank), "eth"), (self.hub, f"p{rank}"))
        ]
        how = ["tbf", "rate", f"{round(mbit * 1000)}kbit",
               "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES)]  # fmt: skip
        return [
            ["tc", "-n", name, "qdisc", "replace", "dev", device, "root", *how]
            for name, device in ends
        ]


def why_not() -> str:
    """Why namespaces cannot be made here, "" if they can."""
    if os.geteuid() != 0:
        return "needs root: network namespaces and traffic shaping"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)} (package iproute2)"
    probe = f"{PREFIX}-{os.getpid()}-probe"
    made = subprocess.run(
        ["ip", "netns", "add", probe], check=False, capture_output=True, text=True
    )
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    shaped = subprocess.run(
        ["tc", "-n", probe, "qdisc", "add", "dev", "lo", "root",
         "tbf", "rate", "1mbit", "burst", "2000", "limit", "4000"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return f"no token bucket here: {shaped.stderr.strip()}" if shaped.returncode else ""


def existing() -> list[str]:
    """Names of all namespaces on this machine."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]


def stale(names: Iterable[str], alive: Callable[[int], bool]) -> list[str]:
    """Those of ours whose maker is gone."""
    found = [(name, _NAME.match(name)) for name in names]
    return [name for name, match in found if match and not alive(int(match[1]))]


def is_alive(process: int) -> bool:
    """Whether a process of this number exists."""
    return os.path.exists(f"/proc/{process}")  # noqa: PTH110 (a name in /proc, no path of ours)


def remove(names: Iterable[str]) -> None:
    """Delete namespaces; those that are gone already do no harm."""
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def network(ranks: int) -> Iterator[Plan]:
    """Namespaces for so many ranks while the block runs, removed however it ends.

    Those that a killed process left behind are removed first.
    """
    remove(stale(existing(), is_alive))
    plan = Plan(os.getpid(), ranks)
    try:
        _all(plan.build())
        for name in plan.names():
            _settle(name)
        yield plan
    finally:
        with _undisturbed():
            remove(plan.names())


def end_on_signals() -> None:
    """SIGINT and SIGTERM end the process as an exception does, so that networks are removed."""
    for one in _ENDING:
        signal.signal(one, lambda number, _: sys.exit(128 + number))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end the block have to wait for its end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def set_rate(plan: Plan, mbit: float) -> None:
    """Shape every link, both ways."""
    _all(plan.shape(mbit))


def _settle(name: str) -> None:
    """Socket settings of one namespace."""
    script = " && ".join(f"echo {v} > /proc/sys/{k}" for k, v in _SETTINGS.items())
    subprocess.run(["ip", "netns", "exec", name, "sh", "-c", script], check=True)


def _all(commands: list[list[str]]) -> None:
    for command in commands:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
