"""Kernel times against public traces: other shapes on one GPU, and another GPU.

Run: python benchmarks/kernel_costs.py [--data DIR]

Traces are read from DIR (default: FORETRACE_DATA, else ../shared/data beside the project).

*Other shapes*: the distinct shapes of each trace's products are dealt into folds; each fold is
predicted from a book made of the other shapes of the same trace. Kernels that run beside
communication are left out (their slowdown is the interference benchmark's).

*Another GPU*: times of the Qwen trace of one GPU carried to the other with published shares
only; nothing is fitted to either trace.

*Attention*: no given trace holds one fused attention kernel at two shapes, so shapes cannot be
left out. What can be tested: backward from forward within a trace, and across GPUs.
The A800 forward row is no test: the prologue of the model was set on it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

from foretrace.replay.cluster import Gpu, load_gpu
from foretrace.replay.costs.device import gpu_of_device
from foretrace.replay.costs.efficiency import MEMORY_DEFAULTS
from foretrace.replay.costs.kernel import estimate, model_estimate
from foretrace.replay.costs.kernel_book import (
    ATTENTION,
    GEMM,
    Samples,
    join_samples,
    make_book,
    products,
    samples_of,
)
from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.costs.kernel_table import read_kernels
from foretrace.replay.costs.kernel_work import Work
from foretrace.replay.costs.retime import to_gpu
from foretrace.replay.costs.roofline import fit_memory, memory_seconds
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

ROOT = Path(__file__).resolve().parents[1]
SETS = {
    "A800 OPT fp16": "single-rank/liplus-zero2-0.json.gz",
    "V100 OPT fp16": "single-rank/liplus-zero2-2.json.gz",
    "A100 Megatron fp16": "megatron-tp8-a100/kineto/rank0.json.gz",
    "A800 Megatron bf16": "megatron-tp2pp2dp2-a800/kineto/rank0.json.gz",
    "H100 VGG fp32": "et/triosim-vgg13-h100-kineto.json.gz",
    "A100 DLRM tf32": "single-rank/hta-dlrm-a100-rank3of8.json.gz",
    "H100 Qwen bf16": "single-rank/tracelens-qwen-h100.json.gz",
    "MI300X Qwen bf16": "single-rank/tracelens-qwen-mi300.json.gz",
}
PAIR = ("H100 Qwen bf16", "MI300X Qwen bf16")
FOLDS = 10
MIN_SHAPES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    data = Path(parser.parse_args().data or ROOT.parent / "shared" / "data") / "traces"
    if not data.is_dir():
        print(f"skipped: no traces at {data}; give --data DIR")
        return
    with tempfile.TemporaryDirectory() as scratch:
        books = {name: read(data / where, Path(scratch)) for name, where in SETS.items()}
    shapes_left_out(books)
    classes_left_out(books)
    across(books)
    attention(books)


def read(path: Path, scratch: Path) -> tuple[Gpu, Samples]:
    """GPU type and timed kernels of one trace."""
    target = scratch / f"{path.parent.name}-{path.name}.trace"
    import_paths([str(path)], str(target))
    trace = TraceSet.open(target)
    device = trace.info(trace.ranks[0]).device_name
    gpu = gpu_of_device(device) if device else load_gpu("mi300x")  # ROCm traces name none
    return gpu, join_samples([samples_of(read_kernels(trace, rank)) for rank in trace.ranks])


def shapes_left_out(books: dict[str, tuple[Gpu, Samples]]) -> None:
    print("matrix products, shapes left out: |error| of each distinct shape")
    print(f"{'trace':22}{'type':6}{'shapes':>7}{'median':>8}{'p90':>8}{'in total':>10}")
    every, medians = [], []
    for name, (gpu, samples) in books.items():
        for dtype in sorted(set(samples.work.dtype[samples.work.kind == GEMM].tolist()) - {""}):
            sides, seconds = products(samples, dtype)
            if len(sides) < MIN_SHAPES:
                continue
            predicted = held_out(gpu, samples, dtype, sides)
            error = np.abs(predicted / seconds - 1)
            every.append(error)
            medians.append(np.median(error))
            total = weighed(samples, dtype, sides, predicted / seconds)
            print(f"{name:22}{dtype:6}{len(sides):7}{np.median(error):8.3f}"
                  f"{np.quantile(error, 0.9):8.3f}{total:+10.3f}")  # fmt: skip
    pooled = np.concatenate(every)
    print(f"{'all shapes pooled':28}{len(pooled):7}{np.median(pooled):8.3f}"
          f"{np.quantile(pooled, 0.9):8.3f}")  # fmt: skip
    print(f"{'median of the sets':28}{len(medians):7}{np.median(medians):8.3f}")


def held_out(gpu: Gpu, samples: Samples, dtype: str, sides: np.ndarray) -> np.ndarray:
    """Time of each shape from a book that holds none of its fold."""
    fold = np.random.default_rng(0).permutation(len(sides)) % min(FOLDS, len(sides))
    predicted = np.empty(len(sides))
    mine = (samples.work.kind == GEMM) & (samples.work.dtype == dtype)
    for k in range(int(fold.max()) + 1):
        hidden = sides[fold == k]
        known = mine & ~(samples.work.sides[:, None] == hidden[None]).all(axis=2).any(axis=1)
        book = make_book(gpu, samples.only(known))
        predicted[fold == k] = estimate(product_work(hidden, dtype), gpu, book).seconds
    return predicted


def product_work(sides: np.ndarray, dtype: str) -> Work:
    n = len(sides)
    no = np.zeros(n, bool)
    flops = 2 * sides.prod(axis=1)
    return Work(np.full(n, GEMM, np.int8), np.full(n, dtype), sides, no, no, flops, np.zeros(n))


def weighed(samples: Samples, dtype: str, sides: np.ndarray, ratio: np.ndarray) -> float:
    """Error of the summed time of all instances."""
    total = predicted = 0.0
    for shape, r in zip(sides, ratio, strict=True):
        same = (samples.work.kind == GEMM) & (samples.work.dtype == dtype)
        same &= (samples.work.sides == shape).all(axis=1)
        spent = float((samples.seconds[same] * samples.count[same]).sum())
        total, predicted = total + spent, predicted + spent * r
    return predicted / total - 1


def classes_left_out(books: dict[str, tuple[Gpu, Samples]]) -> None:
    print("\nmemory-bound classes: median |error|, each kernel from a curve of the others' sizes")
    names = ("elementwise", "copy", "reduce", "norm", "softmax", "embedding")
    print(f"{'trace':28}" + "".join(f"{n:>14}" for n in names))
    for trace, (gpu, samples) in books.items():
        cells = []
        for name in names:
            mine = (samples.work.kind == KERNEL_CLASSES.index(name)) & (samples.work.bytes > 0)
            moved, seconds = samples.work.bytes[mine], samples.seconds[mine]
            error = []
            for size in np.unique(moved):
                out = moved == size
                model = fit_memory(moved[~out], seconds[~out], gpu, MEMORY_DEFAULTS[name])
                error += (
                    np.abs(memory_seconds(moved[out], gpu, model) / seconds[out] - 1)
                ).tolist()
            cells.append(f"{np.median(error):9.2f} ({len(error):2})" if error else f"{'':14}")
        print(f"{trace:28}" + "".join(f"{c:>14}" for c in cells))


def across(books: dict[str, tuple[Gpu, Samples]]) -> None:
    print("\nacross GPUs: total time of bf16 products, same model, from the other GPU's trace")
    for old, new in (PAIR, PAIR[::-1]):
        (old_gpu, there), (new_gpu, here) = books[old], books[new]
        shapes, measured = products(there, "bf16")
        targets, wanted = products(here, "bf16")
        carried = to_gpu(measured, product_work(shapes, "bf16"), old_gpu, new_gpu)
        weight = np.array([instances(here, t) for t in targets])
        order = [int(np.flatnonzero((shapes == t).all(axis=1))[0]) for t in targets]
        got, want = (carried.seconds[order] * weight).sum(), (wanted * weight).sum()
        peak = old_gpu.flops["bf16"] / new_gpu.flops["bf16"]
        naive = (measured[order] * peak * weight).sum()
        direct = model_estimate(product_work(targets, "bf16"), new_gpu).seconds
        bare = (direct * weight).sum()
        print(f"{old_gpu.name:>8} -> {new_gpu.name:8} predicted {got * 1e3:7.2f} ms, measured "
              f"{want * 1e3:7.2f} ms: {got / want - 1:+.3f}   ratio of peaks "
              f"{naive / want - 1:+.3f}   no trace at all {bare / want - 1:+.3f}")  # fmt: skip


def instances(samples: Samples, shape: np.ndarray) -> int:
    same = (samples.work.kind == GEMM) & (samples.work.dtype == "bf16")
    return int(samples.count[same & (samples.work.sides == shape).all(axis=1)].sum())


def attention(books: dict[str, tuple[Gpu, Samples]]) -> None:
    print("\nfused attention")
    rows = {}
    for name, (gpu, samples) in books.items():
        mine = (samples.work.kind == ATTENTION) & (samples.work.sides[:, 1] > 0)
        for i in np.flatnonzero(mine & ~samples.work.backward):
            work = samples.work.only(np.array([i]))
            rows[name] = (gpu, work, samples.seconds[i])
            direct = float(model_estimate(work, gpu).seconds[0])
            print(f"{name:22} forward {[int(v) for v in work.sides[0]]}: no trace at all "
                  f"{direct / samples.seconds[i] - 1:+.3f}")  # fmt: skip
    backward_from_forward(books["A800 Megatron bf16"], rows.get("A800 Megatron bf16"))
    for old, new in (PAIR, PAIR[::-1]):
        if old in rows and new in rows:
            (old_gpu, work, seconds), (new_gpu, _, want) = rows[old], rows[new]
            got = float(to_gpu(np.array([seconds]), work, old_gpu, new_gpu).seconds[0])
            print(f"{old_gpu.name:>8} -> {new_gpu.name:8} {got / want - 1:+.3f}")


def backward_from_forward(
    book: tuple[Gpu, Samples], forward: tuple[Gpu, Work, float] | None
) -> None:
    """All kernels of a backward pass from the forward kernel of the same trace."""
    gpu, samples = book
    names = np.array(samples.name)
    parts = np.char.find(names.astype(str), "flash_bwd") >= 0
    if forward is None or not parts.any():
        return
    work = forward[1]
    turned = Work(
        work.kind, work.dtype, work.sides, work.causal, ~work.backward, work.flops, work.bytes
    )
    ratio = model_estimate(turned, gpu).seconds / model_estimate(work, gpu).seconds
    got, want = float(forward[2] * ratio[0]), float(samples.seconds[parts].sum())
    print(f"{'A800 Megatron bf16':22} backward from forward: {got / want - 1:+.3f}")


if __name__ == "__main__":
    main()
