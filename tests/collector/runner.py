"""Starts real jobs of several processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

JOB = Path(__file__).parent / "jobs" / "job.py"


@dataclass(frozen=True)
class Finished:
    """A job that has ended.

    Attributes:
        out: folder that it wrote to.
        status: exit status of each rank.
        said: standard error of each rank, the profiler's own chatter left out.
    """

    out: Path
    status: list[int]
    said: list[str]

    @property
    def lines(self) -> list[str]:
        """All lines that foretrace printed."""
        return [
            line
            for said in self.said
            for line in said.splitlines()
            if line.startswith("foretrace: ")
        ]


def run_job(scenario: str, world: int, out: Path) -> Finished:
    """Run all ranks of a scenario to their end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    ranks = [
        subprocess.Popen(
            [sys.executable, JOB, scenario, str(rank), str(world), str(port), str(out)],
            stderr=subprocess.PIPE,
            text=True,
            env=environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        )
        for rank in range(world)
    ]
    said = []
    for rank in ranks:
        try:
            said.append(rank.communicate(timeout=120)[1])
        except subprocess.TimeoutExpired:
            for other in ranks:
                other.kill()
            raise
    said = ["\n".join(x for x in s.splitlines() if not x.startswith("USDT:")) for s in said]
    return Finished(out, [rank.returncode for rank in ranks], said)
