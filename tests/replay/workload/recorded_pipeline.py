"""A pipeline of four ranks with known times, as the tool writes it that records passes alone."""

from __future__ import annotations

import json
from pathlib import Path

from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

FORWARD, BACKWARD, SENT = (11.0, 10.0, 10.0, 13.0), (21.0, 20.0, 20.0, 26.0), 0.5
Times = list[dict[str, dict[str, list[float]]]]


def passes(rank: int, batches: int, order: str) -> list[tuple[str, int]]:
    """A rank's forwards and backwards in order."""
    warm = min(3 - rank, batches) if order == "1f1b" else batches
    names = [("fwd", k) for k in range(warm)]
    for k in range(batches):
        if warm + k < batches:
            names.append(("fwd", warm + k))
        names.append(("bwd", k))
    return names


def simulate(batches: int, order: str, steps: int, waits_inside: bool = False) -> Times:
    """Passes of four ranks in ms; the first step takes longer, as warm-ups do."""
    made: Times = [{} for _ in FORWARD]
    for step in range(steps):
        rows = one_step(batches, order, 2.0 if step == 0 else 1.0, waits_inside)
        for rank, row in enumerate(rows):
            made[rank][str(step + 1)] = row
    return made


def one_step(
    batches: int, order: str, slow: float, waits_inside: bool
) -> list[dict[str, list[float]]]:
    """Walk through the ranks' passes until none can go on."""
    queue = [passes(rank, batches, order) for rank in range(4)]
    names = [f"{word}_{edge}" for word in ("fwd", "bwd") for edge in ("start", "end")]
    rows: list[dict[str, list[float]]] = [{name: [] for name in names} for _ in queue]
    ends: dict[tuple[str, int, int], float] = {}
    clock = [0.0] * 4
    while any(queue):
        for rank, left in enumerate(queue):
            while left:
                word, k = left[0]
                peer = rank - 1 if word == "fwd" else rank + 1
                ready = ends.get((word, peer, k), -1.0) + SENT if 0 <= peer < 4 else 0.0
                if ready < 0:
                    break
                before = clock[rank]
                end = max(before, ready) + (FORWARD if word == "fwd" else BACKWARD)[rank] * slow
                # Some tools begin a pass before its message has come.
                early = waits_inside and ready > before > 0
                rows[rank][f"{word}_start"].append(before if early else max(before, ready))
                rows[rank][f"{word}_end"].append(end)
                ends[word, rank, k] = clock[rank] = end
                left.pop(0)
    return rows


def trace_of(times: Times, folder: Path) -> TraceSet:
    source = folder / "source"
    source.mkdir(parents=True)
    for rank, steps in enumerate(times):
        (source / f"pp_rank_{rank}.json").write_text(json.dumps(steps))
    batches = len(times[0]["1"]["fwd_start"])
    config = {"world_size": 4, "pp_size": 4, "dp_size": 1, "tp_size": 1, "num_mbs": batches}
    (source / "config.json").write_text(json.dumps(config))
    import_paths([str(source)], folder / "x.trace", jobs=1)
    return TraceSet.open(folder / "x.trace")
