"""Slowdown of kernels beside communication: model against public traces, and replays with it.

Run: python benchmarks/interference.py [--data DIR]

Traces are read from DIR (default: FORETRACE_DATA, else ../shared/data beside the project). A row
is one overlapped kernel instance (over 90 % of its time under communication) whose identity
(name, grid, block, operand shapes) was also seen alone (under 2 %), 10 µs and longer. Errors are
medians of |predicted / measured - 1|. "held out" is a fit to the trace's other kernels
(5 folds by kernel); it is used only where it beats the defaults.

The last table replays whole jobs: kernels of a held-out step (of a held-out rank where there is one
step) take their durations from the other steps, as recorded there (plain) or freed of the slowdown
there and slowed by the overlap of the replay (rates). "used" is what ``--interference auto`` does.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

from foretrace.replay.build import build_graph
from foretrace.replay.costs.device import gpu_of_device
from foretrace.replay.costs.interference import DEFAULT, slowdown
from foretrace.replay.costs.interference_choice import choose
from foretrace.replay.costs.interference_collectives import collective_pairs
from foretrace.replay.costs.interference_fit import fit, held_out, median_error
from foretrace.replay.costs.interference_pairs import Pairs, join, read_pairs
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

ROOT = Path(__file__).resolve().parents[1]
SETS = {
    "A800 ResNet50 amp": ["single-rank/liplus-amp-0.json.gz"],
    "V100 ResNet50 ddp": ["single-rank/liplus-ddp-0.json.gz"],
    "A100 ResNet50 2 GPUs": ["single-rank/hta-nccl-metadata-a100.json.gz"],
    "A100 recommender": ["single-rank/hta-dlrm-a100-rank3of8.json.gz"],
    "H800 DeepSeek-V3": ["single-rank/deepseek-dualpipe-h800.json.gz"],
    "A800 OPT zero1": ["single-rank/liplus-zero1-0.json.gz"],
    "A800 OPT zero2": ["single-rank/liplus-zero2-0.json.gz"],
    "V100 OPT zero2": ["single-rank/liplus-zero2-2.json.gz"],
    "V100 recommender": ["single-rank/hta-v100-216k.json.gz"],
    "B200 inference": ["single-rank/tracelens-b200-rank0of8.json.gz"],
    "A100 Megatron tp8": ["megatron-tp8-a100/kineto"],
    "A800 Megatron 2x2x2": ["megatron-tp2pp2dp2-a800/kineto"],
    "V100 DLRM": ["dlrm-8xv100/dlrm_kineto.tar.gz"],
}
"""Every given GPU trace with communication kernels."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    data = Path(parser.parse_args().data or ROOT.parent / "shared" / "data") / "traces"
    if not data.is_dir():
        print(f"skipped: no traces at {data}; give --data DIR")
        return
    found, jobs = [], []
    print(f"{'trace':22}{'class':8}{'rows':>6}{'kernels':>8}{'measured p10/50/90':>22}"
          f"{'none':>8}{'x1.3':>8}{'default':>9}{'held out':>10}  use")  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        for name, where in SETS.items():
            target = Path(scratch) / f"{len(name)}{name}.trace"
            import_paths([str(data / w) for w in where], str(target))
            trace = TraceSet.open(str(target))
            found += measure(name, trace)
            jobs.append(replayed(name, trace))
    pooled(found)
    print(f"\n{'held-out replay':22}{'folds':>9}{'kernels':>8}{'step plain':>12}{'rates':>9}"
          f"{'kernel plain':>14}{'rates':>9}  used")  # fmt: skip
    print("\n".join(jobs))


def replayed(name: str, trace: TraceSet) -> str:
    """A row of both replays on held-out steps or ranks, and the collectives' own slowdown."""
    graph = build_graph(trace)
    choice = choose(trace, graph, "auto")
    held, pairs = choice.held, collective_pairs(graph)
    text = f"{name:22}"
    if held is None:
        text += choice.reason
    else:
        text += (f"{held.folds:3} {held.by + 's':5}{held.kernels:8}{held.step_error[0]:12.3%}"
                 f"{held.step_error[1]:9.3%}{held.kernel_error[0]:14.2%}"
                 f"{held.kernel_error[1]:9.2%}  {'yes' if choice.used else 'no'}")  # fmt: skip
    if len(pairs.slowdown):
        middle = float(np.median(pairs.slowdown))
        text += (f"\n{'':22}{len(pairs.slowdown)} collectives beside computation against "
                 f"{pairs.alone} alone: x {middle:.3f}")  # fmt: skip
    return text


def measure(name: str, trace: TraceSet) -> list[tuple[Pairs, np.ndarray, np.ndarray]]:
    """Print one trace's rows; its pairs, defaults' and chosen predictions."""
    gpu = gpu_of_device(trace.info(trace.ranks[0]).device_name)
    pairs = join([read_pairs(trace, rank) for rank in trace.ranks])
    if not len(pairs):
        print(f"{name:22}no kernel was seen both alone and beside communication")
        return []
    chosen = fit(pairs, gpu)
    result = []
    for matrix, assessed in ((True, chosen.matrix), (False, chosen.memory)):
        mine = pairs.only(pairs.load.matrix == matrix)
        if not len(mine):
            continue
        default = slowdown(mine.load, gpu)
        used = default
        if assessed.used:
            used = held_out(mine, gpu, DEFAULT, matrix=matrix)
        spread = "/".join(f"{v:.2f}" for v in np.quantile(mine.measured, [0.1, 0.5, 0.9]))
        print(f"{name:22}{'matrix' if matrix else 'memory':8}{len(mine):6}"
              f"{len(np.unique(mine.identity)):8}{spread:>22}"
              f"{median_error(np.ones(len(mine)), mine.measured):8.3f}"
              f"{median_error(np.full(len(mine), 1.3), mine.measured):8.3f}"
              f"{assessed.default_error:9.3f}{assessed.held_out_error:10.3f}  "
              f"{'fit' if assessed.used else 'default'}")  # fmt: skip
        result.append((mine, default, used))
    return result


def pooled(found: list[tuple[Pairs, np.ndarray, np.ndarray]]) -> None:
    print(f"\n{'pooled':22}{'rows':>6}{'none':>8}{'x1.3':>8}{'default':>9}{'default p90':>13}"
          f"{'fit where better':>18}")  # fmt: skip
    for matrix in (True, False):
        mine = [(p, d, u) for p, d, u in found if p.load.matrix[0] == matrix]
        measured = np.concatenate([p.measured for p, _, _ in mine])
        default = np.concatenate([d for _, d, _ in mine])
        used = np.concatenate([u for _, _, u in mine])
        tail = np.quantile(np.abs(default / measured - 1), 0.9)
        print(f"{'matrix' if matrix else 'memory':22}{len(measured):6}"
              f"{median_error(np.ones(len(measured)), measured):8.3f}"
              f"{median_error(np.full(len(measured), 1.3), measured):8.3f}"
              f"{median_error(default, measured):9.3f}{tail:13.3f}"
              f"{median_error(used, measured):18.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
