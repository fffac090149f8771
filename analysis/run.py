"""A recorded run, replayed: what every analysis and the report start from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.replay.accuracy import Assessment, assess
from foretrace.replay.build import build
from foretrace.replay.graph import JobGraph, Timeline
from foretrace.replay.timeline import measured, step_windows
from foretrace.traces.store import TraceSet


@dataclass(frozen=True, slots=True)
class Run:
    """A trace set with its job graph, its measured and its replayed timeline.

    Attributes:
        trace: the trace set.
        assessment: the replay and how far it can be trusted.
        measured: the timeline as recorded.
    """

    trace: TraceSet
    assessment: Assessment
    measured: Timeline

    @property
    def graph(self) -> JobGraph:
        """The job graph."""
        return self.measured.graph

    @property
    def replayed(self) -> Timeline:
        """The timeline that the job graph alone gives."""
        return self.assessment.timeline


def load_run(path: str | os.PathLike[str], ranks: Sequence[int] | None = None) -> Run:
    """Open a trace set, build its job graph and replay it.

    Args:
        path: folder or fsspec URL of the trace set.
        ranks: only these ranks; all by default.

    Raises:
        TraceFormatError: it is no trace set.
        IncompleteTraceError: ranks or files are missing.
        GraphError: nothing to replay.
    """
    trace = TraceSet.open(path)
    assessment = assess(build(trace, ranks))
    return Run(trace, assessment, measured(assessment.build.graph))


def slowest_step(timeline: Timeline) -> int:
    """Number of the longest step, -1 where there is none."""
    windows = step_windows(timeline)
    return int(windows.step[np.argmax(windows.dur_ns)]) if len(windows.step) else -1
