"""A column of texts as numbers into a list of distinct ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Coded:
    """Texts of one column.

    Args:
        codes: index into ``values`` of each row, shape ``(rows,)``.
        values: distinct texts.
    """

    __slots__ = ("codes", "values")

    def __init__(self, codes: NDArray[np.int32], values: list[str]) -> None:
        self.codes = codes
        self.values = values

    def __getitem__(self, rows: Any) -> Coded:
        return Coded(self.codes[rows], self.values)

    def __len__(self) -> int:
        return len(self.codes)

    def text(self, row: int) -> str:
        """Text of one row."""
        return self.values[int(self.codes[row])]

    def marked(self, wanted: Callable[[str], Any]) -> NDArray[np.bool_]:
        """Rows with a text for which ``wanted(text)`` holds; asked once per distinct text."""
        marks = np.array([bool(wanted(v)) for v in self.values], np.bool_)
        return marks[self.codes] if len(marks) else np.zeros(len(self.codes), np.bool_)
