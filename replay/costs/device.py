"""Which GPU type a device's recorded name stands for."""

from __future__ import annotations

import re

from foretrace.replay.cluster import Gpu, load_gpu
from foretrace.traces.errors import LayoutError

_NAMES = (
    (r"gb200", "gb200"),
    (r"gh200", "gh200"),
    (r"b200", "b200"),
    (r"h200", "h200"),
    (r"h800", "h800"),
    (r"h100", "h100"),
    (r"a800", "a800"),
    (r"a100.*40gb|a100-pg509", "a100-40g"),  # PG509-200 is the 40 GB board
    (r"a100", "a100"),
    (r"v100", "v100"),
    (r"mi300x", "mi300x"),
    (r"mi325x", "mi325x"),
    (r"mi355x", "mi355x"),
)


def gpu_of_device(device_name: str) -> Gpu:
    """The GPU type of a recorded device name such as ``NVIDIA H100 80GB HBM3``.

    Raises:
        LayoutError: the name is of no bundled type.
    """
    folded = device_name.lower()
    for pattern, name in _NAMES:
        if re.search(pattern, folded):
            return load_gpu(name)
    raise LayoutError(
        f"device {device_name!r} is no known GPU type; expected a name such as "
        "'NVIDIA H100 80GB HBM3', or give the type (foretrace clusters lists them)"
    )
