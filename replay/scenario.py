"""What a what-if says: the grammar of ``SELECTOR=CHANGE``, without looking at any graph.

::

    SCENARIO = RULE (";" RULE)*             applied in order
    RULE     = SELECTOR "=" CHANGE          split at the last "="
    SELECTOR = TERM ("," TERM)*             all must hold; "&" may stand for ","
    TERM     = ["!"] [KEY ":"] VALUE ("|" VALUE)*
    CHANGE   = "x" F | "/" F | "-" P "%" | "+" P "%" | "0" | ["+" | "-"] TIME

A comma or ``&`` after a name only separates where a new term plainly begins, and ``;`` only
after a change, because kernel names are full of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretrace.traces.errors import ScenarioError
from foretrace.traces.schema import COLLECTIVE_KINDS

if TYPE_CHECKING:
    from foretrace.replay.graph import JobGraph

KINDS = (
    "compute",
    "comm",
    "copy",
    "host",
    "launch",
    "sync",
    "stall",
    "skew",
    "kernel",
    "memcpy",
    "memset",
)
"""Values of ``kind:`` (what each stands for: ``replay.whatif.KIND_TASKS``)."""

KEYS = {
    "name": "name of any task",
    "kernel": "name of work on a device",
    "op": "name of work on a host thread",
    "kind": "compute, comm, copy, host, launch, sync, stall, skew",
    "collective": "kind of collective or p2p operation",
    "group": "exact ranks of a collective's group, such as 0-3 or 0,4",
    "rank": "ranks, such as 3 or 0-3,7",
    "stream": "device streams",
    "step": "training steps",
}
"""What a term may ask for, and what its value is."""

PATTERN_KEYS = ("name", "kernel", "op")
NUMBER_KEYS = ("group", "rank", "stream", "step")

Transform = Callable[["JobGraph"], "JobGraph"]
"""A change of a whole job graph (see ``replay.transforms``); pure."""

_UNIT_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)"
_FACTOR = re.compile(rf"(?:[x*]\s*{_NUMBER}|{_NUMBER}\s*x)$")
_DIVISOR = re.compile(rf"/\s*{_NUMBER}$")
_PERCENT = re.compile(rf"([-+])\s*{_NUMBER}\s*%$")
_TIME = re.compile(rf"([-+]?)\s*{_NUMBER}\s*(ns|us|µs|ms|s)?$")
_LONE_COLON = r"(?<!:):(?!:)"
_WORD = "|".join((*KINDS, *COLLECTIVE_KINDS))
_BEGINS_TERM = re.compile(rf"!|(?:{'|'.join(KEYS)}){_LONE_COLON}|(?:{_WORD})(?:\||$)")
_NEXT_RULE = re.compile(r"(?<==)([^=;]*);")
_KEY = re.compile(rf"(\w+){_LONE_COLON}(.*)$", re.DOTALL)
_LONGEST_RANGE = 1_000_000
_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")


@dataclass(frozen=True, slots=True)
class Term:
    """One condition on a task.

    Attributes:
        key: one of KEYS.
        values: accepted values; one of them must fit.
        negate: the condition must not hold.
        text: as typed.
    """

    key: str
    values: tuple[str, ...]
    negate: bool
    text: str

    @property
    def numbers(self) -> frozenset[int]:
        """The values of a rank, stream, step or group term, ranges spelled out."""
        return parse_numbers(",".join(self.values), f"what-if {self.text!r}")


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to a duration: ``max(0, duration * factor + offset_ns)``."""

    factor: float
    offset_ns: float


@dataclass(frozen=True, slots=True)
class Rule:
    """Tasks that fit all terms, and what happens to their durations."""

    terms: tuple[Term, ...]
    change: Change
    text: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """One what-if: rules applied in order, then transforms in order.

    Attributes:
        name: the text as typed, or the name that a scenario file gives.
        rules: changes of durations by selector.
        transforms: changes of the graph.
    """

    name: str
    rules: tuple[Rule, ...]
    transforms: tuple[Transform, ...] = ()


def parse(text: str) -> Scenario:
    """Read one scenario.

    Args:
        text: such as ``kernel:*gemm*=x0.5`` or ``comm,rank:3=0; stall=0``.

    Raises:
        ScenarioError: the text cannot be understood; says which part and what is possible.
    """
    # A rule ends at a ";" after its "=": names before it may contain one.
    parts = _NEXT_RULE.sub(r"\1\n", text).split("\n")
    rules = tuple(_rule(part.strip(), text) for part in parts if part.strip())
    if not rules:
        raise ScenarioError(f"what-if {text!r} is empty; write SELECTOR=CHANGE, such as comm=x0.5")
    return Scenario(text.strip(), rules)


def parse_selector(text: str) -> Rule:
    """Read a selector alone; the rule changes nothing.

    Args:
        text: such as ``kernel:*gemm*,rank:3``.

    Raises:
        ScenarioError: the text cannot be understood.
    """
    if not text.strip():
        raise ScenarioError("a selector is empty; write one such as comm or kernel:*gemm*,rank:3")
    terms = tuple(_term(part.strip(), text) for part in _split_terms(text))
    return Rule(terms, Change(1.0, 0.0), text)


