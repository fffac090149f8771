"""Longest paths of many cost vectors at once, level by level, in plain numpy.

Tasks of one level do not depend on each other, so one array operation runs all of them for all
scenarios. It needs no compiler, which for graphs with few levels (the coarse operations of
training steps) makes it faster than loading one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import I64
from foretrace.traces.errors import GraphError
