"""Lets the tests of this folder import their builders as ``tests.replay.traces`` and so on."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# How long an example takes says nothing about whether it is right.
settings.register_profile("replay", deadline=None)
settings.load_profile("replay")
