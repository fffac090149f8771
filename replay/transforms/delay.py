"""Inject a delay, or take one away: stragglers, noise, a slow start of every step."""

from __future__ import annotations

from typing import Literal

import numpy as np

from foretrace.replay.engine import replay
from foretrace.replay.graph import I64, JobGraph
from foretrace.replay.scenario import parse_length_ns, parse_time_ns
from foretrace.replay.selection import selected
from foretrace.replay.transforms.base import Transform
from foretrace.traces.errors import ScenarioError


class Delay(Transform, frozen=True, kw_only=True):
    """Selected tasks take ``add`` longer, plus random noise.

    Attributes:
        add: a time with its unit; negative takes a delay away, never below a duration of 0.
        jitter: mean of the noise on top, a time with its unit; the noise is never negative.
        noise: its distribution.
        seed: the same seed gives the same noise.
        each: every selected ``task``, or only the first of each rank and ``step``.
    """

    add: str = "0"
    jitter: str = "0"
    noise: Literal["exponential", "uniform", "normal"] = "exponential"
    seed: int = 0
    each: Literal["task", "step"] = "task"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_time_ns(self.add, "delay: add")
        parse_length_ns(self.jitter, "delay: jitter")

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with the delays."""
        tasks = np.flatnonzero(selected(graph, self.select))
        if self.each == "step":
            tasks = _first_of_each_step(graph, tasks)
            if not len(tasks):
                raise ScenarioError(f"delay: no task of {self.select!r} lies inside a step")
        dur = graph.dur_ns.copy()
        more = round(parse_time_ns(self.add, "delay: add")) + self._noise(len(tasks))
        dur[tasks] = np.maximum(dur[tasks] + more, 0)
        return graph.with_durations(dur)

    def _noise(self, count: int) -> I64:
        mean = parse_length_ns(self.jitter, "delay: jitter")
        random = np.random.default_rng(self.seed)
        if self.noise == "uniform":
            drawn = random.uniform(0, 2 * mean, count)
        elif self.noise == "normal":  # half of it, so that its mean is what was asked for
            drawn = np.abs(random.normal(0, mean * np.sqrt(np.pi / 2), count))
        else:
            drawn = random.exponential(mean, count)
        return np.rint(drawn).astype(np.int64)


def _first_of_each_step(graph: JobGraph, tasks: I64) -> I64:
    """The task of each rank and step that runs first."""
    tasks = tasks[np.isin(graph.step[tasks], graph.steps.step)]
    start = replay(graph).start_ns[tasks]
    order = np.lexsort((tasks, start, graph.step[tasks], graph.rank[tasks]))
    code = np.stack([graph.rank[tasks], graph.step[tasks]])[:, order]
    first = np.append(True, (code[:, 1:] != code[:, :-1]).any(axis=0))[: len(tasks)]
    firsts: I64 = tasks[order[first]]
    return firsts
