"""Clocks of ranks that meet in messages only, such as the stages of a pipeline without replicas.

Both ends of a message leave it at about the same time, and a receiver never before its sender
came. The first gives an estimate in each direction (a small send may leave early, so the two are
averaged), the second its limits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from foretrace.replay.align import Alignment
from foretrace.replay.graph import I32, I64

MIN_MESSAGES = 8
"""Fewer messages say nothing about clocks."""

AGREEMENT_NS = 200_000
"""Ends of messages on one clock were seen to lie 120 us apart: less than this is no offset."""


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """Matched messages on the clocks of their own ranks; arrays of shape ``(messages,)``.

    Attributes:
        sender: sending rank.
        receiver: receiving rank.
        sent_start_ns: when the sender came.
        sent_end_ns: when it left.
        received_end_ns: when the receiver left.
        directed: whether the trace says who sends; else only the ends count.
    """

    sender: I32
    receiver: I32
    sent_start_ns: I64
    sent_end_ns: I64
    received_end_ns: I64
    directed: np.ndarray


def bridged(alignment: Alignment, ptr: I64, rank: I32, messages: MessageTimes) -> Alignment:
    """Offsets also between ranks that no collective connects.

    Args:
        alignment: offsets within each set of ranks that anchors connect.
        ptr: members of anchor i are ``ptr[i]:ptr[i + 1]``.
        rank: rank of each member.
        messages: matched messages.
    """
    ranks = np.unique(np.concatenate([rank, messages.sender, messages.receiver]))
    part = _parts(ptr, np.searchsorted(ranks, rank), len(ranks))
    if not len(ranks) or part.max() == 0:
        return alignment
    times = _corrected(alignment, messages)
    ends = np.searchsorted(ranks, times.sender), np.searchsorted(ranks, times.receiver)
    shift = _shifts(part[ends[0]], part[ends[1]], times, int(part.max()) + 1)
    offset = {
        int(r): alignment.offset_ns.get(int(r), 0) + int(shift[p])
        for r, p in zip(ranks, part, strict=True)
    }
    return replace(alignment, offset_ns={**alignment.offset_ns, **offset})


def _parts(ptr: I64, column: I64, count: int) -> I64:
    """Number of the set of ranks that anchors connect each rank with, by lowest rank."""
    row = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    size = len(ptr) - 1 + count
    links = sparse.csr_matrix((np.ones(len(row)), (row, len(ptr) - 1 + column)), shape=(size, size))
    label = connected_components(links, directed=False)[1][len(ptr) - 1 :]
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    numbers: I64 = np.argsort(np.argsort(first))[inverse]
    return numbers


def _corrected(alignment: Alignment, m: MessageTimes) -> MessageTimes:
    """The messages with what is known of the clocks taken out."""
    start, end, received = (t.copy() for t in (m.sent_start_ns, m.sent_end_ns, m.received_end_ns))
    for r in np.unique(np.concatenate([m.sender, m.receiver])):
        sends, receives = m.sender == r, m.receiver == r
        start[sends] = alignment.correct(int(r), start[sends])
        end[sends] = alignment.correct(int(r), end[sends])
        received[receives] = alignment.correct(int(r), received[receives])
    return replace(m, sent_start_ns=start, sent_end_ns=end, received_end_ns=received)


def _shifts(sender: I64, receiver: I64, m: MessageTimes, count: int) -> I64:
    """What to add to the times of each part, ns; parts without a message keep theirs."""
    shift = np.zeros(count, np.int64)
    done = np.zeros(count, bool)
    while not done.all():
        crossing = done[sender] != done[receiver]
        if not crossing.any():
            done[np.flatnonzero(~done)[0]] = True
            continue
        outer = np.where(done[sender], receiver, sender)[crossing]
        part = int(np.bincount(outer).argmax())
        out = done[sender] & (receiver == part)
        back = done[receiver] & (sender == part)
        shift[part] = _shift(m, shift[sender], shift[receiver], out, back)
        done[part] = True
    return shift


def _shift(m: MessageTimes, sent: I64, received: I64, out: np.ndarray, back: np.ndarray) -> int:
    """The part's shift from the messages that go out to it and come back from it."""
    if int(out.sum() + back.sum()) < MIN_MESSAGES:
        return 0
    ahead = (m.sent_end_ns + sent - m.received_end_ns)[out]
    behind = (m.received_end_ns + received - m.sent_end_ns)[back]
    estimates = [float(np.median(one)) for one in (ahead, behind) if len(one)]
    at_least = (m.sent_start_ns + sent - m.received_end_ns)[out & m.directed]
    at_most = (m.received_end_ns + received - m.sent_start_ns)[back & m.directed]
    low = int(at_least.max()) if len(at_least) else None
    high = int(at_most.min()) if len(at_most) else None
    guess = round(sum(estimates) / len(estimates))
    if abs(guess) < AGREEMENT_NS:
        return 0
    if low is not None and high is not None and low > high:
        return guess  # the clocks drift: no shift satisfies all
    guess = guess if low is None else max(guess, low)
    return guess if high is None else min(guess, high)
