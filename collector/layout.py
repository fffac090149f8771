"""The parallel layout, read off the names that frameworks give their process groups."""

from __future__ import annotations

from collections.abc import Iterable

from foretrace.collector.spool import Group

MEGATRON = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
}
"""Megatron-LM's group descriptions and the usual short name of the axis."""

_MESH = "mesh_"
_NOT_AN_AXIS = {"default"}


def layout_of(groups: Iterable[Group]) -> dict[str, int]:
    """Axis -> size, from DeviceMesh dimension names or Megatron's group descriptions.

    Args:
        groups: process groups of one rank.

    Returns:
        Empty where no group says what it is for.
    """
    found: dict[str, int] = {}
    for group in groups:
        axis = MEGATRON.get(group.description, "")
        if group.description.startswith(_MESH):
            axis = group.description.removeprefix(_MESH)
        if axis and axis not in _NOT_AN_AXIS and group.ranks:
            found.setdefault(axis, len(group.ranks))
    return found


def all_groups() -> list[Group]:
    """Every process group of this process with all its ranks, the default group first."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return []
    from torch.distributed import distributed_c10d as c10d

    from foretrace.collector.hook import describe_group

    return [
        Group(state.name, state.description, state.ranks)
        for group in list(c10d._world.pg_map)
        if group is not None
        for state in (describe_group(group),)
    ]
