"""A training step of a small transformer, written as a trace by a simulator of its own.

Every rank walks through its program; a collective or message begins when all its members are
there. Times are whole microseconds. Apart from the order of passes, nothing here shares code or
ideas with what reads the trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
from tests.replay.traces import AUTOGRAD, COMM, MAIN, RankTrace

from foretrace.replay.schedule.named import named_schedule
from foretrace.replay.schedule.order import Phase
from foretrace.traces.store import TraceSet, TraceSetWriter

DEVICE = "NVIDIA A100-SXM4-80GB"
HIDDEN, HEADS, WIDTH, FFN, VOCAB = 512, 8, 64, 2048, 4096
_GEMM = "ampere_bf16_s16816gemm_bf16_128x128"


@dataclass
class Item:
    """A kernel, a pause of the host, or (with members) communication."""

    name: str
    dur: int
    op: str = ""
    shapes: str = ""
    thread: int = MAIN
    members: tuple[int, ...] = ()
    kind: str = ""
    key: str = ""
    bytes: int = 0
    beside: bool = False


@dataclass
class Step:
    """What the step looks like.

    Attributes:
        tp: tensor-parallel ranks, neighbours.
        pp: pipeline ranks.
        virtual: stages of a pipeline rank; several interleave.
        dp: copies; gradients are summed behind the last pass, or scattered if ``scatter``.
        scatter: gradients are scattered and parameters gathered, as sharded optimizers do.
        overlap: gradients of a layer are summed beside the last backward pass.
        full: parameters of a layer are gathered before each pass, gradients scattered behind it.
        layers: layers of a stage.
        batches: micro-batches of a step.
        sequences: sequences of a micro-batch.
        seq: their length.
        late: extra time of the last tensor-parallel rank for the embedding's gradient.
        again: the backward pass of a layer runs its attention again.
        pause: pause of the host before the embedding.
        equal: all layers run the same kernels.
        within: kind of the collectives within layers.
    """

    tp: int = 1
    pp: int = 1
    virtual: int = 1
    dp: int = 1
    scatter: bool = False
    overlap: bool = False
    full: bool = False
    layers: int = 4
    batches: int = 3
    sequences: int = 2
    seq: int = 256
    late: int = 0
    again: bool = False
    pause: int = 0
    equal: bool = True
    within: str = "all_reduce"
    rows: dict[int, RankTrace] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.sequences * self.seq

    def write(self, path: Path) -> TraceSet:
        """Simulate one step and write all ranks."""
        ranks = range(self.tp * self.dp * self.pp)
        programs = {rank: self.program(rank) for rank in ranks}
        self.rows = {r: RankTrace(r, [self.tensor(r), self.copies(r)]) for r in ranks}
        self.at = dict.fromkeys(ranks, 100)
        self.sent: dict[str, int] = {}
        self.posted: dict[str, dict[int, int]] = {}
        self.until: dict[str, int] = {}
        place = dict.fromkeys(ranks, 0)
        moved = True
        while moved:
            moved = False
            for rank in ranks:
                while place[rank] < len(programs[rank]):
                    item = programs[rank][place[rank]]
                    if item.members and not self.meet(item, rank, programs, place):
                        break
                    if not item.members:
                        self.run(rank, item)
                        place[rank] += 1
                    moved = True
        assert all(place[r] == len(programs[r]) for r in ranks), "ranks wait for each other"
        end = max(self.at.values()) + 50
        for rank in ranks:
            self.rows[rank].mark(1, 50, end)
        writer = TraceSetWriter(path)
        for rank in ranks:
            tables = self.rows[rank].tables(len(ranks))
            info = msgspec.structs.replace(tables.info, device_name=DEVICE)
            writer.write_rank(replace(tables, info=info))
        writer.finish()
        return TraceSet.open(path)

    def stage(self, rank: int) -> int:
        return rank // (self.tp * self.dp)

    def tensor(self, rank: int) -> tuple[int, ...]:
        """The rank's tensor-parallel group."""
        first = rank - rank % self.tp
        return tuple(range(first, first + self.tp))

    def copies(self, rank: int) -> tuple[int, ...]:
        """Ranks with the same parameters."""
        first = self.stage(rank) * self.tp * self.dp + rank % self.tp
        return tuple(range(first, first + self.tp * self.dp, self.tp))

    def run(self, rank: int, item: Item) -> None:
        """A kernel, launched just before it starts."""
        if item.name == "pause":
            self.at[rank] += item.dur
            return
        rows, start = self.rows[rank], self.at[rank]
        name = item.op
        dtypes = '["c10::BFloat16", "c10::BFloat16"]'
        rows.op(name, start - 9, 7, item.thread, shapes=item.shapes, dtypes=dtypes)
        if item.thread == AUTOGRAD:
            rows.op(f"autograd::engine::evaluate_function: {name}", start - 9, 7, AUTOGRAD)
        rows.kernel(item.name, start - 8, start, item.dur, thread=item.thread)
        self.at[rank] += item.dur

    def meet(
        self, item: Item, rank: int, programs: dict[int, list[Item]], place: dict[int, int]
    ) -> bool:
        """Run communication if all its members are there; a sender need not wait."""
        if item.kind == "send":
            return self.pass_on(item, rank, place)
        if item.beside or item.kind == "wait":
            return self.post(item, rank, place)
        here = {m: programs[m][place[m]] for m in item.members if place[m] < len(programs[m])}
        if any(m not in here or here[m].key != item.key for m in item.members):
            return False
        last = max(self.at[m] for m in item.members)
        for m in item.members:
            rows, start = self.rows[m], self.at[m]
            call = rows.call(f"launch {item.name}", start - 8, 5, here[m].thread)
            work = rows.work(item.name, start, last - start + item.dur, COMM, call)
            size = {"bytes_in": item.bytes, "bytes_out": item.bytes}
            group = rows.groups.index(item.members)
            rows.operation(item.kind, work, call, group=group, group_size=len(here), **size)
            self.at[m] = last + item.dur
            place[m] += 1
        return True

    def post(self, item: Item, rank: int, place: dict[int, int]) -> bool:
        """Communication beside the computation, or the wait for it."""
        if item.kind == "wait":
            if item.key not in self.until:
                return False
            self.at[rank] = max(self.at[rank], self.until[item.key])
            place[rank] += 1
            return True
        posts = self.posted.setdefault(item.key, {})
        posts[rank] = self.at[rank]
        if len(posts) == len(item.members):
            begun = max(*posts.values(), self.until.get(f"last {item.members}", 0))
            for m, at in posts.items():
                rows = self.rows[m]
                start = max(at, self.until.get(f"last {item.members}", 0))
                call = rows.call(f"launch {item.name}", at - 3, 2, item.thread)
                work = rows.work(item.name, start, begun - start + item.dur, COMM, call)
                size = {"bytes_in": item.bytes, "bytes_out": item.bytes}
                group = rows.groups.index(item.members)
                rows.operation(item.kind, work, call, group=group, group_size=len(posts), **size)
            self.until[item.key] = self.until[f"last {item.members}"] = begun + item.dur
        place[rank] += 1
        return True

    def pass_on(self, item: Item, rank: int, place: dict[int, int]) -> bool:
        """One end of a message: the receiver waits until the sender has begun."""
        sender = rank == int(item.key.split()[1])
        if not sender and item.key not in self.sent:
            return False
        rows, start = self.rows[rank], self.at[rank]
        begun = self.sent.setdefault(item.key, start)
        dur = max(begun - start, 0) + item.dur
        call = rows.call(f"launch {item.name}", start - 8, 5)
        work = rows.work(item.name, start, dur, COMM, call)
        peer = next(m for m in item.members if m != rank)
        size = {"bytes_in": item.bytes, "bytes_out": item.bytes}
        rows.operation("send" if sender else "recv", work, call, p2p=True, peer=peer, **size)
        self.at[rank] = start + dur
        place[rank] += 1
        return True

    def program(self, rank: int) -> list[Item]:
        """All of a rank's step."""
        own = self.stage(rank)
        order = named_schedule("1f1b", self.pp, self.batches, self.virtual)
        rows = np.flatnonzero(order.rank == own).tolist()
        items: list[Item] = []
        for row in rows:
            one = self.forward if order.phase[row] == Phase.FORWARD else self.backward
            items += one(rank, int(order.micro_batch[row]), int(order.stage[row]))
        adam = Item("multi_tensor_apply_kernel<AdamFunctor>", 200, "adam", "[[64]]")
        zero = Item("fill_kernel", 21, "aten::zero_", "[[8]]")
        return [*items, zero, *self.state(rank, "reduce"), adam, adam, *self.state(rank, "gather")]

    def forward(self, rank: int, batch: int, stage: int) -> list[Item]:
        t = self.tokens
        items = self.message(rank, stage - 1, f"F{batch} {stage}", sends=False)
        if stage == 0:
            items.append(Item("pause", self.pause))
            items.append(self.kernel("embedding_lookup", 50, "aten::embedding", [VOCAB, HIDDEN]))
        for number in range(self.layers):
            items += self.shards(rank, "all_gather", f"{batch} {number} ahead")
            items += self.layer_forward(rank, number, f"{batch} {stage} {number}")
        if stage == self.pp * self.virtual - 1:
            items.append(self.product(300, t, VOCAB // self.tp, HIDDEN))
            items.append(self.kernel("cross_entropy", 120, "aten::nll_loss", [t, VOCAB]))
        return items + self.message(rank, stage + 1, f"F{batch} {stage + 1}", sends=True)

    def backward(self, rank: int, batch: int, stage: int) -> list[Item]:
        t = self.tokens
        items = self.message(rank, stage + 1, f"B{batch} {stage}", sends=False)
        if stage == self.pp * self.virtual - 1:
            items.append(self.kernel("cross_entropy_grad", 90, "NllBackward", [t, VOCAB], AUTOGRAD))
            items.append(self.product(310, t, HIDDEN, VOCAB // self.tp, AUTOGRAD))
            items.append(self.product(320, VOCAB // self.tp, HIDDEN, t, AUTOGRAD))
            if batch == self.batches - 1:
                items += self.beside(rank, "head", VOCAB * HIDDEN // self.tp)
        for number in reversed(range(self.layers)):
            items += self.shards(rank, "all_gather", f"{batch} {number} back", AUTOGRAD)
            items += self.layer_backward(rank, number, f"{batch} {stage} {number}")
            items += self.shards(rank, "reduce_scatter", f"{batch} {number}", AUTOGRAD)
            if batch == self.batches - 1:
                items += self.beside(rank, f"layer {number}", self.of_layer)
        if stage == 0:
            late = self.late if rank % self.tp == self.tp - 1 else 0
            kernel = "indexing_backward_kernel"
            items.append(self.kernel(kernel, 60 + late, "EmbeddingBackward", [VOCAB], AUTOGRAD))
            if batch == self.batches - 1:
                items += self.beside(rank, "embedding", VOCAB * HIDDEN // self.tp)
        return items + self.message(rank, stage - 1, f"B{batch} {stage - 1}", sends=True)

    def layer_forward(self, rank: int, number: int, key: str) -> list[Item]:
        t, p = self.tokens, self.tp
        width = HEADS // p * WIDTH
        heads = [self.sequences, self.seq, HEADS // p, WIDTH]
        name = "layer_norm_kernel" if self.equal else f"layer_norm_kernel_{number}"
        return [
            self.kernel(name, 30, f"aten::layer_norm{'' if self.equal else number}", [t, HIDDEN]),
            self.product(100, t, 3 * width, HIDDEN),
            self.kernel("flash_fwd_kernel", 80, "aten::_flash_attention_forward", heads, n=3),
            self.product(40, t, HIDDEN, width),
            *self.reduce(rank, 70, f"{key} attention"),
            self.product(130, t, FFN // p, HIDDEN),
            self.kernel("vectorized_elementwise_kernel", 25, "aten::gelu", [t, FFN // p]),
            self.product(140, t, HIDDEN, FFN // p),
            *self.reduce(rank, 70, f"{key} mlp"),
        ]

    def layer_backward(self, rank: int, number: int, key: str) -> list[Item]:
        t, p, b = self.tokens, self.tp, AUTOGRAD
        width = HEADS // p * WIDTH
        heads = [self.sequences, self.seq, HEADS // p, WIDTH]
        name = "layer_norm_grad" if self.equal else f"layer_norm_grad_{number}"
        again = [self.kernel("flash_fwd_kernel", 80, "aten::_flash_attention_forward", heads, b, 3)]
        return [
            self.product(141, t, FFN // p, HIDDEN, b),
            self.product(142, HIDDEN, FFN // p, t, b),
            self.kernel("gelu_backward_kernel", 35, "GeluBackward", [t, FFN // p], b),
            self.product(131, t, HIDDEN, FFN // p, b),
            *self.reduce(rank, 70, f"{key} mlp back", b),
            self.product(132, FFN // p, HIDDEN, t, b),
            *(again if self.again else []),
            self.product(41, t, width, HIDDEN, b),
            self.product(42, HIDDEN, width, t, b),
            self.kernel("flash_bwd_kernel", 190, "aten::_flash_attention_backward", heads, b, 4),
            self.product(101, t, HIDDEN, 3 * width, b),
            *self.reduce(rank, 70, f"{key} attention back", b),
            self.product(102, 3 * width, HIDDEN, t, b),
            self.kernel(name, 33, f"LayerNormBackward{'' if self.equal else number}", [t, 1], b),
        ]

    def product(self, dur: int, m: int, n: int, k: int, thread: int = MAIN) -> Item:
        return Item(_GEMM, dur, "aten::mm", f"[[{m}, {k}], [{k}, {n}]]", thread)

    def kernel(
        self, name: str, dur: int, op: str, shape: list[int], thread: int = MAIN, n: int = 1
    ) -> Item:
        return Item(name, dur, op, str([shape] * n), thread)

    def reduce(self, rank: int, dur: int, key: str, thread: int = MAIN) -> list[Item]:
        if self.tp == 1:
            return []
        members = self.tensor(rank)
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        size = self.tokens * HIDDEN * 2
        return [Item(name, dur, "", "", thread, members, self.within, f"{members} {key}", size)]

    def state(self, rank: int, what: str) -> list[Item]:
        """Gradients, or parameters."""
        if self.dp == 1 or self.full or (what == "gather" and not self.scatter):
            return []
        if self.overlap:
            members = self.copies(rank)
            parts = ["head", *(f"layer {n}" for n in reversed(range(self.layers))), "embedding"]
            return [Item("", 0, members=members, kind="wait", key=f"{members} {p}") for p in parts]
        kind = {"reduce": "reduce_scatter", "gather": "all_gather"}[what]
        kind = kind if self.scatter else "all_reduce"
        word = {"all_reduce": "AllReduce_Sum_f32", "all_gather": "AllGather"}
        name = f"ncclDevKernel_{word.get(kind, 'ReduceScatter_Sum_f32')}_RING_LL"
        members, size = self.copies(rank), self.parameters(rank) * (2 if what == "gather" else 4)
        return [Item(name, 600, "", "", MAIN, members, kind, f"{members} {what}", size)]

    def shards(self, rank: int, kind: str, key: str, thread: int = MAIN) -> list[Item]:
        """Parameters or gradients of a layer whose copies share them."""
        if not self.full:
            return []
        members, size = self.copies(rank), self.of_layer * (2 if kind == "all_gather" else 4)
        word = "AllGather" if kind == "all_gather" else "ReduceScatter_Sum_f32"
        name, what = f"ncclDevKernel_{word}_RING_LL", f"{members} {kind} {key}"
        return [Item(name, 300, "", "", thread, members, kind, what, size)]

    def beside(self, rank: int, part: str, parameters: int) -> list[Item]:
        """Gradients of a part of the model that are summed beside the computation."""
        if not self.overlap:
            return []
        members = self.copies(rank)
        name, key = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", f"{members} {part}"
        size = parameters * 4
        dur = size // 20_000
        return [Item(name, dur, "", "", AUTOGRAD, members, "all_reduce", key, size, beside=True)]

    @property
    def of_layer(self) -> int:
        """Parameters of a rank's part of a layer."""
        return (4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN) // self.tp

    def parameters(self, rank: int) -> int:
        """Parameters of a rank."""
        ends = (self.stage(rank) == 0) + (self.stage(rank) == self.pp - 1)
        matrices = self.layers * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN) + ends * VOCAB * HIDDEN
        return matrices // self.tp

    def message(self, rank: int, peer_stage: int, what: str, sends: bool) -> list[Item]:
        if not 0 <= peer_stage < self.pp * self.virtual:
            return []
        peer = rank + (peer_stage % self.pp - self.stage(rank)) * self.tp * self.dp
        first, second = (rank, peer) if sends else (peer, rank)
        key = f"p2p {first} {second} {what}"
        members = tuple(sorted((first, second)))
        size = self.tokens * HIDDEN * 2
        return [Item("ncclDevKernel_SendRecv", 15, "", "", MAIN, members, "send", key, size)]
