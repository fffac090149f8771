"""Records training steps of any PyTorch job into a trace set.

Import this module anywhere; torch is imported only when a recording starts.
"""

from __future__ import annotations

from foretrace.collector.profile import profile

__all__ = ["profile"]
