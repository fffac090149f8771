"""A small machine that really runs a training program: the truth that predictions are held to.

Each rank's program is a list of instructions of one host thread. When everything happens follows
from the instructions alone; the trace that the machine writes is all that foretrace gets to see.
All times are whole microseconds, and launches, streams and waits have no latency.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from tests.replay.traces import COMM, COMPUTE, RankTrace, Row

CALL, BLOCK = 5, 3
"""What a launching call takes, and what a blocking call takes beside its waiting."""


@dataclass(frozen=True)
class Op:
    """One instruction.

    Attributes:
        what: "work" (host), "kernel", "record" (an event on ``stream``), "wait" (``stream`` waits
            for the last event), "collective", "await" (the compute stream waits for the last
            collective), "sync" (with the device), "item" (copy to the host and wait for it).
        us: how long its host work, its kernel or its transfer takes.
        stream: stream of a kernel, record or wait.
    """

    what: str
    us: int = 0
    stream: int = COMPUTE


LAUNCHING = ("kernel", "collective", "item")


@dataclass
class Machine:
    """Runs the programs of all ranks.

    Attributes:
        programs: instructions of each rank; all ranks issue the same number of collectives.
        begins: when each rank's thread begins.
        pause: how long the host rests behind each instruction.
        longer: (rank, instruction) -> how much longer its work, kernel or transfer takes.
        slower: (rank, instruction) -> how much longer its call takes.
    """

    programs: list[list[Op]]
    begins: list[int]
    pause: int = 0
    longer: dict[tuple[int, int], int] = field(default_factory=dict)
    slower: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at = cache(self._at)
        self.arrives = cache(self._arrives)

    def us(self, rank: int, i: int) -> int:
        """How long an instruction's work takes."""
        return self.programs[rank][i].us + self.longer.get((rank, i), 0)

    def _at(self, rank: int, i: int) -> int:
        """When the host comes to an instruction."""
        return self.returns(rank, i - 1) + self.pause if i else self.begins[rank]

    def returns(self, rank: int, i: int) -> int:
        """When the host has done an instruction."""
        op, start = self.programs[rank][i], self.at(rank, i)
        if op.what == "work":
            return start + self.us(rank, i)
        if op.what == "sync":
            return max([start, *(self.ends(rank, j) for j in self.launched(rank, i))]) + BLOCK
        if op.what == "item":
            return self.ends(rank, i) + BLOCK
        return start + (CALL if op.what in LAUNCHING else 1) + self.slower.get((rank, i), 0)

    def launched(self, rank: int, before: int, stream: int | None = None) -> list[int]:
        """Instructions before one that launched work, on one stream or on any."""
        found = [j for j in range(before) if self.programs[rank][j].what in LAUNCHING]
        return [j for j in found if stream in (None, self.stream(rank, j))]

    def stream(self, rank: int, i: int) -> int:
        """Stream of an instruction's device work."""
        op = self.programs[rank][i]
        return COMM if op.what == "collective" else op.stream

    def _arrives(self, rank: int, i: int) -> int:
        """When the stream comes to the work that an instruction launched."""
        stream = self.stream(rank, i)
        waited = self.launched(rank, i, stream)[-1:]
        if stream == COMM:
            waited += self.launched(rank, i, COMPUTE)[-1:]
        waited += self.awaited(rank, i, stream)
        return max([self.at(rank, i), *(self.ends(rank, j) for j in waited)])

    def awaited(self, rank: int, i: int, stream: int) -> list[int]:
        """Work that the waits on a stream since its last launch wait for."""
        first = max(self.launched(rank, i, stream)[-1:], default=0)
        found = []
        for j in range(first, i):
            op = self.programs[rank][j]
            if op.what == "await" and stream == COMPUTE:
                found += self.launched(rank, j, COMM)[-1:]
            if op.what == "wait" and op.stream == stream:
                found += self.recorded(rank, j)
        return found

    def recorded(self, rank: int, wait: int) -> list[int]:
        """Work in front of the event that a wait waits for."""
        records = [j for j in range(wait) if self.programs[rank][j].what == "record"]
        if not records:
            return []
        last = records[-1]
        return self.launched(rank, last, self.programs[rank][last].stream)[-1:]

    def ends(self, rank: int, i: int) -> int:
        """When the device work of an instruction ends."""
        if self.programs[rank][i].what != "collective":
            return self.arrives(rank, i) + self.us(rank, i)
        number = len(self.launched(rank, i, COMM))
        members = [self.launched(r, len(p), COMM)[number] for r, p in enumerate(self.programs)]
        last = max(self.arrives(r, j) for r, j in enumerate(members))
        return last + max(self.us(r, j) for r, j in enumerate(members))

    def traces(self) -> list[RankTrace]:
        """What a profiler on each rank would have recorded."""
        return [self.trace(rank) for rank in range(len(self.programs))]

    def trace(self, rank: int) -> RankTrace:
        """Rows of one rank."""
        r = RankTrace(rank=rank, groups=[tuple(range(len(self.programs)))])
        program = self.programs[rank]
        events: dict[int, Row] = {}
        collectives: list[dict[str, Row]] = []
        for i, op in enumerate(program):
            start, name = self.at(rank, i), f"{op.what} {rank}.{i}"
            took = self.returns(rank, i) - start
            if op.what == "work":
                r.op("work", start, took)
            elif op.what == "sync":
                r.call("cudaDeviceSynchronize", start, took)
            elif op.what == "await":
                wait = r.op("record_param_comms", start, took)
                if collectives:
                    collectives[-1].setdefault("wait", wait)
            elif op.what == "record":
                events[i] = r.call("cudaEventRecord", start, took)
            elif op.what == "wait":
                self._wait_rows(r, rank, i, events)
            else:
                call = r.call(f"call {rank}.{i}", start, took)
                begun, end = self.arrives(rank, i), self.ends(rank, i)
                kind = "memcpy" if op.what == "item" else "kernel"
                full = f"Memcpy DtoH (Device -> Pageable) {name}" if kind == "memcpy" else name
                work = r.work(full, begun, end - begun, self.stream(rank, i), call, kind=kind)
                if op.what == "collective":
                    collectives.append({"work": work, "call": call})
        for number, rows in enumerate(collectives):
            r.operation("all_reduce", rows["work"], rows["call"], rows.get("wait"),
                        group=0, seq=number)  # fmt: skip
        r.mark(1, self.at(rank, 0), self.at(rank, len(program)))
        return r

    def _wait_rows(self, r: RankTrace, rank: int, i: int, events: dict[int, Row]) -> None:
        """A wait call and the profiler's own row of it."""
        start = self.at(rank, i)
        call = r.call("cudaStreamWaitEvent", start, self.returns(rank, i) - start)
        if events:
            last = max(events)
            r.add("sync", "Stream Wait Event", start, 0, device=0,
                  stream=self.programs[rank][i].stream,
                  wait_stream=self.programs[rank][last].stream,
                  correlation=call.values["correlation"],
                  wait_correlation=events[last].values["correlation"])  # fmt: skip
