"""The testbed lies beside the package; its modules import each other as ``testbed.NAME``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
