"""How many tokens a router sends to each expert, where no router has data to decide on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.traces.errors import ForetraceError

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

_HINT = "expected 'uniform', 'zipf:EXPONENT', or a .json file of counts"


@dataclass(frozen=True, slots=True)
class Routing:
    """Shares of experts.

    Attributes:
        exponent: of Zipf's law, 0 for equal shares.
        recorded: counts for each layer, shape ``(layers, experts)``; None where a law holds.
        origin: what the user asked for.
    """

    exponent: float
    recorded: F64 | None
    origin: str

    def shares(self, experts: int, layer: int) -> F64:
        """Share of the tokens that each expert gets, shape ``(experts,)``; they add up to 1.

        Args:
            experts: how many there are.
            layer: number of the layer; with Zipf's law it decides which experts are popular.

        Raises:
            ForetraceError: recorded counts are for another number of experts.
        """
        if self.recorded is not None:
            row = self.recorded[layer % len(self.recorded)]
            if len(row) != experts:
                raise ForetraceError(
                    f"{self.origin}: counts of {len(row)} experts, but the script has {experts}; "
                    "give one count for each expert"
                )
            shares: F64 = row / row.sum()
            return shares
        weight = np.arange(1, experts + 1, dtype=np.float64) ** -self.exponent
        order = np.random.default_rng(layer).permutation(experts)
        spread = np.empty(experts)
        spread[order] = weight / weight.sum()
        return spread

    def counts(self, tokens: int, experts: int, layer: int) -> I64:
        """Tokens for each expert, shape ``(experts,)``; they add up to ``tokens``.

        Whole numbers by largest remainder, lower expert first.
        """
        exact = self.shares(experts, layer) * tokens
        counts = np.floor(exact).astype(np.int64)
        order = np.argsort(counts - exact, kind="stable")
        counts[order[: tokens - int(counts.sum())]] += 1
        return counts


def parse_routing(text: str) -> Routing:
    """The routing that a text names.

    Args:
        text: ``uniform``, ``zipf:EXPONENT``, or the path of a JSON file with the counts of the
            experts, or a list of them for each layer.

    Raises:
        ForetraceError: it is none of these, or the file cannot be used.
    """
    law, _, exponent = text.partition(":")
    if text == "uniform":
        return Routing(0.0, None, text)
    if law == "zipf":
        try:
            value = float(exponent)
        except ValueError:
            value = -1.0
        if not 0 <= value < np.inf:
            raise ForetraceError(f"routing {text!r}: {_HINT}")
        return Routing(value, None, text)
    if not text.endswith(".json"):
        raise ForetraceError(f"routing {text!r}: {_HINT}")
    return Routing(0.0, _recorded(Path(text)), text)


def _recorded(path: Path) -> F64:
    try:
        given = msgspec.json.decode(path.read_bytes(), type=list[float | list[float]])
    except (OSError, msgspec.DecodeError):
        raise ForetraceError(f"{path}: {_HINT}, such as [[120, 80], [90, 110]]") from None
    rows = [row for row in given if isinstance(row, list)]
    flat = [count for count in given if not isinstance(count, list)]
    if len({len(row) for row in rows}) > 1 or (rows and flat):
        raise ForetraceError(f"{path}: layers have different numbers of experts")
    counts = np.array(rows or [flat], np.float64)
    if not counts.size or (counts < 0).any() or not (counts.sum(axis=1) > 0).all():
        raise ForetraceError(f"{path}: each layer needs counts >= 0 that are not all 0")
    return counts