def parse_time_ns(text: str, where: str) -> float:
    """A time with its unit, such as ``40us`` or ``-1.5ms``, in ns.

    Raises:
        ScenarioError: no number with a unit, or one that is beyond reason.
    """
    match = _TIME.match(text.strip())
    if not match or not (match[3] or float(match[2]) == 0):
        raise ScenarioError(f"{where}: expected a time such as 40us or 1.5ms, found {text!r}")
    time_ns = float(match[1] + match[2]) * _UNIT_NS.get(match[3], 0.0)
    if abs(time_ns) > MAX_OFFSET_NS:
        raise ScenarioError(f"{where}: {text!r} is beyond eleven days")
    return time_ns


def parse_length_ns(text: str, where: str) -> float:
    """Like :func:`parse_time_ns`, never below 0.

    Raises:
        ScenarioError: no number with a unit, or a negative one.
    """
    time_ns = parse_time_ns(text, where)
    if time_ns < 0:
        raise ScenarioError(f"{where}: a time here is never negative, found {text!r}")
    return time_ns


def parse_numbers(text: str, where: str) -> frozenset[int]:
    """Numbers and ranges spelled out: ``0-3,7`` is 0, 1, 2, 3 and 7.

    Args:
        text: the numbers; ``|`` may stand for ``,``.
        where: what they belong to, for the message.

    Raises:
        ScenarioError: a part is no number or range.
    """
    numbers: set[int] = set()
    for part in text.replace("|", ",").split(","):
        match = _RANGE.match(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= last - first < _LONGEST_RANGE:
            raise ScenarioError(
                f"{where}: expected numbers such as 3 or 0-3,7, found {part.strip()!r}"
            )
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def _rule(text: str, whole: str) -> Rule:
    selector, equals, change = text.rpartition("=")
    if not equals or not selector.strip():
        raise ScenarioError(
            f"what-if {whole!r}: expected SELECTOR=CHANGE, such as gemm=x0.5, found {text!r}"
        )
    terms = tuple(_term(part.strip(), whole) for part in _split_terms(selector))
    return Rule(terms, _change(change.strip(), whole), text)


def _split_terms(selector: str) -> list[str]:
    """Split at "," and "&", but neither inside a name nor inside a list of numbers."""
    first, *rest = re.split("([,&])", selector)
    terms = [first]
    for separator, piece in zip(rest[::2], rest[1::2], strict=True):
        inside = _key_and_value(terms[-1])[0] in PATTERN_KEYS or _RANGE.match(piece.strip())
        if inside and not _BEGINS_TERM.match(piece.strip()):
            terms[-1] += separator + piece
        else:
            terms.append(piece)
    return terms


def _key_and_value(text: str) -> tuple[str, str]:
    body = text.strip().removeprefix("!").strip()
    match = _KEY.match(body)
    if match and match[1] in KEYS:
        return match[1], match[2].strip()
    return _key_of_word(body), body


def _term(text: str, whole: str) -> Term:
    negate = text.startswith("!")
    key, body = _key_and_value(text)
    if not body:
        raise ScenarioError(f"what-if {whole!r}: {text!r} has no value")
    return Term(key, _values(key, body, whole), negate, text)


def _key_of_word(word: str) -> str:
    """A bare word is a kind of work or of collective if there is one, else a name."""
    words = set(word.split("|"))
    if words <= set(KINDS):
        return "kind"
    return "collective" if words <= set(COLLECTIVE_KINDS) else "name"


def _values(key: str, body: str, whole: str) -> tuple[str, ...]:
    if key in PATTERN_KEYS and len(body) > 2 and body.startswith("/") and body.endswith("/"):
        return (body,)  # a regular expression may contain "|"
    values = tuple(part.strip() for part in body.split("|"))
    if key in NUMBER_KEYS:
        parse_numbers(body, f"what-if {whole!r}")
    known = {"kind": KINDS, "collective": COLLECTIVE_KINDS}.get(key)
    for value in values:
        if not value or (known is not None and value not in known):
            available = f"; one of {', '.join(known)}" if known else ""
            raise ScenarioError(f"what-if {whole!r}: no {key} {value!r}{available}")
    return values


MAX_FACTOR = 1e6
MAX_OFFSET_NS = 1e15
"""Larger changes are typing errors, and would not fit into 64-bit nanoseconds."""


def _change(text: str, whole: str) -> Change:
    change = _any_change(text, whole)
    if change.factor < 0:
        raise ScenarioError(f"what-if {whole!r}: {text!r} takes away more than there is")
    if change.factor > MAX_FACTOR or abs(change.offset_ns) > MAX_OFFSET_NS:
        raise ScenarioError(f"what-if {whole!r}: {text!r} is beyond x1e6 or eleven days")
    return change


def _any_change(text: str, whole: str) -> Change:
    if match := _FACTOR.match(text):
        return Change(float(match[1] or match[2]), 0.0)
    if (match := _DIVISOR.match(text)) and float(match[1]) > 0:
        return Change(1 / float(match[1]), 0.0)
    if match := _PERCENT.match(text):
        return Change(1 + float(match[1] + match[2]) / 100, 0.0)
    match = _TIME.match(text)
    if match and (match[3] or float(match[2]) == 0):
        amount = float(match[2]) * _UNIT_NS.get(match[3], 0.0)
        sign = {"+": 1.0, "-": -1.0, "": 0.0}[match[1]]
        return Change(1.0, sign * amount) if sign else Change(0.0, amount)
    raise ScenarioError(
        f"what-if {whole!r}: {text!r} is no change; write x0.5 (half), -20%, 0 (gone), "
        "100us (that long), +5us or -5us (with a unit: ns, us, ms, s)"
    )
