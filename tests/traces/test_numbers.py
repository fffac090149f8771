"""Times and ids out of JSON text, against exact decimals."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.traces.kineto import document, lasting, losses, read, rows

from foretrace.traces.importers.numbers import LARGEST_US, decimal_us_to_ns, first_integer


def us_to_ns(text: str) -> tuple[int, bool]:
    buf = np.frombuffer(text.encode() + b"\0", np.uint8)
    value, ok = decimal_us_to_ns(buf, 0, len(text))
    return int(value), bool(ok)


def exact(text: str) -> int:
    return int((Decimal(text) * 1000).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


PLAIN = st.builds(
    lambda sign, whole, places: f"{sign}{whole}" + (f".{places}" if places else ""),
    st.sampled_from(["", "-"]),
    st.integers(0, LARGEST_US),
    st.text("0123456789", max_size=12),
)


@given(PLAIN)
def test_plain_decimals_are_exact(text: str) -> None:
    assert us_to_ns(text) == (exact(text), True)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("0.0005", 0),  # half of a nanosecond goes to the even one
        ("0.0015", 2),
        ("0.00150000000000000000001", 2),
        ("0.0025000000000001", 3),
        ("-0.0025", -2),
        ("1712170303391827.123", 1712170303391827123),  # a double would give ...827.25
        ("9223372036854774.999", 9223372036854774999),
    ],
)
def test_known_values(text: str, ns: int) -> None:
    assert us_to_ns(text) == (ns, True)


@pytest.mark.parametrize(
    "text", ["", "-", ".5", "1e3", "inf", "nan", "null", "1.2.3", "12x", "9223372036854776"]
)
def test_everything_else_is_refused(text: str) -> None:
    assert us_to_ns(text)[1] is False


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_integers(value: int) -> None:
    text = str(value).encode()
    assert first_integer(np.frombuffer(text, np.uint8), 0, len(text)) == (value, True)


@given(st.integers(2**63, 2**64 - 1))
def test_unsigned_ids_keep_their_bits(value: int) -> None:
    text = str(value).encode()
    number, ok = first_integer(np.frombuffer(text, np.uint8), 0, len(text))
    assert ok
    assert number % 2**64 == value


@pytest.mark.parametrize(
    ("text", "value"),
    [('"stream 7"', 7), ('"25738 (python)"', 25738), ('"-3"', -3), ("7.0", 7)],
)
def test_ids_inside_texts(text: str, value: int) -> None:
    buf = np.frombuffer(text.encode(), np.uint8)
    assert first_integer(buf, 0, len(buf)) == (value, True)


@pytest.mark.parametrize("text", ["null", '""', '"Spans"', "true"])
def test_no_id(text: str) -> None:
    buf = np.frombuffer(text.encode(), np.uint8)
    assert first_integer(buf, 0, len(buf))[1] is False


@given(st.decimals(-(10**12), 10**15, allow_nan=False, places=3), st.sampled_from(["e", "E"]))
def test_exponents_take_the_exact_way_round(value: Decimal, letter: str) -> None:
    text = f"{value.scaleb(-3)}".replace("E", "e").split("e", maxsplit=1)[0]
    written = f"{Decimal(text)}{letter}3"
    event = json.dumps(document([lasting("cpu_op", "a", "TS", 1)])).replace('"TS"', written)
    assert rows(read(event), "start_ns") == [(exact(str(Decimal(text).scaleb(3))),)]


def test_a_time_that_is_none_is_counted() -> None:
    good = lasting("cpu_op", "good", 5, 1)
    bad = [lasting("cpu_op", "bad", value, 1) for value in ("soon", None, [1], "")]
    missing = {k: v for k, v in good.items() if k != "ts"}
    tables = read(document([good, *bad, missing]))
    assert rows(tables, "name") == [("good",)]
    assert losses(tables) == {"event without a readable time": 5}
