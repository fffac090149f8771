"""Communication that nothing is computed behind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.wording import ms, size_text
from foretrace.analysis.communication import labels
from foretrace.analysis.groups import families
from foretrace.replay.graph import I64, TaskKind
from foretrace.traces.schema import COLLECTIVE_KINDS

SMALL_BYTES = 1 << 20
MANY = 16
SURE = 0.5


def exposed_communication(case: Case) -> Iterator[Cause]:
    """Each kind of communication in each family of groups, executed behind computation."""
    comm = np.flatnonzero(case.of_kind(TaskKind.COMM))
    label = labels(case.graph)
    names = [*families(case.graph.groups), "group unknown"]  # group -1 is the last
    texts = list(dict.fromkeys(names))
    of_group = np.array([texts.index(name) for name in names])
    key = label.kind[comm] * len(texts) + of_group[label.group[comm]]
    for value in np.unique(key).tolist():
        kind, text = COLLECTIVE_KINDS[value // len(texts)], texts[value % len(texts)]
        yield _cause(case, comm[key == value], kind, text)


def _cause(case: Case, tasks: I64, kind: str, family: str) -> Cause:
    graph = case.graph
    which = graph.collective[tasks]
    number, alone = np.unique(which[which >= 0]), int((which < 0).sum())
    size = graph.collectives.bytes[number]
    typical = float(np.median(size[size >= 0])) if (size >= 0).any() else -1.0
    a_step = (len(number) + alone) / case.steps
    longest = int(tasks[np.argmax(case.path_ns[tasks])])
    mean = float(graph.dur_ns[tasks].sum()) / len(tasks)
    sizes = f", {size_text(typical)} in the median" if typical >= 0 else ""
    sure = not alone and float(graph.collectives.confidence[number].min()) >= SURE
    doubt = (
        ()
        if not alone
        else (
            f"{alone} of these have no counterpart in another rank's trace and may contain waiting",
        )
    )
    return Cause(
        kind="exposed_communication",
        title=f"{_name(kind)} ({family}) is exposed for {ms(case.on_path(tasks))} a step",
        ranks=tuple(np.unique(graph.rank[tasks]).tolist()),
        tasks=tasks,
        dur_ns=np.zeros(len(tasks), np.int64),
        evidence=(
            f"{a_step:,.3g} operations a step, {ms(mean)} of execution each{sizes}",
            f"longest on the critical path: {case.where(longest)}",
            "priced as if it ran wholly behind computation",
            *doubt,
        ),
        action=_action(kind, 0 <= typical < SMALL_BYTES and a_step >= MANY),
        confidence=2 if sure else 1,
    )


def _name(kind: str) -> str:
    return "Communication of unknown kind" if kind == "unknown" else kind


def _action(kind: str, small: bool) -> str:
    if kind in {"send", "recv", "send_recv"}:
        return (
            "Let transfers run beside the next micro-batch (overlapped p2p), and join small ones; "
            "check the link between these ranks."
        )
    if small:
        return (
            "Many small messages: join them (larger DDP bucket_cap_mb, fewer FSDP units, "
            "torch._foreach or coalesced collectives), latency dominates here."
        )
    return {
        "all_reduce": "Start it earlier or behind the backward pass (bucket order and size, "
        "gradient_as_bucket_view); for tensor parallelism use sequence parallelism with "
        "overlapped all-gather and reduce-scatter; check the bus bandwidth against the link.",
        "all_gather": "Prefetch it (FSDP forward_prefetch, backward_prefetch, larger units), or "
        "overlap it with the matrix product that needs it.",
        "reduce_scatter": "Overlap it with the rest of the backward pass; check bucket sizes.",
        "all_to_all": "Overlap dispatch and combine with other micro-batches, balance tokens, "
        "keep traffic inside a node.",
    }.get(
        kind,
        "Overlap it with computation, or send less; check its bandwidth against the link.",
    )
