"""A world of one process: process groups without members, and what stands in for their data.

Only torch's own entry points are replaced, and only in the process of a dry run: the default
group becomes torch's "fake" group, all other code of the frameworks runs as it is.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from foretrace.collector.dryrun.mailbox import Mailbox
from foretrace.collector.dryrun.routing import Routing, parse_routing
from foretrace.collector.dryrun.spec import Spec

_current: World | None = None

_OBJECT_BROADCASTS = ("broadcast_object_list", "scatter_object_list")


class World:
    """What this process pretends to be part of.

    Args:
        spec: which rank it is.

    Attributes:
        families: description and members of every group made.
        notes: what could not be done as in a real run.
    """

    def __init__(self, spec: Spec) -> None:
        self.rank = spec.rank
        self.world_size = spec.world_size
        self.fake = spec.fake
        self.mailbox = Mailbox(Path(spec.mailbox))
        self.routing: Routing | None = parse_routing(spec.routing) if spec.routing else None
        self.families: list[tuple[str, list[int]]] = []
        self.notes: list[str] = []
        self.in_object_broadcast = False
        self.in_exchange = False  # of counts whose layer is known

    def enter(self) -> None:
        """Replace the entry points; the process ends with them."""
        global _current  # noqa: PLW0603 (exchange_counts has nobody to ask)
        import torch.distributed as dist
        from torch.testing._internal.distributed import fake_pg

        _current = self
        make_default, make_group = dist.init_process_group, dist.new_group
        signature = inspect.signature(make_group)

        def init_process_group(*_args: Any, **_kwargs: Any) -> None:
            store = fake_pg.FakeStore()
            make_default("fake", store=store, rank=self.rank, world_size=self.world_size)
            self.families.append(("default_pg", list(range(self.world_size))))

        def new_group(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            for name in ("backend", "pg_options", "device_id"):  # those of the real backend
                given.pop(name, None)
            ranks = given.get("ranks")
            members = list(range(self.world_size)) if ranks is None else [int(r) for r in ranks]
            self.families.append((str(given.get("group_desc") or ""), members))
            return make_group(**given)

        replace_everywhere(make_default, init_process_group)
        replace_everywhere(make_group, new_group)
        replace_everywhere(dist.destroy_process_group, _keep_groups)
        for name in _OBJECT_BROADCASTS:
            original = getattr(dist, name)
            replace_everywhere(original, self._marked(original))

    def _marked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.in_object_broadcast = True
            try:
                return original(*args, **kwargs)
            finally:
                self.in_object_broadcast = False

        return call

    def exchange(self, counts: Any, total: int, group: Any, layer: int) -> tuple[Any, Any]:
        """See :func:`exchange_counts`."""
        import torch
        import torch.distributed as dist

        routing = self.routing
        if routing is None and self.fake:
            routing = Routing(0.0, None, "uniform")
        with outside_fake() if self.fake else nullcontext():
            if routing is not None:
                wanted = routing.counts(total, counts.numel(), layer)
                given = torch.from_numpy(wanted).to(counts.dtype).view(counts.shape)
            else:
                given = counts
            received = torch.empty_like(given)
            self.in_exchange = True
            dist.all_to_all_single(received, given, group=group)
            self.in_exchange = False
            if routing is not None:
                received.copy_(mirrored(given, dist.get_rank(group), dist.get_world_size(group)))
        return given, received


def _keep_groups(*_args: Any, **_kwargs: Any) -> None:
    """In place of ``destroy_process_group``: the groups are described after the script's end."""


def mirrored(counts: Any, member: int, members: int) -> Any:
    """What a member receives if all members send ``counts``: its own part from each."""
    return counts.view(members, -1)[member].repeat(members).view(counts.shape)


def exchange_counts(counts: Any, total: int, group: Any = None, layer: int = 0) -> tuple[Any, Any]:
    """Tell the other members how many tokens each of their experts will get.

    For scripts with expert parallelism, in the place of ``dist.all_to_all_single(received,
    counts)``, which it does. In a dry run nobody answers, and without data no router decides:
    there the counts come from the routing that the user gave (``foretrace dryrun --routing``).

    Args:
        counts: tokens for each expert, shape ``(experts,)``, a member's experts side by side.
        total: their sum (tokens times experts chosen for each), known without looking at data.
        group: the expert-parallel group.
        layer: number of the layer, for routings that tell layers apart.

    Returns:
        What is sent to each expert (``counts`` itself outside of a dry run) and what is
        received for the own experts from each member, shape ``(members * own experts,)``.
    """
    if _current is not None:
        return _current.exchange(counts, total, group, layer)
    import torch
    import torch.distributed as dist

    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=group)
    return counts, received


def outside_fake() -> Any:
    """A context in which tensors are real although the script's are not."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def replace_everywhere(original: Any, ours: Any) -> None:
    """Put ``ours`` where any loaded module holds ``original``."""
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", None)
        if not isinstance(held, dict):
            continue
        for name in [name for name, value in held.items() if value is original]:
            held[name] = ours


def keep_out_of_fake(names: Sequence[tuple[Any, str]]) -> None:
    """Let methods work on real tensors: they compute indices, or read what they have received.

    Args:
        names: owner and name of each.
    """
    for owner, name in names:
        held = vars(owner).get(name)
        if isinstance(held, (staticmethod, classmethod)):
            setattr(owner, name, type(held)(_outside(held.__func__)))
        elif isinstance(held, property):
            setattr(owner, name, property(_outside(held.fget)))
        elif callable(held) and not isinstance(held, type):
            setattr(owner, name, _outside(held))


def _outside(function: Any) -> Callable[..., Any]:
    call = getattr(function, "__func__", function)  # pybind wraps methods in an instancemethod

    @functools.wraps(call)
    def real(*args: Any, **kwargs: Any) -> Any:
        with outside_fake():
            return call(*args, **kwargs)

    return real


def prepare_fake() -> None:
    """Keep the parts of torch that need numbers, not tensors, out of fake mode."""
    import torch.distributed as dist
    import torch.nn.parallel.distributed as ddp
    from torch.distributed import device_mesh, fsdp, pipelining, tensor

    mesh, stage = device_mesh.DeviceMesh, pipelining.PipelineStage
    make = device_mesh.init_device_mesh
    if fsdp and tensor:  # loaded, so that their references are found
        replace_everywhere(make, _outside(make))
    names = [(mesh, name) for name in list(vars(mesh))]
    shakes = ("_warmup_forward_vote", "_warmup_backward_result", "_recv_meta", "_send_meta")
    names += [(stage, name) for name in shakes]
    names.append((ddp, "_verify_param_shape_across_processes"))
    names.append((dist.Reducer, "_rebuild_buckets"))
    keep_out_of_fake(names)
