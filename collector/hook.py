"""Sees every collective and p2p call: kernels of our own under the ``c10d::`` operators.

All calls pass the dispatcher, from Python, from DDP's C++ reducer, from functional
collectives. A Python kernel at dispatch key BackendSelect (above every real backend, below
autograd and modes) takes the call down and hands it on below itself, unchanged. Registered
for the recorded steps only and taken away again after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from foretrace.collector.calls import NOT_COMMUNICATION, OPERATORS, Operator
from foretrace.collector.recorder import GroupState, Recorder

WAITED_BY_TENSOR = frozenset(
    {
        "allreduce_",
        "allreduce_coalesced_",
        "_allgather_base_",
        "allgather_into_tensor_coalesced_",
        "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
        "alltoall_base_",
        "broadcast_",
    }
)
"""Operators below functional collectives, whose outputs ``wait_tensor`` may name later."""

Failed = Callable[[BaseException], None]


class CollectiveHook:
    """The kernels while they are registered.

    Args:
        recorder: takes the rows.
        failed: told of an error of our own; the call itself goes on.
        completions: ask each Work for a callback when it is complete.
    """

    def __init__(self, recorder: Recorder, failed: Failed, completions: bool = False) -> None:
        self.recorder = recorder
        self._failed = failed
        self._completions = completions
        self._libraries: list[Any] = []

    def install(self) -> None:
        """Register the kernels.

        Raises:
            RuntimeError: torch refuses; nothing stays registered.
        """
        import torch

        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        names = [str(name) for name in torch._C._dispatch_get_all_op_names()]
        try:
            calls = torch.library.Library("c10d", "IMPL")
            self._libraries.append(calls)
            for name in sorted(_own_names(names, "c10d")):
                if name in OPERATORS:
                    overload = getattr(torch.ops.c10d, name).default
                    kernel = self._call_kernel(name, OPERATORS[name], overload, below)
                    calls.impl(name, kernel, "BackendSelect", with_keyset=True)
            if "wait_tensor" in _own_names(names, "_c10d_functional"):
                waits = torch.library.Library("_c10d_functional", "IMPL")
                self._libraries.append(waits)
                overload = torch.ops._c10d_functional.wait_tensor.default
                kernel = self._wait_kernel(overload, below)
                waits.impl("wait_tensor", kernel, "BackendSelect", with_keyset=True)
        except Exception as error:  # torch raises many types here; all mean "not on this version"
            self.remove()
            raise RuntimeError(f"kernel registration refused ({error})") from error

    def remove(self) -> None:
        """Take the kernels away."""
        while self._libraries:
            release(self._libraries.pop())

    def _call_kernel(
        self, name: str, operator: Operator, overload: Any, below: Any
    ) -> Callable[..., Any]:
        import torch.distributed as dist

        recorder, clock, hand_on = self.recorder, self.recorder.clock, overload.redispatch
        positions = [argument.name for argument in overload._schema.arguments]
        flag = positions.index("async_op") if "async_op" in positions else -1
        to_group = dist.ProcessGroup.unbox

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            start_ns = clock()
            try:
                given = [*args, *(kwargs[n] for n in positions if n in kwargs)] if kwargs else args
                # Trailing arguments that equal their default (async_op=True) are left out.
                is_async = -1 if flag < 0 else int(given[flag]) if flag < len(given) else 1
                group = to_group(given[operator.group])
                ticket = recorder.begin(name, operator, given, group, is_async)
            except Exception as error:  # nothing of ours may raise into the training loop
                self._failed(error)
                return hand_on(keyset & below, *args, **kwargs)
            entered_ns = clock()
            result = hand_on(keyset & below, *args, **kwargs)
            left_ns = clock()
            try:
                recorder.end(ticket, start_ns, left_ns)
                if name in WAITED_BY_TENSOR:
                    recorder.remember_outputs(ticket.ident, _pointers(operator, given))
                if self._completions and not operator.p2p and _on_host(operator, given):
                    self._watch(ticket.ident, result)
                recorder.spend(entered_ns - start_ns + clock() - left_ns)
            except Exception as error:  # as above
                self._failed(error)
            return result

        return kernel

    def _wait_kernel(self, overload: Any, below: Any) -> Callable[..., Any]:
        recorder, hand_on = self.recorder, overload.redispatch

        def kernel(keyset: Any, tensor: Any) -> Any:
            ident, start_ns = -1, recorder.clock()
            try:
                ident = recorder.output_ident(tensor.data_ptr())
                recorder.waiting(ident)
            except Exception as error:  # nothing of ours may raise into the training loop
                self._failed(error)
            result = hand_on(keyset & below, tensor)
            try:
                recorder.waited(ident, start_ns, annotated=False)
            except Exception as error:  # as above
                self._failed(error)
            return result

        return kernel

    def _watch(self, ident: int, result: Any) -> None:
        """Have the communication library's thread note when the work is complete."""
        import torch.distributed as dist

        boxed = result[-1] if isinstance(result, tuple) else result
        if boxed is None:
            return
        completed = self.recorder.completed
        work = dist.Work.unbox(boxed)
        work.get_future().add_done_callback(lambda _future: completed(ident))


def release(library: Any) -> None:
    """Take a library's registrations away; before torch 2.2 forgetting it does so."""
    if hasattr(library, "_destroy"):
        library._destroy()


def _own_names(names: Sequence[str], library: str) -> set[str]:
    prefix = f"{library}::"
    return {name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)}


def _pointers(operator: Operator, args: Sequence[Any]) -> list[int]:
    """Addresses of the tensors that a later ``wait_tensor`` may name."""
    return [tensor.data_ptr() for tensor in operator.outputs(args)]


def _on_host(operator: Operator, args: Sequence[Any]) -> bool:
    """Whether a call's tensors lie in host memory.

    On a device, a callback on the future would run on streams of its own and hold memory.
    """
    tensors = operator.outputs(args) or operator.inputs(args) or args[:1]
    return bool(tensors[0].is_cpu)


def unknown_operators(names: Sequence[str]) -> list[str]:
    """Operators of the c10d library that this version has and the table does not know."""
    return sorted(_own_names(names, "c10d") - set(OPERATORS) - NOT_COMMUNICATION)


def describe_group(group: Any) -> GroupState:
    """Name, ranks and own rank of a process group, as torch.distributed holds them."""
    from torch.distributed import distributed_c10d as c10d

    ranks: list[int] = []
    if group in c10d._world.pg_group_ranks:
        members = c10d._world.pg_group_ranks[group]  # global rank -> rank in the group
        ranks = sorted(members, key=members.__getitem__)
    description = str(getattr(group, "group_desc", ""))
    state = GroupState(str(group.group_name), description, int(group.rank()), ranks)
    state.next_seq = count(_calls_before(group))
    return state


def _calls_before(group: Any) -> int:
    """Collectives that a NCCL group has made already.

    With it ranks agree on numbers even if they hook in at different times. Other backends
    count sends and receives too, which not all members make.
    """
    import torch.distributed as dist

    try:
        if str(dist.get_backend(group)) == "nccl":
            return int(group._get_sequence_number_for_group())
    except (RuntimeError, ValueError, AttributeError):  # a group that torch.distributed forgot
        pass
    return 0
