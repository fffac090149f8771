"""Notes every operator that is called on tensors without data, collectives included."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from foretrace.collector.calls import OPERATORS, scalar_type
from foretrace.collector.dryrun.spec import Operation
from foretrace.collector.recorder import Recorder

_KINETO = {
    "Float": "float",
    "Double": "double",
    "Long": "long int",
    "Int": "int",
    "Short": "short",
    "Byte": "unsigned char",
    "Char": "signed char",
    "Bool": "bool",
}
"""Element types as the profiler writes them; others stand under ``c10::``."""

FUNCTIONAL: dict[str, tuple[str, Callable[[Any, Any], list[Any]]]] = {
    "all_reduce": ("allreduce_", lambda a, r: [[r], a[2]]),
    "all_reduce_": ("allreduce_", lambda a, r: [[r], a[2]]),
    "all_reduce_coalesced": ("allreduce_coalesced_", lambda a, r: [list(r), a[2]]),
    "all_reduce_coalesced_": ("allreduce_coalesced_", lambda a, r: [list(r), a[2]]),
    "all_gather_into_tensor": ("_allgather_base_", lambda a, r: [r, a[0], a[2]]),
    "all_gather_into_tensor_out": ("_allgather_base_", lambda a, r: [r, a[0], a[2]]),
    "all_gather_into_tensor_coalesced": (
        "allgather_into_tensor_coalesced_",
        lambda a, r: [list(r), list(a[0]), a[2]],
    ),
    "reduce_scatter_tensor": ("_reduce_scatter_base_", lambda a, r: [r, a[0], a[3]]),
    "reduce_scatter_tensor_out": ("_reduce_scatter_base_", lambda a, r: [r, a[0], a[3]]),
    "reduce_scatter_tensor_coalesced": (
        "reduce_scatter_tensor_coalesced_",
        lambda a, r: [list(r), list(a[0]), a[3]],
    ),
    "all_to_all_single": ("alltoall_base_", lambda a, r: [r, a[0], a[3], a[1], a[2]]),
    "broadcast": ("broadcast_", lambda a, r: [[r], a[2], a[1]]),
    "broadcast_": ("broadcast_", lambda a, r: [[r], a[2], a[1]]),
}
"""Functional collective -> the ``c10d`` operator below it and that one's arguments.

Without data they never reach that operator. Arguments are made from those of the functional
one and from its result; the group is a name, in the place of the group.
"""


def watch(recorder: Recorder, operations: list[Operation]) -> Any:
    """A dispatch mode that notes operators, to be entered inside torch's fake mode.

    Args:
        recorder: takes functional collectives; its clock gives ticks.
        operations: takes all other operators.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
    from torch.utils import _python_dispatch

    mode: Any = _python_dispatch.TorchDispatchMode
    plain = (torch.Tensor, torch.nn.Parameter, FakeTensor)
    scalar = torch.ops.aten._local_scalar_dense.default
    in_backward = torch._C._current_graph_task_id

    class Watch(mode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not all(issubclass(t, plain) and t in plain for t in types):
                return NotImplemented  # a DTensor: let it become operators on its local tensors
            kwargs = kwargs or {}
            library, _, name = func._schema.name.partition("::")
            tensors = list(_tensors([*args, *kwargs.values()]))
            if tensors and not any(isinstance(t, FakeTensor) for t in tensors):
                with unset_fake_temporarily():  # what has data keeps it
                    return func(*args, **kwargs)
            if func is scalar:
                return _number(args[0])
            if library == "_c10d_functional" and name in FUNCTIONAL:
                return _functional(recorder, name, func, args, kwargs)
            if library not in ("c10d", "prim"):
                shapes = json.dumps([list(t.shape) for t in tensors])
                dtypes = json.dumps([type_name(t.dtype) for t in tensors])
                row = (func._schema.name, shapes, dtypes, in_backward() >= 0)
                operations.append(Operation(recorder.clock(), *row))
            return func(*args, **kwargs)

    return Watch()


def type_name(dtype: object) -> str:
    """A torch dtype as the profiler writes it: ``torch.float32`` -> ``float``."""
    name = scalar_type(dtype)
    return _KINETO.get(name, f"c10::{name}")


def _number(tensor: Any) -> bool | int | float:
    """What a script gets that reads a tensor without data: no flag is set, every count is 1."""
    import torch

    if tensor.dtype is torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1


def _tensors(values: Any) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _functional(recorder: Recorder, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    import torch

    start = recorder.clock()
    result = func(*args, **kwargs)
    given = [*args, *(kwargs[a.name] for a in func._schema.arguments if a.name in kwargs)]
    called, arguments = FUNCTIONAL[name]
    made, operator = arguments(given, result), OPERATORS[called]
    group = torch._C._distributed_c10d._resolve_process_group(made[operator.group])
    recorder.end(recorder.begin(called, operator, made, group, 1), start, recorder.clock())
    return result
