"""The collective hook of a dry run: notes each call, and does what the missing members would.

torch's fake group copies a rank's own data where it can. What is left: messages between ranks
of which the receiver reads the content, counts of tokens, and futures that hold a result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from foretrace.collector.calls import Operator
from foretrace.collector.dryrun.world import World, mirrored
from foretrace.collector.hook import CollectiveHook, Failed
from foretrace.collector.recorder import Recorder
from foretrace.traces.errors import ForetraceError


class DryHook(CollectiveHook):
    """As :class:`CollectiveHook`, with stand-ins for the other members.

    Args:
        recorder: takes the rows.
        failed: told of an error of our own.
        world: what this process pretends to be part of.
    """

    def __init__(self, recorder: Recorder, failed: Failed, world: World) -> None:
        super().__init__(recorder, failed)
        self._world = world
        self._sent: dict[tuple[object, ...], int] = defaultdict(int)

    def _call_kernel(
        self, name: str, operator: Operator, overload: Any, below: Any
    ) -> Callable[..., Any]:
        noted = super()._call_kernel(name, operator, overload, below)
        before = {"send": self._send, "alltoall_base_": self._route}.get(name)
        after = {
            "recv_": self._receive,
            "broadcast_": self._broadcast,
            "alltoall_base_": self._receive_counts,
        }.get(name)
        to_group = _unbox()

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(args, to_group(args[operator.group]))
            result = noted(keyset, *args, **kwargs)
            if after is not None:
                after(args, to_group(args[operator.group]))
            return _with_result(args[0], result) if name == "allreduce_" else result

        return kernel

    def _send(self, args: Sequence[Any], group: Any) -> None:
        for tensor in args[0]:
            if _has_numbers(tensor):
                key = self._key(group, group.rank(), args[2])
                self._world.mailbox.put(key, _bytes(tensor))

    def _receive(self, args: Sequence[Any], group: Any) -> None:
        for tensor in args[0]:
            if _has_numbers(tensor):
                key = self._key(group, args[2], group.rank())
                data = self._world.mailbox.take(key, _global_rank(group, args[2]))
                _fill(tensor, data)

    def _broadcast(self, args: Sequence[Any], group: Any) -> None:
        if not self._world.in_object_broadcast:
            return
        root = args[2]
        for tensor in args[0]:
            key = self._key(group, root, "all")
            if root == group.rank():
                self._world.mailbox.put(key, _bytes(tensor))
            else:
                _fill(tensor, self._world.mailbox.take(key, _global_rank(group, root)))

    def _key(self, group: Any, source: object, target: object) -> tuple[object, ...]:
        lane = (str(group.group_name), source, target)
        self._sent[lane] += 1
        return (*lane, self._sent[lane])

    def _counts_of(self, args: Sequence[Any], group: Any) -> Any:
        """The tensor of counts in an exchange of them, None where it is another exchange."""
        given, out_splits, in_splits = args[1], args[3], args[4]
        unknown = self._world.routing is not None and not self._world.in_exchange
        plain = unknown and not out_splits and not in_splits
        return given if plain and _has_numbers(given) and not given.numel() % group.size() else None

    def _route(self, args: Sequence[Any], group: Any) -> None:
        given, routing = self._counts_of(args, group), self._world.routing
        if given is not None and routing is not None:
            import torch

            counts = routing.counts(int(given.sum()), given.numel(), 0)
            given.copy_(torch.from_numpy(counts).view(given.shape))

    def _receive_counts(self, args: Sequence[Any], group: Any) -> None:
        given = self._counts_of(args, group)
        if given is not None:
            args[0].copy_(mirrored(given, group.rank(), group.size()))


def _unbox() -> Callable[[Any], Any]:
    import torch.distributed as dist

    unbox: Callable[[Any], Any] = dist.ProcessGroup.unbox
    return unbox


def _global_rank(group: Any, member: int) -> int:
    import torch.distributed as dist

    return int(dist.get_global_rank(group, member))


def _has_numbers(tensor: Any) -> bool:
    """Whether a receiver may read the tensor: whole numbers, in a tensor with data."""
    from torch._subclasses.fake_tensor import FakeTensor

    whole = not tensor.is_floating_point() and not tensor.is_complex()
    return whole and not isinstance(tensor, FakeTensor)


def _bytes(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().contiguous().reshape(-1).cpu()
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def _fill(tensor: Any, data: bytes) -> None:
    import torch

    if len(data) != tensor.nbytes:
        raise ForetraceError(
            f"a message of {len(data)} bytes was sent to this rank, which expects {tensor.nbytes}"
        )
    if data:
        given = torch.frombuffer(bytearray(data), dtype=tensor.dtype)
        tensor.detach().copy_(given.view(tensor.shape))


def _with_result(tensors: Sequence[Any], result: Any) -> Any:
    """The result with a work whose future holds the tensors, as DDP's reducer demands."""
    import torch

    future: Any = torch.futures.Future()
    future.set_result(list(tensors))
    work = torch._C._distributed_c10d._create_work_from_future(future)
    return result[0], work.boxed()
