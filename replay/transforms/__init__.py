"""What-ifs as functions from a job graph to a job graph; they compose in any order.

Each transform is one module with one class: its fields are what a scenario file may say, and
calling it with a graph gives the changed graph. One that leaves the edges of a graph as they are
returns the very same edge arrays, so that such scenarios can be replayed together.
"""

from __future__ import annotations

from importlib import import_module

from foretrace.replay.transforms.base import Transform

TRANSFORMS = {
    "scale": "scale:Scale",
    "set": "set:Set",
    "delay": "delay:Delay",
    "equalise": "equalise:Equalise",
    "network": "network:Network",
    "dtype": "dtype:Dtype",
    "overlap": "overlap:Overlap",
    "cuda_graphs": "cuda_graphs:CudaGraphs",
    "fuse": "fuse:Fuse",
    "buckets": "buckets:Buckets",
    "priority": "priority:Priority",
    "dependency": "dependency:Dependency",
    "typical": "typical:Typical",
}
"""Name in a scenario file -> ``module:class`` of this folder. Adding one is one line here."""


def transform_class(name: str) -> type[Transform]:
    """The class of a transform, imported when it is asked for.

    Raises:
        KeyError: there is none of that name.
    """
    module, _, cls = TRANSFORMS[name].partition(":")
    found: type[Transform] = getattr(import_module(f"{__name__}.{module}"), cls)
    return found
