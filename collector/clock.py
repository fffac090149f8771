"""How far this rank's clock is from the reference rank's: ping-pong through the store.

One rank of each host asks (all processes of a host share its clock), the reference rank
answers with its time. Of several rounds the one with the shortest round trip counts: its
error is at most half of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from foretrace.collector.channel import Channel
from foretrace.collector.spool import Sample

ROUNDS = 12
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Clock = Callable[[], int]
Stop = Callable[[], bool]


def host_identity() -> str:
    """What two processes have in common if and only if they share a clock."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        import socket

        return socket.gethostname()


class Server:
    """The reference rank's side: answers every ping until stopped.

    Args:
        channel: connection of this thread.
        host: identity of this host.
        clock: ns since the epoch.
    """

    def __init__(self, channel: Channel, host: str, clock: Clock = time.time_ns) -> None:
        self._channel = channel
        self._host = host
        self._clock = clock

    def run(self, stop: Stop, idle_s: float = 0.02, eager_s: float = 0.01) -> None:
        """Serve; ask often for ``eager_s`` seconds after an answer, rarely otherwise."""
        self._channel.put("clock/host", self._host)
        number, eager_until = 1, 0.0
        while not stop():
            if self._answer(number):
                number, eager_until = number + 1, time.monotonic() + eager_s
            elif time.monotonic() > eager_until:
                # A rank that died between taking a number and asking must not block the rest.
                if self._channel.take(f"clock/{number + 1}") is not None:
                    number += 1
                else:
                    time.sleep(idle_s)

    def _answer(self, number: int) -> bool:
        if self._channel.take(f"clock/{number}") is None:
            return False
        self._channel.put(f"clock/{number}/at", str(self._clock()))
        self._channel.forget(f"clock/{number}")
        return True


def measure(
    channel: Channel, host: str, phase: str, timeout_s: float, clock: Clock = time.time_ns
) -> list[Sample]:
    """Samples of this host's clock against the reference's, best first.

    Args:
        channel: connection of this thread.
        host: identity of this host.
        phase: "start" or "end".
        timeout_s: give up after so many seconds.
        clock: ns since the epoch.

    Returns:
        One exact sample of offset 0 on the reference's own host; none where it does not answer.
    """
    reference = channel.wait("clock/host", timeout_s)
    if reference is None:
        return []
    if reference == host:
        return [Sample(clock(), 0, 0)]
    shared = f"clock/samples/{host}/{phase}"
    if channel.increase(f"{shared}/asked") > 1:
        found = channel.wait(shared, timeout_s)
        return msgspec.json.decode(found, type=list[Sample]) if found else []
    samples = _rounds(channel, timeout_s, clock)
    channel.put(shared, msgspec.json.encode(samples).decode())
    return samples


def _rounds(channel: Channel, timeout_s: float, clock: Clock) -> list[Sample]:
    deadline = time.monotonic() + timeout_s
    samples = []
    for _ in range(ROUNDS):
        number = channel.increase("clock/next")
        asked = clock()
        channel.put(f"clock/{number}", "")
        answer = channel.wait(f"clock/{number}/at", deadline - time.monotonic(), pause_s=0)
        answered = clock()
        if answer is None:
            break
        channel.forget(f"clock/{number}/at")
        middle = (asked + answered) // 2
        samples.append(Sample(middle, int(answer) - middle, answered - asked))
    return sorted(samples, key=lambda sample: sample.rtt_ns)


def offset_at(samples: list[Sample], time_ns: int) -> int:
    """The offset to add at ``time_ns``, from the best samples before and after it.

    With samples on both sides the clocks are taken to drift evenly between them.

    Args:
        samples: of the start and of the end, in any order.
        time_ns: this rank's clock.
    """
    best = [
        min(side, key=lambda sample: sample.rtt_ns)
        for side in (
            [s for s in samples if s.local_ns <= time_ns],
            [s for s in samples if s.local_ns > time_ns],
        )
        if side
    ]
    if not best:
        return 0
    if len(best) == 1:
        return best[0].offset_ns
    before, after = best
    share = (time_ns - before.local_ns) / (after.local_ns - before.local_ns)
    return before.offset_ns + round(share * (after.offset_ns - before.offset_ns))
