"""A small data-parallel job, healthy or with one fault; without it, its price is known."""

from __future__ import annotations

from dataclasses import dataclass

from tests.analysis.graphs import Edge, GraphBuilder

from foretrace.replay.graph import EdgeKind, JobGraph, TaskKind

ORDER = EdgeKind.HOST_ORDER


@dataclass(frozen=True, kw_only=True)
class Job:
    """Every step: load data, copy it, some layers, an all-reduce, an optimizer kernel.

    Times are ns. ``host_ns`` is host work before each launch, so that devices decide by default.
    """

    ranks: int = 4
    steps: int = 3
    layers: int = 6
    kernel_ns: int = 10_000
    host_ns: int = 1_000
    comm_ns: int = 4_000
    loader_ns: int = 0
    copy_ns: int = 0
    stall: tuple[int, int] = (-1, 0)  # rank and ns, in every step
    slow_device: tuple[int, float] = (-1, 1.0)
    slow_host: tuple[int, float] = (-1, 1.0)
    slow_kernel: tuple[int, float] = (-1, 1.0)  # only one of the kernels
    late: tuple[int, int] = (-1, 0)
    sync: bool = False  # the host waits for the device in the middle of each step

    def build(self) -> JobGraph:
        b = GraphBuilder(groups=[tuple(range(self.ranks))])
        ends: list[list[Edge]] = [[(self._skew(b, rank), ORDER)] for rank in range(self.ranks)]
        for step in range(self.steps):
            workers = [_Worker(self, b, step, rank, ends[rank]) for rank in range(self.ranks)]
            for worker in workers:
                worker.forward()
            before = {w.rank: w.launched() for w in workers}
            comm = b.collective(
                "all_reduce", 0, before, self.comm_ns, size_bytes=1 << 24, step=step
            )
            ends = [w.finish(comm[w.rank]) for w in workers]
        return b.build()

    def _skew(self, b: GraphBuilder, rank: int) -> int:
        late = self.late[1] if rank == self.late[0] else 0
        return b.task(TaskKind.SKEW, rank, late, stream=1, step=-1, name="(enters the window)")


class _Worker:
    """One rank in one step."""

    def __init__(self, job: Job, b: GraphBuilder, step: int, rank: int, after: list[Edge]) -> None:
        self.job, self.b, self.step, self.rank = job, b, step, rank
        self.begin = self.host(TaskKind.MARK, 0, *after)
        self.last = self.begin
        self.kernel = -1

    def host(self, kind: TaskKind, dur: int, *edges: Edge, name: str = "") -> int:
        return self.b.task(kind, self.rank, dur, *edges, stream=1, step=self.step, name=name)

    def work(self, dur: int, name: str = "aten::mm") -> None:
        slow = self.job.slow_host[1] if self.rank == self.job.slow_host[0] else 1
        self.last = self.host(TaskKind.HOST, round(dur * slow), (self.last, ORDER), name=name)

    def launch(self) -> tuple[int, EdgeKind, int]:
        self.work(self.job.host_ns)
        self.last = self.host(TaskKind.CALL, 200, (self.last, ORDER), name="cudaLaunchKernel")
        return self.last, EdgeKind.LAUNCH, 100

    def device(self, kind: TaskKind, dur: int, *edges: Edge, name: str) -> None:
        slow = self.job.slow_device[1] if self.rank == self.job.slow_device[0] else 1
        if name == "softmax" and self.rank == self.job.slow_kernel[0]:
            slow = self.job.slow_kernel[1]
        order: list[Edge] = [(self.kernel, EdgeKind.STREAM)] if self.kernel >= 0 else []
        self.kernel = self.b.task(
            kind, self.rank, round(dur * slow), *order, *edges, name=name, step=self.step
        )

    def forward(self) -> None:
        job = self.job
        if job.loader_ns:
            self.work(job.loader_ns, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter")
        if job.copy_ns:
            self.device(TaskKind.MEMCPY, job.copy_ns, self.launch(), name="Memcpy HtoD")
        for layer in range(job.layers):
            if layer == job.layers // 2:
                self.halfway()
            name = "softmax" if layer == 1 else "gemm"
            self.device(TaskKind.KERNEL, job.kernel_ns, self.launch(), name=name)

    def halfway(self) -> None:
        rank, dur = self.job.stall
        if self.rank == rank:
            self.last = self.host(TaskKind.STALL, dur, (self.last, ORDER), name="(host stall)")
        if self.job.sync:
            edges: list[Edge] = [(self.last, ORDER), (self.kernel, EdgeKind.SYNC)]
            self.last = self.host(TaskKind.SYNC, 50, *edges, name="cudaStreamSynchronize")

    def launched(self) -> list[Edge]:
        return [(self.kernel, EdgeKind.EVENT), self.launch()]

    def finish(self, comm: int) -> list[Edge]:
        """The optimizer; the host waits for it, so that steps do not overlap."""
        self.device(TaskKind.KERNEL, 1_000, (comm, EdgeKind.EVENT), self.launch(), name="adam")
        wait: list[Edge] = [(self.last, ORDER), (self.kernel, EdgeKind.SYNC)]
        self.last = self.host(TaskKind.SYNC, 50, *wait, name="cudaDeviceSynchronize")
        end = self.host(TaskKind.MARK, 0, (self.last, ORDER))
        self.b.mark(self.step, self.rank, self.begin, end)
        return [(end, ORDER)]


def pipeline(stages: int = 2, micro: int = 4, uneven: int = 0) -> JobGraph:
    """Forward passes handed from stage to stage; the last stage takes ``uneven`` ns more each."""
    b = GraphBuilder(groups=[(s, s + 1) for s in range(stages - 1)] or [(0,)])
    begins = [b.task(TaskKind.MARK, s, 0, stream=1) for s in range(stages)]
    last: dict[int, list[Edge]] = {
        s: [(b.task(TaskKind.CALL, s, 10, (begins[s], ORDER), stream=1), EdgeKind.LAUNCH, 0)]
        for s in range(stages)
    }
    for _ in range(micro):
        for s in range(stages):
            dur = 1_000 + (uneven if s == stages - 1 else 0)
            kernel = b.task(TaskKind.KERNEL, s, dur, *last[s], name="layer")
            last[s] = [(kernel, EdgeKind.STREAM)]
            if s + 1 < stages:
                before = {s: last[s], s + 1: last[s + 1]}
                for rank, task in b.collective("send_recv", s, before, 50, stream=7).items():
                    last[rank] = [(task, EdgeKind.STREAM)]
    for s in range(stages):
        end = b.task(TaskKind.MARK, s, 0, (last[s][0][0], EdgeKind.SYNC), stream=1)
        b.mark(0, s, begins[s], end)
    return b.build()
