"""Computation that takes a fixed time and no CPU, inside real autograd graphs."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function


def kernel(name: str, seconds: float) -> None:
    """Compute for so long."""
    with record_function(name):
        time.sleep(seconds)


class _Timed(torch.autograd.Function):
    """Passes its input on; forward and backward take the layer's times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Layer) -> Tensor:
        ctx.layer, ctx.shape = layer, weight.shape
        layer.run("forward")
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.layer.run("backward")
        return grads[0].contiguous(), torch.ones(ctx.shape), None


class Layer(nn.Module):
    """A layer with real parameters and gradients whose kernels are waits.

    Args:
        number: place in the model.
        parameters: how many float32 parameters.
        forward_s: time of its forward kernel, s.
        backward_s: time of its backward kernel, s.
    """

    def __init__(self, number: int, parameters: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.number, self.forward_s, self.backward_s = number, forward_s, backward_s
        self.weight = nn.Parameter(torch.zeros(parameters))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` itself, later."""
        out: Tensor = _Timed.apply(x, self.weight, self)
        return out

    def run(self, direction: str) -> None:
        """The kernel of its ``forward`` or ``backward`` pass."""
        seconds = self.forward_s if direction == "forward" else self.backward_s
        kernel(f"{direction} layer {self.number}", seconds)
