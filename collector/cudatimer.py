"""Device times of collectives without a profiler: CUDA events on the caller's own stream.

Only events are recorded, on streams that the script uses anyway: when the stream reaches the
call, when it reaches the wait for it, and when it goes on. Nothing waits for the device until
the recording is over.
"""

from __future__ import annotations

import time
from typing import Any

from foretrace.collector.spool import DeviceSpan


class CudaTimer:
    """Events around calls, turned into times by :meth:`spans`.

    Args:
        cuda: ``torch.cuda``, or something that behaves like it.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._origin: Any = None
        self._origin_ns = 0
        self._device = -1
        self._reached: dict[int, tuple[int, int, Any]] = {}
        self._waits: dict[int, list[Any]] = {}

    def open(self) -> None:
        """Pin the device's clock to the host's: waits for the device once."""
        self._reached.clear()
        self._waits.clear()
        self._device = self._cuda.current_device()
        self._origin = self._event()
        self._origin.synchronize()
        self._origin_ns = time.time_ns()

    def reached(self, ident: int, tensor: Any) -> None:
        """The caller's stream is about to reach call ``ident`` on ``tensor``."""
        # Events of two devices have no common clock.
        ours = tensor.is_cuda and tensor.device.index == self._device
        if ours and not self._capturing():
            stream = self._cuda.current_stream(tensor.device)
            self._reached[ident] = (self._device, stream.cuda_stream, self._event())

    def waiting(self, ident: int) -> None:
        """The caller's stream is about to wait for call ``ident``."""
        if ident in self._reached and not self._capturing():
            self._waits[ident] = [self._event()]

    def waited(self, ident: int) -> None:
        """The caller's stream has been made to wait for call ``ident``."""
        if ident in self._waits and not self._capturing():
            self._waits[ident].append(self._event())

    def spans(self) -> list[DeviceSpan]:
        """Times of all calls seen since :meth:`open`, ns since the epoch; waits for the device."""
        spans = []
        for ident, (device, stream, event) in sorted(self._reached.items()):
            ends = [self._time_ns(end) for end in self._waits.get(ident, [])]
            wait_ns, end_ns = ends if len(ends) == 2 else (-1, -1)
            spans.append(DeviceSpan(ident, device, stream, self._time_ns(event), wait_ns, end_ns))
        return spans

    def _time_ns(self, event: Any) -> int:
        event.synchronize()
        since_ms = float(self._origin.elapsed_time(event))
        return self._origin_ns + round(since_ms * 1e6)

    def _event(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _capturing(self) -> bool:
        """Inside a CUDA graph capture no event can be timed."""
        return bool(self._cuda.is_current_stream_capturing())
