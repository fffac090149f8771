"""Starts the ranks of a dry run, each in a process of its own, and joins them to a trace set."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from foretrace.collector.dryrun.mailbox import wanted_ranks
from foretrace.collector.dryrun.roles import candidates, families_with_sends, signature
from foretrace.collector.dryrun.routing import parse_routing
from foretrace.collector.dryrun.spec import (
    DryRunResult,
    Record,
    ScriptError,
    Spec,
    read_record,
)
from foretrace.collector.dryrun.tables import dry_tables
from foretrace.traces.errors import ForetraceError
from foretrace.traces.store import RankTables, TraceSetWriter

_POLL_S = 0.02
_SHOWN_LINES = 60
_NODE = 8


@dataclass(slots=True)
class _Rank:
    """A rank that runs.

    Attributes:
        process: its process.
        folder: its raw files and its output.
        recorded: whether it is traced, or only answers messages.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    recorded: bool


@dataclass(slots=True)
class _Runner:
    """The processes of one dry run.

    Attributes:
        spec: of any rank; rank and folder are filled in.
        home: temporary folder of all of them.
        at_once: how many are started without being waited for.
        keep_all: trace those that were not asked for too.
        folders: folder of each traced rank that has ended.
        running: those that have not.
    """

    spec: Spec
    home: Path
    at_once: int
    keep_all: bool
    folders: dict[int, Path] = field(default_factory=dict)
    running: dict[int, _Rank] = field(default_factory=dict)

    def trace(self, ranks: Sequence[int]) -> None:
        """Run ``ranks``, and whichever others they wait for.

        Raises:
            ScriptError: the script failed on one of them.
        """
        queue = [rank for rank in ranks if rank not in self.folders]
        try:
            while queue or any(each.recorded for each in self.running.values()):
                self._start_wanted(queue)
                while queue and len(self.running) < self.at_once:
                    self._start(queue.pop(0), recorded=True)
                time.sleep(_POLL_S)
                for rank in [
                    r for r, each in self.running.items() if each.process.poll() is not None
                ]:
                    self._ended(rank)
        finally:
            self._stop()

    def _start_wanted(self, queue: list[int]) -> None:
        for rank in sorted(wanted_ranks(Path(self.spec.mailbox))):
            if rank in queue:
                queue.remove(rank)
                self._start(rank, recorded=True)
            elif rank not in self.running and not (self.home / f"rank-{rank}").exists():
                self._start(rank, recorded=self.keep_all)

    def _start(self, rank: int, recorded: bool) -> None:
        folder = self.home / f"rank-{rank}"
        folder.mkdir(exist_ok=True)
        spec = msgspec.structs.replace(self.spec, rank=rank, folder=str(folder), recorded=recorded)
        path = folder / "spec.json"
        path.write_bytes(msgspec.json.encode(spec))
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", "foretrace.collector.dryrun.child", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(spec),
            )
        self.running[rank] = _Rank(process, folder, recorded)

    def _ended(self, rank: int) -> None:
        each = self.running.pop(rank)
        status = each.process.returncode
        if status == 0 and (not each.recorded or read_record(each.folder) is not None):
            if each.recorded:
                self.folders[rank] = each.folder
            return
        _show_output(each.folder / "output")
        if status < 0:
            raise ScriptError(
                f"{self.spec.script}: rank {rank} was killed by "
                f"{signal.Signals(-status).name}; its output stands above",
                128 - status,
            )
        if status == 0:
            raise ScriptError(
                f"{self.spec.script}: rank {rank} ended the process itself (os._exit), which "
                "leaves nothing to record; let the script return"
            )
        raise ScriptError(
            f"{self.spec.script}: rank {rank} of {self.spec.world_size} ended with exit status "
            f"{status}; its output stands above",
            status,
        )

    def _stop(self) -> None:
        for each in self.running.values():
            each.process.kill()
            each.process.wait()
        self.running.clear()


