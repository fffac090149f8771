"""Numbering of distinct texts, against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.traces.importers.intern import Interner


@given(st.lists(st.lists(st.binary(max_size=12), max_size=30), max_size=4))
def test_numbers_stand_for_the_texts(batches: list[list[bytes]]) -> None:
    interner = Interner()
    known: dict[bytes, int] = {b"": 0}
    for batch in batches:
        ends = np.cumsum([0, *(len(t) for t in batch)])
        buf = np.frombuffer(b"".join(batch) + b"\0", np.uint8)
        codes = interner.add(buf, np.stack([ends[:-1], ends[1:]], axis=1))
        assert codes.tolist() == [known.setdefault(t, len(known)) for t in batch]
    assert interner.texts() == list(known)


def test_tables_grow() -> None:
    texts = [f"{i:07d}".encode() * 20 for i in range(20_000)]
    buf = np.frombuffer(b"".join(texts), np.uint8)
    ends = np.arange(len(texts) + 1) * 140
    interner = Interner()
    codes = interner.add(buf, np.stack([ends[:-1], ends[1:]], axis=1))
    assert codes.tolist() == list(range(1, len(texts) + 1))
    assert interner.texts()[1:] == texts
