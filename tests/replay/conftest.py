"""Lets the tests of this folder import their builders as ``tests.replay.traces`` and so on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# How long an example takes says nothing about whether it is right.
settings.register_profile("replay", deadline=None)
settings.load_profile("replay")


@pytest.fixture(scope="session")
def real_sets(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> object:
    """The three recordings of eight ranks, imported once; see ``tests.replay.real``."""
    from tests.replay.real import RealSets

    return RealSets(shared_data / "traces", tmp_path_factory.mktemp("real"))
