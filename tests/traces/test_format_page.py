"""docs/trace-format.md says what the schema says."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import msgspec
from tests.conftest import ROOT

from foretrace.traces import manifest, schema


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trace_format", ROOT / "docs/trace_format.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_up_to_date() -> None:
    script = load_script()
    assert script.PAGE.read_text("utf-8") == script.page(), "run docs/trace_format.py"


def test_page_names_everything() -> None:
    page = load_script().page()
    for columns in schema.TABLES.values():
        for column in columns:
            assert f"| `{column.name}` |" in page
    for struct in (manifest.RankInfo, manifest.Index, manifest.GroupInfo, manifest.StepInfo):
        for field in msgspec.structs.fields(struct):
            assert f"| `{field.name}` |" in page
