"""How the program writes: tables for people, JSON for scripts, numbers with their unit."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

_PIPED_WIDTH = 160  # columns where nobody says how wide the output may be


def print_json(value: Any) -> None:
    """Write one JSON document; dataclasses become objects, in the order of their fields."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    sys.stdout.write(text + "\n")


def print_line(text: str = "") -> None:
    """Write one line of the result."""
    sys.stdout.write(text + "\n")


def print_note(text: str) -> None:
    """Write one line about the result to standard error."""
    sys.stderr.write(f"foretrace: note: {' '.join(text.split())}\n")


MIN_FIRST = 16
"""The first column folds down to this many characters."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table; the first column is text, the others are aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        left = number == 0
        table.add_column(
            Text(column), justify="left" if left else "right", no_wrap=not left, overflow="fold"
        )
    rows = list(rows)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a kernel's "[...]" is no markup
    console = _console()
    # A number is never cut: only the first column folds, and a line that is still too long for
    # the terminal runs over.
    wide = Console(width=10_000)
    natural = Measurement.get(wide, wide.options, table).maximum
    first = max((len(row[0]) for row in rows), default=0)
    console.width = max(console.width, natural - max(first - MIN_FIRST, 0))
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    sys.stdout.write("\n".join(line for line in lines if line) + "\n")


def _console() -> Console:
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = _PIPED_WIDTH if piped else shutil.get_terminal_size().columns
    return Console(width=width, highlight=False, soft_wrap=False)


def duration(ns: float) -> str:
    """Nanoseconds for people: ``812.4 ms``, ``31.0 µs``, ``12.35 s``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.{2 if unit == 's' else 1}f} {unit}"
    return f"{ns:.0f} ns"


def percent(fraction: float, signed: bool = False) -> str:
    """A fraction as percent with two digits: ``0.21%``, or ``-0.07%`` with its sign."""
    return f"{100 * fraction:{'+' if signed else ''}.2f}%"


def number_list(numbers: Sequence[int], most: int = 8) -> str:
    """``0-3, 7``, and how many more there are."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:most]]
    left = sum(b - a + 1 for a, b in runs[most:])
    return ", ".join(shown) + (f" and {left} more" if left else "")