def dry_run(
    script: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    world_size: int,
    ranks: Sequence[int] | Literal["unique"] = (0,),
    out: str | os.PathLike[str],
    fake: bool = False,
    routing: str = "",
) -> DryRunResult:
    """Run a training script as ranks of a world that does not exist, and write a trace set.

    Args:
        script: path of the script; it runs as if torchrun had started it.
        arguments: its arguments.
        world_size: ranks of the world.
        ranks: which are traced; "unique" for one of each role.
        out: path of the trace set.
        fake: run on tensors without data, which take neither memory nor time.
        routing: tokens for each expert: "uniform", "zipf:EXPONENT" or a JSON file of counts.

    Raises:
        ForetraceError: no such script or rank, no torch, an unknown routing.
        ScriptError: the script failed; its output has been printed.
    """
    began = time.perf_counter()
    _check(Path(script), world_size, [] if ranks == "unique" else [int(r) for r in ranks])
    if routing:
        routing = str(Path(routing).resolve()) if routing.endswith(".json") else routing
        parse_routing(routing)
    with tempfile.TemporaryDirectory(prefix="foretrace-dryrun-") as home:
        mailbox = Path(home) / "mailbox"
        mailbox.mkdir()
        spec = Spec(0, world_size, str(script), list(arguments), "", str(mailbox), fake, routing)
        cores = max(1, len(os.sched_getaffinity(0)))
        runner = _Runner(spec, Path(home), cores, keep_all=ranks == "unique")
        if ranks == "unique":
            found, roles, notes = _roles(runner)
        else:
            wanted = sorted({int(r) for r in ranks})
            runner.trace(wanted)
            found = {rank: _tables(runner, rank)[1] for rank in wanted}
            roles, notes = dict.fromkeys(wanted, 0), []
        writer = TraceSetWriter(out)
        for tables in found.values():
            writer.write_rank(tables)
        job: dict[str, object] = {"recorded_by": "foretrace.collector.dryrun"}
        if ranks == "unique":
            job["roles"] = {str(rank): number for rank, number in roles.items()}
        writer.finish(**job)
    return DryRunResult(
        path=Path(out),
        ranks=sorted(found),
        roles=roles,
        operations={r: t.info.counts.get("host_op", 0) for r, t in found.items()},
        collectives={r: len(t.collectives) for r, t in found.items()},
        bytes_in={r: sum(t.collectives["bytes_in"].to_pylist()) for r, t in found.items()},
        seconds=time.perf_counter() - began,
        notes=notes,
    )


def _roles(runner: _Runner) -> tuple[dict[int, RankTables], dict[int, int], list[str]]:
    """One rank of each role, how many ranks have it, and what the user should know."""
    last = runner.spec.world_size - 1
    runner.trace([0])
    record, _ = _tables(runner, 0)
    families = families_with_sends(record)
    while True:
        alike = candidates(record, families)
        runner.trace(list(alike))
        more = set().union(*(families_with_sends(_tables(runner, r)[0]) for r in alike))
        if more <= families:
            break
        families |= more
    runner.trace([last])  # a witness: uneven splits put their rest on the last ranks
    by_role: dict[str, int] = {}
    roles: dict[int, int] = {}
    found: dict[int, RankTables] = {}
    for rank, ranks in alike.items():
        tables = _tables(runner, rank)[1]
        first = by_role.setdefault(signature(tables), rank)
        found.setdefault(first, tables)
        roles[first] = roles.get(first, 0) + len(ranks)
    witness = _tables(runner, last)[1]
    group = next(rank for rank, ranks in alike.items() if last in ranks)
    if signature(witness) == signature(_tables(runner, group)[1]):
        return found, roles, []
    found[last], roles[last] = witness, 1
    note = (
        f"rank {last} does not do the same as rank {group}, although both have the same place in "
        "every group with sends; ranks between them may be of either role, or of a third"
    )
    return found, roles, [note]


def _tables(runner: _Runner, rank: int) -> tuple[Record, RankTables]:
    folder = runner.folders[rank]
    record = read_record(folder)
    if record is None:
        raise ScriptError(f"rank {rank} left no recording")
    return record, dry_tables(folder, record)


def _check(script: Path, world_size: int, ranks: Sequence[int]) -> None:
    if not script.is_file():
        raise ForetraceError(f"{script}: no such script")
    if world_size < 1:
        raise ForetraceError(f"world size {world_size}; expected 1 or more")
    for rank in ranks:
        if not 0 <= rank < world_size:
            raise ForetraceError(
                f"rank {rank}: a world of {world_size} has ranks 0 to {world_size - 1}"
            )
    if importlib.util.find_spec("torch") is None:
        raise ForetraceError(
            "a dry run needs torch, which is not installed here; run it in the environment that "
            "the script trains in (pip install 'foretrace[torch]')"
        )


def _environment(spec: Spec) -> dict[str, str]:
    """What torchrun would set, and where to find foretrace."""
    import foretrace

    node = min(_NODE, spec.world_size)
    home = str(Path(foretrace.__file__).parents[1])
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", ""))))
    return os.environ | {
        "PYTHONPATH": path,
        "RANK": str(spec.rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_RANK": str(spec.rank % node),
        "LOCAL_WORLD_SIZE": str(node),
        "GROUP_RANK": str(spec.rank // node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def _show_output(path: Path) -> None:
    lines = path.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
    sys.stderr.write("\n".join([*lines, ""]))
