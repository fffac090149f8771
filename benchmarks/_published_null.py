"""The null: one constant MFU for each GPU type, and the bubble of 1F1B."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from _published_rows import Row

from foretrace.replay.costs.gemm import peak_flops
from foretrace.replay.workload.describe import step_flops


def ideal_seconds(row: Row) -> float:
    """Time at the full peak of 16-bit products, with the bubble ``(pp - 1) / (m * virtual)``."""
    layout = row.layout
    peak = peak_flops(row.cluster.gpu, "bf16") * layout.gpus
    bubble = (layout.pp - 1) / (layout.micro_batches * layout.virtual)
    return step_flops(row.model, layout.seq, layout.global_batch) / peak * (1 + bubble)


def null_share(rows: Sequence[Row]) -> float:
    """The MFU that fits rows best in the mean of the log."""
    return float(np.exp(np.mean([np.log(ideal_seconds(row) / row.seconds) for row in rows])))
