"""Sizes of one rank's share of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.replay.layout import Layout
from foretrace.replay.model import Model

ELEMENT = 2
"""Bytes of one activation: 16-bit compute, whatever the products' operands are."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths and counts on one rank.

    Attributes:
        model: the whole model.
        layout: the layout.
    """

    model: Model
    layout: Layout

    @property
    def tokens(self) -> float:
        """Tokens that enter the matrix products of a tensor-parallel rank."""
        return self.layout.tokens

    @property
    def own_tokens(self) -> float:
        """Tokens whose norms and residuals the rank computes."""
        shared = self.layout.sequence_parallel
        return self.layout.tokens / (self.layout.tp if shared else 1)

    @property
    def stream_bytes(self) -> float:
        """The residual stream of all tokens of the tensor-parallel group."""
        return self.tokens * self.model.hidden * ELEMENT

    @property
    def own_bytes(self) -> float:
        """The residual stream of the rank's own tokens."""
        return self.own_tokens * self.model.hidden * ELEMENT

    @property
    def heads(self) -> float:
        """Query heads of a tensor-parallel rank."""
        return self.model.heads / self.layout.tp

    @property
    def kv_heads(self) -> float:
        """Key and value heads of a tensor-parallel rank; copies where there are too few."""
        return max(self.model.kv / self.layout.tp, 1.0)

    @property
    def value_width(self) -> float:
        """Width of the rank's attention output."""
        return self.heads * self.model.value_width

    @property
    def expert_tokens(self) -> float:
        """Tokens that a rank's experts get when routing is even."""
        even = self.own_tokens * self.model.topk * self.layout.etp
        return even * (self.layout.capacity or 1.0)

    @property
    def local_experts(self) -> float:
        """Experts that a rank holds."""
        return self.model.experts / self.layout.ep

    @property
    def matrices_up(self) -> int:
        """Matrices of an MLP that widen: gate and value, or one."""
        return 2 if self.model.gated else 1
