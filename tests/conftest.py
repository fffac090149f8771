"""What tests of several parts share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The first example of a test may compile; how long an example takes is nobody's business here.
settings.register_profile("foretrace", deadline=None)
settings.load_profile("foretrace")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real traces, which are not part of the project; skips where there is none."""
    default = ROOT.parent / "shared" / "data"
    folder = Path(os.environ.get("FORETRACE_DATA", default))
    if not (folder / "traces").is_dir():
        pytest.skip(f"no real traces at {folder} (set FORETRACE_DATA)")
    return folder
