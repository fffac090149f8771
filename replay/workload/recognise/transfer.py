"""A recognised workload under another layout or on another GPU.

Where a layout leaves the shapes of a rank's operations alone, they take the time that was measured.
Else the recorded blocks are set beside the blocks that a description of the model gives for the
recorded layout: each described operation gets its share of what was measured of its class, and that
time is carried over to the new shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.device import gpu_of_device
from foretrace.replay.costs.kernel import model_estimate
from foretrace.replay.costs.kernel_book import ATTENTION, GEMM
from foretrace.replay.costs.retime import to_gpu, to_shapes
from foretrace.replay.extrapolate.stages import Timed
from foretrace.replay.extrapolate.times import ORIGINS, Times
from foretrace.replay.graph import F64, I8, I64
from foretrace.replay.layout import GROUP_KINDS, Layout, group_size
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.describe import describe, step_flops
from foretrace.replay.workload.operations import Block, Operations, Workload
from foretrace.replay.workload.recognise.recorded import Recognised
from foretrace.replay.workload.recognise.rows import GAPS
from foretrace.replay.workload.recognise.times import (
    communication,
    measured_times,
    optimizer_times,
)
from foretrace.traces.errors import LayoutError

SHAPES = (
    "seq", "micro_batch", "tp", "cp", "ep", "etp", "sequence_parallel", "context", "flash",
    "recompute", "precision", "capacity",
)  # fmt: skip
"""Fields of a layout that decide on the shapes of a rank's operations."""
_SPREAD = 0.1  # of a carried time at the recorded shapes
_TRANSFERRED, _MODELLED = ORIGINS.index("transferred"), ORIGINS.index("modelled")


def under(found: Recognised, layout: Layout, gpu: Gpu) -> tuple[Workload, Times]:
    """The workload of a recorded job under a layout on a GPU type, and its times.

    Args:
        found: the recorded job.
        layout: the new layout; it must fit the model.
        gpu: the device that it would run on.

    Raises:
        LayoutError: the device that was recorded is of no known type.
    """
    old = gpu_of_device(found.device)
    if old.name == gpu.name and same_shapes(found.layout, layout):
        workload = replace(
            found.workload,
            blocks=tuple(_without_single(block, layout) for block in found.workload.blocks),
            flops=step_flops(found.model, layout.seq, layout.global_batch),
            tokens=layout.seq * layout.global_batch,
        )
        return workload, measured_times(found, workload, layout)
    workload = describe(found.model, layout)
    described = {b.name: b.operations for b in describe(found.model, found.layout).blocks}
    made = []
    for block in workload.blocks:
        recorded = [b for b in found.workload.blocks if b.name == block.name]
        if not recorded:
            raise LayoutError(f"the recorded step holds no block {block.name!r}")
        made.append(_carried(described[block.name], recorded, block.operations, (old, gpu)))
    slower = 1.0 if old.name == gpu.name else old.hbm_bytes_per_s / gpu.hbm_bytes_per_s
    timed = Timed(workload, tuple(m[0] for m in made), optimizer_times(found, layout, slower))
    columns = (tuple(m[1] for m in made), tuple(m[2] for m in made))
    if old.name != gpu.name:
        return workload, Times(timed, *columns)
    return workload, Times(timed, *columns, communication(found, layout))


def same_shapes(a: Layout, b: Layout) -> bool:
    """Whether a rank's operations have equal shapes under two layouts."""
    return all(getattr(a, field) == getattr(b, field) for field in SHAPES)


def _without_single(block: Block, layout: Layout) -> Block:
    """The block without the communication of groups of one rank."""
    single = [n for n, kind in enumerate(GROUP_KINDS) if group_size(layout, kind) == 1]
    ops = block.operations
    keep = np.flatnonzero(~np.isin(ops.group, single))
    if len(keep) == len(ops):
        return block
    columns = {
        name: getattr(ops, name)[keep]
        for name in ("phase", "collective", "group", "bytes", "beside", "measured_ns")
    }
    names = tuple(ops.name[row] for row in keep.tolist())
    return replace(block, operations=Operations(name=names, work=ops.work.only(keep), **columns))


