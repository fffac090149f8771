"""Where each edge of a job graph comes from, and how sure that is.

A confidence is a judgement, not a measurement: 1 where the trace says so itself, less where the
edge is inferred from order or pattern. A rendezvous is as sure as the match of its members.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from foretrace.replay.graph import F32, I8, EdgeKind


class Rule(IntEnum):
    """The rule that made an edge."""

    THREAD_ORDER = 0
    HANDOFF = 1
    LAUNCH = 2
    STREAM_ORDER = 3
    RECORDED_EVENT = 4
    BEFORE_COLLECTIVE = 5
    AFTER_COLLECTIVE = 6
    RECORD_THEN_WAIT = 7
    ENDED_JUST_BEFORE = 8
    RECORDED_SYNC = 9
    DEVICE_SYNC = 10
    OWN_COPY = 11
    CURRENT_STREAM_SYNC = 12
    LAST_ENDED_SYNC = 13
    MEMORY_CALL = 14
    HOST_COMMUNICATION = 15
    FULL_QUEUE = 16
    RENDEZVOUS = 17
    MESSAGE = 18
    STEP_END = 19
    WINDOW = 20
    OVERLAP = 21
    POST = 22
    GIVEN = 23


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """What is known of a rule.

    Attributes:
        words: what it says.
        confidence: 0 to 1.
    """

    words: str
    confidence: float


RULES: dict[Rule, RuleInfo] = {
    Rule.THREAD_ORDER: RuleInfo("order of a host thread", 1.0),
    Rule.HANDOFF: RuleInfo("a gap that another thread's work fills", 0.7),
    Rule.LAUNCH: RuleInfo("correlation of call and device work", 1.0),
    Rule.STREAM_ORDER: RuleInfo("order of a stream", 1.0),
    Rule.RECORDED_EVENT: RuleInfo("stream wait in a synchronisation row", 1.0),
    Rule.BEFORE_COLLECTIVE: RuleInfo("a collective waits for the launching thread's stream", 0.9),
    Rule.AFTER_COLLECTIVE: RuleInfo("a wait call's stream waits for the collective", 0.9),
    Rule.RECORD_THEN_WAIT: RuleInfo("stream wait by the thread's last event record", 0.7),
    Rule.ENDED_JUST_BEFORE: RuleInfo("stream wait by what ended just before a late start", 0.4),
    Rule.RECORDED_SYNC: RuleInfo("synchronisation row of a blocking call", 1.0),
    Rule.DEVICE_SYNC: RuleInfo("a device synchronisation waits for every stream", 1.0),
    Rule.OWN_COPY: RuleInfo("a blocking copy waits for itself", 1.0),
    Rule.CURRENT_STREAM_SYNC: RuleInfo("a blocking call waits for the thread's stream", 0.8),
    Rule.LAST_ENDED_SYNC: RuleInfo("an event wait or a spin ends with the stream's work", 0.6),
    Rule.MEMORY_CALL: RuleInfo("allocating or freeing waits for the device", 0.7),
    Rule.HOST_COMMUNICATION: RuleInfo("a host waits for communication of a thread", 0.8),
    Rule.FULL_QUEUE: RuleInfo("a launch waits for room in a full queue", 0.7),
    Rule.RENDEZVOUS: RuleInfo("members of a collective wait for each other", 1.0),
    Rule.MESSAGE: RuleInfo("a receiver waits for its sender or root", 1.0),
    Rule.STEP_END: RuleInfo("a step ends with its last work", 1.0),
    Rule.WINDOW: RuleInfo("when a lane enters the recorded window", 1.0),
    Rule.OVERLAP: RuleInfo("work that overlaps on one stream keeps its order of starts", 0.8),
    Rule.POST: RuleInfo("a call posts a message", 1.0),
    Rule.GIVEN: RuleInfo("dependency given by the trace", 1.0),
}

DEFAULT_RULE = {
    EdgeKind.HOST_ORDER: Rule.THREAD_ORDER,
    EdgeKind.THREAD: Rule.HANDOFF,
    EdgeKind.LAUNCH: Rule.LAUNCH,
    EdgeKind.STREAM: Rule.STREAM_ORDER,
    EdgeKind.EVENT: Rule.RECORDED_EVENT,
    EdgeKind.SYNC: Rule.RECORDED_SYNC,
    EdgeKind.RENDEZVOUS: Rule.RENDEZVOUS,
    EdgeKind.PEER: Rule.MESSAGE,
    EdgeKind.MARK: Rule.STEP_END,
    EdgeKind.WINDOW: Rule.WINDOW,
    EdgeKind.OVERLAP: Rule.OVERLAP,
    EdgeKind.POST: Rule.POST,
    EdgeKind.QUEUE: Rule.FULL_QUEUE,
}
"""The rule of an edge where its builder names none."""


@dataclass(frozen=True, slots=True)
class EdgeOrigins:
    """Where each edge of a graph comes from; arrays of shape ``(edges,)``, as ``graph.pred``.

    Attributes:
        rule: :class:`Rule` of each edge.
        confidence: 0 to 1.
    """

    rule: I8
    confidence: F32

    def counts(self) -> dict[Rule, int]:
        """How many edges each rule made."""
        count = np.bincount(self.rule, minlength=len(Rule))
        return {rule: int(count[rule]) for rule in Rule if count[rule]}
