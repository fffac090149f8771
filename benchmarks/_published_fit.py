"""One fit of the models' efficiency for each GPU type and framework, to few rows.

The fit is a most probable one: each logarithm of a factor has a normal prior around what holds
without any measurement (`CENTRES`, `WIDTHS`), and the log error of a row a normal one of
`ROW_SPREAD`. Gauss-Newton steps with finite differences find it. Priors keep a factor near its
centre where the rows say nothing of it, so a handful of rows is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
from _published_rows import Row
from numpy.typing import NDArray

from foretrace.replay.extrapolate.predict import Prediction, predict
from foretrace.replay.extrapolate.times import Efficiency
from foretrace.replay.workload.describe import describe

F64 = NDArray[np.float64]
SHARE = 0.1
"""Part of a table's rows that may be fitted."""
SEED = 2026
FACTORS = ("matrix", "matrix8", "attention", "memory", "communication", "launch_ns")
CENTRES = np.log([1.05, 1.05, 1.0, 1.3, 1.2, 20e3])
"""Sustained clocks below boost; kernels that no model lists; congestion and stragglers; the host's
time for the few launches that one listed operation stands for."""
ATTENTION = {"llm-foundry": 2.0, "Megatron-Core": 0.55}
"""The attention models stand for FlashAttention-2. Its paper (arXiv 2307.08691, section 4) gives
half its rate to FlashAttention and to the Triton kernel that llm-foundry's recipes name
(``attn_impl: triton``); the third paper (arXiv 2407.08608, section 4) gives 1.5 to 2 times the rate
to cuDNN's kernels on H100, which Megatron-Core takes through Transformer Engine."""
WIDTHS = np.array([0.15, 0.15, 0.3, 0.4, 0.4, 1.0])
ROW_SPREAD = 0.05
_ROUNDS = 4
_DELTA = 0.05
_SMALLEST = 0.01
_LAUNCH = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
_STARTS = (0.0, 0.7, 1.3)  # where no row waits for the host, launches have no slope
_MOST = 24  # rows of a fit, so that it stays quick


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Rows to be fitted and rows to be reported, table by table, by the fixed seed alone."""
    fitted, reported = [], []
    for table in dict.fromkeys(row.table for row in rows):
        mine = [row for row in rows if row.table == table]
        count = min(int(SHARE * len(mine)), _MOST) if mine[0].can_fit else 0
        order = np.random.default_rng(SEED).permutation(len(mine))
        chosen = set(order[:count].tolist())
        fitted += [row for k, row in enumerate(mine) if k in chosen]
        reported += [row for k, row in enumerate(mine) if k not in chosen]
    return fitted, reported


def efficiency(x: F64) -> Efficiency:
    """The factors that a vector of logarithms stands for."""
    return Efficiency(**dict(zip(FACTORS, np.exp(x).tolist(), strict=True)))


def seconds(row: Row, fit: Efficiency) -> float:
    """Predicted time of a row's step."""
    return predicted(row, fit).step_ns / 1e9


def predicted(row: Row, fit: Efficiency) -> Prediction:
    """Prediction of a row's step."""
    return predict(
        row.model, describe(row.model, row.layout), row.layout, row.cluster, efficiency=fit,
        calibration=row.calibration,
    )  # fmt: skip


def centre_of(fit: str) -> F64:
    """Where a GPU type and framework's factors are before any row is seen."""
    centre = CENTRES.copy()
    centre[FACTORS.index("attention")] += np.log(ATTENTION.get(fit.partition(", ")[2], 1.0))
    return centre


def fit_rows(rows: Sequence[Row], centre: F64) -> Efficiency:
    """The most probable factors for these rows; the centre without any."""
    if not rows:
        return efficiency(centre)
    measured = np.log([row.seconds for row in rows])
    starts = [centre + shift * _LAUNCH for shift in _STARTS]
    x = min(starts, key=lambda start: _cost(measured - _logs(rows, start), start, centre))
    missed = measured - _logs(rows, x)
    for _ in range(_ROUNDS):
        step = _step(rows, x, missed, centre)
        while True:
            there = measured - _logs(rows, x + step)
            if _cost(there, x + step, centre) < _cost(missed, x, centre):
                break
            step = step / 2
            if np.abs(step).max() < _SMALLEST:
                return efficiency(x)
        x, missed = x + step, there
    return efficiency(x)


def _step(rows: Sequence[Row], x: F64, missed: F64, centre: F64) -> F64:
    """Gauss-Newton's step; rows that are far off weigh less."""
    few = [_shortened(row) for row in rows]
    here = _logs(few, x)
    slope = np.stack([(_logs(few, x + d) - here) / _DELTA for d in np.eye(len(x)) * _DELTA], 1)
    weight = 1 / np.sqrt(ROW_SPREAD**2 + missed**2 / 2)
    system = np.concatenate([slope * weight[:, None], np.diag(1 / WIDTHS)])
    left = np.concatenate([missed * weight, (centre - x) / WIDTHS])
    result: F64 = np.linalg.lstsq(system, left, rcond=None)[0]
    return result


def _shortened(row: Row) -> Row:
    """The row with no more micro-batches than twice its pipeline, which has about its slopes."""
    layout = row.layout
    few = min(layout.micro_batches, 2 * layout.pp if layout.pp > 1 else 2)
    batch = few * layout.dp * layout.micro_batch
    return replace(row, layout=msgspec.structs.replace(layout, global_batch=batch))


def _cost(missed: F64, x: F64, centre: F64) -> float:
    """Minus the log of the probability: Student's t of two degrees for rows, normal priors."""
    rows = 1.5 * np.log1p((missed / ROW_SPREAD) ** 2 / 2)
    return float(2 * rows.sum() + np.sum(((x - centre) / WIDTHS) ** 2))


def _logs(rows: Sequence[Row], x: F64) -> F64:
    fit = efficiency(x)
    return np.log([seconds(row, fit) for row in rows])