def _carried(
    own: Operations, recorded: Sequence[Block], new: Operations, gpus: tuple[Gpu, Gpu]
) -> tuple[I64, I8, F64]:
    """Durations, origins and uncertainties of a block's operations at new shapes.

    Args:
        own: the block as described for the recorded layout.
        recorded: the block as recorded, on each pipeline rank.
        new: the block as described for the new layout.
        gpus: device that was recorded, and the new one.
    """
    old, gpu = gpus
    seconds = _shares(own, recorded, old)
    row = _counterparts(own, new)
    known = row >= 0
    at = np.maximum(row, 0)
    moved = to_shapes(seconds[at], own.work.only(at), new.work, old)
    spread = np.nan_to_num(moved.uncertainty, nan=_SPREAD, posinf=_SPREAD)
    result = np.nan_to_num(moved.seconds)
    missing = (new.collective < 0) & ~known
    result[missing] = np.nan_to_num(model_estimate(new.work, old).seconds)[missing]
    if old.name != gpu.name:
        there = to_gpu(result, new.work, old, gpu)
        result, spread = there.seconds, np.hypot(spread, there.uncertainty)
    ns = np.rint(result * 1e9).astype(np.int64)
    ns[new.collective >= 0] = 0
    for forward in (True, False):
        mine = np.flatnonzero((new.collective < 0) & ((new.phase == Phase.FORWARD) == forward))
        if len(mine):
            ns[mine[0]] += round(_gaps(recorded, forward))
    origin = np.full(len(new), _TRANSFERRED, np.int8)
    origin[missing] = _MODELLED
    return ns, origin, np.where(new.collective < 0, spread, 0.0)


def _shares(own: Operations, recorded: Sequence[Block], gpu: Gpu) -> F64:
    """Each described operation's share of what was measured of its class, seconds.

    Products are matched one by one where there are as many of them as were recorded.
    """
    model = np.nan_to_num(model_estimate(own.work, gpu).seconds)
    result = np.zeros(len(own))
    for forward in (True, False):
        for kind in (GEMM, ATTENTION, -1):
            mine = np.flatnonzero(_of(own, forward, kind))
            taken = [_measured(block.operations, forward, kind) for block in recorded]
            if kind == GEMM and all(len(t) == len(mine) for t in taken):
                result[mine] = np.mean(taken, axis=0)
            elif model[mine].sum() > 0:
                total = float(np.mean([t.sum() for t in taken]))
                result[mine] = total * model[mine] / model[mine].sum()
    return result


def _measured(ops: Operations, forward: bool, kind: int) -> F64:
    """Measured seconds of a recorded block's operations of a class, launch gaps left out."""
    mine = _of(ops, forward, kind) & np.array([name != GAPS for name in ops.name], np.bool_)
    return np.asarray(ops.measured_ns[mine] * 1e-9, np.float64)


def _of(ops: Operations, forward: bool, kind: int) -> NDArray[np.bool_]:
    """Computations of a phase and class; -1 for all that are neither product nor attention."""
    phase = (ops.phase == Phase.FORWARD) == forward
    other = (ops.work.kind != GEMM) & (ops.work.kind != ATTENTION)
    of_kind = other if kind < 0 else ops.work.kind == kind
    return np.asarray(phase & of_kind & (ops.collective < 0))


def _counterparts(own: Operations, new: Operations) -> I64:
    """For each new operation the described one of the same name and phase, -1 for none."""
    first: dict[tuple[str, bool], int] = {}
    for row in reversed(range(len(own))):
        if own.collective[row] < 0:
            first[own.name[row], bool(own.phase[row] == Phase.FORWARD)] = row
            first.setdefault((own.name[row], bool(own.phase[row] != Phase.FORWARD)), row)
    return np.array(
        [
            first.get((name, bool(phase == Phase.FORWARD)), -1)
            for name, phase in zip(new.name, new.phase, strict=True)
        ],
        np.int64,
    )


def _gaps(recorded: Sequence[Block], forward: bool) -> float:
    """Launch gaps of a phase, mean over the recorded blocks, ns."""
    total = 0.0
    for block in recorded:
        ops = block.operations
        gaps = np.array([name == GAPS for name in ops.name], np.bool_)
        total += float(ops.measured_ns[gaps & ((ops.phase == Phase.FORWARD) == forward)].sum())
    return total / len(recorded)
