"""Scenario files: several what-ifs in TOML, each a list of changes applied in order.

::

    [[scenario]]
    name = "half the gradient bytes, faster gemms"

    [[scenario.change]]
    transform = "dtype"
    select = "all_reduce"
    ratio = 0.5

    [[scenario.change]]
    transform = "scale"
    select = "kernel:*gemm*"
    factor = 0.8

A scenario may also say ``what_if = "comm=x0.5; stall=0"``, as on the command line, which comes
first.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from foretrace.replay.scenario import Rule, Scenario, parse
from foretrace.replay.transforms import TRANSFORMS, transform_class
from foretrace.replay.transforms.base import Transform
from foretrace.traces.errors import ScenarioError

_T = TypeVar("_T")


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[scenario]]``."""

    name: str
    what_if: str = ""
    change: list[dict[str, Any]] = []


def read_scenarios(path: str | Path) -> list[Scenario]:
    """The scenarios of a file, in order.

    Raises:
        ScenarioError: the file cannot be read, or says something that does not exist; the
            message names scenario and change, and what there is.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read as a scenario file: {error}") from error
    return parse_scenarios(text, str(path))


def parse_scenarios(text: str, where: str = "scenarios") -> list[Scenario]:
    """The scenarios of a TOML text, in order.

    Args:
        text: the text.
        where: where it is from, for messages.

    Raises:
        ScenarioError: as in :func:`read_scenarios`.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{where}: not TOML: {error}") from error
    _refuse_unknown(document, ("scenario",), where)
    entries = document.get("scenario")
    if not isinstance(entries, list) or not entries:
        raise ScenarioError(f"{where}: holds no [[scenario]]")
    scenarios = [_scenario(entry, f"{where}: scenario {i}") for i, entry in enumerate(entries, 1)]
    names = [scenario.name for scenario in scenarios]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ScenarioError(f"{where}: two scenarios are called {twice[0]!r}")
    return scenarios


def parse_transform(text: str) -> Scenario:
    """A scenario of transforms in one line, applied in order.

    Args:
        text: such as ``network: bandwidth = 2.0, link = "inter"``, or several joined by ``;``. What
            follows the name is written as in a file.

    Raises:
        ScenarioError: as in :func:`read_scenarios`.
    """
    where = f"transform {text!r}"
    # A ";" ends a transform where the name of another and a colon follow, or nothing.
    parts = re.split(rf";\s*(?=(?:{'|'.join(TRANSFORMS)})\s*(?::|;|$)|$)", text)
    changes = []
    for part in filter(None, map(str.strip, parts)):
        name, _, fields = part.partition(":")
        try:
            values = tomllib.loads(f"fields = {{ {fields} }}")["fields"]
        except tomllib.TOMLDecodeError as error:
            raise ScenarioError(
                f'{where}: expected NAME: FIELD = VALUE, ..., such as network: link = "inter", '
                f"bandwidth = 2.0 ({error})"
            ) from error
        changes.append(_change({**values, "transform": name.strip()}, where))
    if not changes:
        raise ScenarioError(f"{where} is empty; write NAME: FIELD = VALUE, ...")
    return Scenario(text.strip(), (), tuple(changes))


def _scenario(entry: Any, where: str) -> Scenario:
    fields = _Entry.__struct_fields__
    if not isinstance(entry, dict):
        raise ScenarioError(f"{where}: expected a table [[scenario]], found {entry!r}")
    _refuse_unknown(entry, fields, where)
    found = _converted(entry, _Entry, where)
    where = f"{where} ({found.name})"
    if not found.name.strip():
        raise ScenarioError(f"{where}: a scenario needs a name")
    rules = _rules(found.what_if, where) if found.what_if else ()
    changes = tuple(_change(c, f"{where}, change {i}") for i, c in enumerate(found.change, 1))
    return Scenario(found.name, rules, changes)


def _rules(text: str, where: str) -> tuple[Rule, ...]:
    try:
        return parse(text).rules
    except ScenarioError as error:
        raise ScenarioError(f"{where}: {error}") from error


def _change(entry: Mapping[str, Any], where: str) -> Transform:
    values = dict(entry)
    name = values.pop("transform", None)
    if name not in TRANSFORMS:
        raise ScenarioError(
            f"{where}: no transform {name!r}{_meant(str(name), TRANSFORMS)}; "
            f"there are {', '.join(TRANSFORMS)}"
        )
    cls = transform_class(name)
    where = f"{where} ({name})"
    _refuse_unknown(values, cls.__struct_fields__, where)
    return _converted(values, cls, where)


def _converted(values: Mapping[str, Any], cls: type[_T], where: str) -> _T:
    try:
        return msgspec.convert(values, cls)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{where}: {error}") from error
    except ScenarioError as error:
        raise ScenarioError(f"{where}: {error}") from error


def _refuse_unknown(values: Iterable[str], known: Iterable[str], where: str) -> None:
    known = list(known)
    for key in values:
        if key not in known:
            raise ScenarioError(
                f"{where}: no field {key!r}{_meant(key, known)}; there are {', '.join(known)}"
            )


def _meant(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
