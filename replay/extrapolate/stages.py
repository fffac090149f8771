"""Templates of a layout: which blocks a stage runs, and what it sends for sharded state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from foretrace.replay.extrapolate.program import Labelled
from foretrace.replay.extrapolate.template import Message, Part, Pieces, chain, template, together
from foretrace.replay.graph import I64
from foretrace.replay.layout import GROUP_KINDS, Layout, group_size
from foretrace.replay.schedule.order import Phase, Schedule
from foretrace.replay.workload.operations import Block, Workload
from foretrace.traces.schema import COLLECTIVE_KINDS

_ALL = 1 << 30
_PARAMETER = 2  # bytes of a gathered parameter: 16-bit working copies
_OPTIMIZER_BYTES = 30
"""Adam with fp32 master copies reads gradient, master and two moments (16 bytes) and writes master,
two moments (12) and the working copy (2)."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A workload with the duration of each block's operations.

    Attributes:
        workload: the workload.
        dur_ns: for each block the duration of each operation, 0 for communication.
        optimizer_ns: (bytes) -> duration of an optimizer step that moves so many bytes.
        launch_ns: what the host takes for the launches of one operation.
    """

    workload: Workload
    dur_ns: tuple[I64, ...]
    optimizer_ns: Callable[[float], int]
    launch_ns: float = 0.0


class Stages:
    """Templates of all stages of a schedule, each made once."""

    def __init__(self, timed: Timed, layout: Layout, layers: tuple[int, ...]) -> None:
        self.timed, self.layout = timed, layout
        self.blocks = stage_blocks(timed.workload, layers)
        self.made: dict[tuple[object, ...], Labelled] = {}
        self.pieces: dict[tuple[object, ...], Pieces] = {}  # stages alike share them

    def template_of(self, schedule: Schedule, rows: list[int], edge: tuple[bool, bool]) -> Labelled:
        """Template of rows that run together.

        Args:
            schedule: the schedule.
            rows: one row, or two that run together.
            edge: whether it is the stage's first row of the step, and its last one that
                computes gradients of weights; for two rows together, of either.
        """
        keys = []
        for row in rows:
            phase, stage = int(schedule.phase[row]), int(schedule.stage[row])
            first = edge[0] and phase == Phase.FORWARD
            last = edge[1] and phase in (Phase.BACKWARD, Phase.WEIGHT)
            keys.append((stage, phase, first, last))
        key = tuple(keys)
        if key not in self.made:
            made = [self._single(*k) for k in keys]
            pieces = (
                made[0].pieces
                if len(made) == 1
                else together((made[0].pieces, made[1].pieces), self.layout.pp > 1)
            )
            self.made[key] = Labelled(" + ".join(m.name for m in made), pieces)
        return self.made[key]

    def finish(self, pipeline_stages: list[int]) -> Labelled:
        """End of the step of a rank that holds these stages: norm of gradients, optimizer."""
        layout = self.layout
        key = ("finish", *pipeline_stages)
        if key in self.made:
            return self.made[key]
        held = [self.timed.workload.blocks[b] for s in pipeline_stages for b in self.blocks[s]]
        shards = layout.shards if layout.zero else 1
        experts = layout.edp if layout.zero else 1
        own = sum(b.parameters / shards + b.expert_parameters / experts for b in held)
        norm = Message(COLLECTIVE_KINDS.index("all_reduce"), "world", 4)
        gathers: list[Message] = []
        if layout.zero in (1, 2) and not layout.overlap_parameters:
            gathers = _merged([m for b in held for m in self._gathers(b)], layout.bucket_bytes)
        work = self.timed.optimizer_ns(own * _OPTIMIZER_BYTES)
        before = [norm] if layout.gpus > 1 else []
        self.made[key] = Labelled("optimizer", chain(before, work, gathers))
        return self.made[key]

    def _single(self, stage: int, phase: int, first: bool, last: bool) -> Labelled:
        key = (self.blocks[stage], phase, first, last)
        if key not in self.pieces:
            self.pieces[key] = self._pieces(*key)
        return Labelled(f"{Phase(phase).name.lower()} stage {stage}", self.pieces[key])

    def _pieces(self, blocks: tuple[int, ...], phase: int, first: bool, last: bool) -> Pieces:
        layout = self.layout
        backward = phase != Phase.FORWARD
        phases = (Phase.INPUT, Phase.WEIGHT) if phase == Phase.BACKWARD else (phase,)
        numbers = blocks[:: -1 if backward else 1]
        sharded = layout.zero == 3
        gathers = (sharded and phase != Phase.WEIGHT) or (
            first and layout.zero in (1, 2) and layout.overlap_parameters
        )
        reduces = last or (sharded and phase in (Phase.BACKWARD, Phase.WEIGHT))
        parts = []
        for number in numbers:
            block = self.timed.workload.blocks[number]
            parts.append(
                Part(
                    block.operations,
                    self.timed.dur_ns[number],
                    phases,
                    gathers=tuple(self._gathers(block)) if gathers else (),
                    reductions=tuple(self._reductions(block)) if reduces else (),
                    launch_ns=self.timed.launch_ns,
                )
            )
        if reduces and not sharded:
            parts = self._bucketed(parts)
        if reduces and not layout.overlap_gradients:
            parts = _held_back(parts)
        ahead = 1 if sharded else _ALL
        return template(parts, GROUP_KINDS, ahead, layout.pp > 1)

    def _gathers(self, block: Block) -> list[Message]:
        kind = COLLECTIVE_KINDS.index("all_gather")
        both = (("shard", block.parameters), ("edp", block.expert_parameters))
        return [
            Message(kind, group, count * _PARAMETER)
            for group, count in both
            if count and group_size(self.layout, group) > 1
        ]

    def _reductions(self, block: Block) -> list[Message]:
        layout = self.layout
        whole = COLLECTIVE_KINDS.index("all_reduce")
        part = COLLECTIVE_KINDS.index("reduce_scatter")
        width = layout.accumulate_bytes
        found = []
        if layout.zero == 0:
            both = (("dp", block.parameters, whole), ("edp", block.expert_parameters, whole))
        else:
            both = (("shard", block.parameters, part), ("edp", block.expert_parameters, part))
        for group, count, kind in both:
            if count and group_size(layout, group) > 1:
                found.append(Message(kind, group, count * width))
        copies = group_size(layout, "replica")
        if layout.zero and copies > 1:
            found.append(Message(whole, "replica", block.parameters * width // layout.shards))
        return found

    def _bucketed(self, parts: list[Part]) -> list[Part]:
        """Reductions that are put off until a bucket is full, or the last block is through."""
        limit = self.layout.bucket_bytes
        open_bytes: dict[tuple[int, str], int] = {}
        result = []
        for place, part in enumerate(parts):
            ready = []
            for message in part.reductions:
                key = (message.collective, message.group)
                open_bytes[key] = open_bytes.get(key, 0) + message.bytes
            for key, size in list(open_bytes.items()):
                if size >= limit or place == len(parts) - 1:
                    ready.append(Message(*key, open_bytes.pop(key)))
            result.append(replace(part, reductions=tuple(ready)))
        return result


def _merged(messages: list[Message], limit: int) -> list[Message]:
    """Messages of one kind and group as one, until a bucket is full."""
    result: list[Message] = []
    for message in messages:
        alike = result and replace(result[-1], bytes=0) == replace(message, bytes=0)
        if alike and result[-1].bytes < limit:
            result[-1] = replace(message, bytes=result[-1].bytes + message.bytes)
        else:
            result.append(message)
    return result


def _held_back(parts: list[Part]) -> list[Part]:
    """All reductions behind the last block."""
    together_ = tuple(m for part in parts for m in part.reductions)
    bare = [replace(part, reductions=()) for part in parts]
    return [*bare[:-1], replace(bare[-1], reductions=together_)]


def stage_blocks(workload: Workload, layers: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Blocks of each stage in the order of the forward pass; the ends go with the end stages."""
    sequence = workload.sequence
    cuts = np.concatenate([[0], np.cumsum(layers)]) + workload.places[0]
    cuts[0], cuts[-1] = 0, len(sequence)
    return [sequence[a:b] for a, b in pairwise(cuts.tolist())]
