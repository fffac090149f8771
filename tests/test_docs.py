"""The documentation holds what it says: links, commands, options, imports and scenarios."""

from __future__ import annotations

import ast
import importlib
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from foretrace.cli import commands, replay_view
from foretrace.cli.app import build_program
from foretrace.replay.scenario import COLLECTIVE_KINDS, KEYS, KINDS, parse

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(params=PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([^)\s]+)\)", (ROOT / "docs/index.md").read_text()))
    pages = {p.name for form in ("*.md", "*.ipynb") for p in (ROOT / "docs").glob(form)}
    assert listed == pages - {"index.md"}


def test_python_imports_exist(page: Path) -> None:
    for code in blocks(page.read_text(), "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("foretrace"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


def test_commands_and_options_exist(page: Path) -> None:
    program = build_program()
    ctx = program.make_context("foretrace", [], resilient_parsing=True)
    for block in blocks(page.read_text(), "console"):
        for line in re.findall(r"^\$ foretrace (.+(?:\\\n.+)*)", block, re.MULTILINE):
            name, *words = line.replace("\\\n", " ").split()
            if name.startswith("-"):
                continue
            assert name in commands.COMMANDS, line
            known = {o for p in program.get_command(ctx, name).params for o in p.opts}
            used = {w.partition("=")[0] for w in words if re.match(r"--?[a-z]", w)}
            assert used - {"--help", "--debug"} <= known, line


def test_the_documented_json_of_replay_is_what_it_writes() -> None:
    (block,) = blocks((ROOT / "docs/command-line.md").read_text(), "json")
    document = json.loads(block)
    records = {
        "steps": replay_view.StepRow,
        "alignment": replay_view.AlignmentRow,
        "per_rank": replay_view.RankRow,
        "scenarios": replay_view.ScenarioRow,
    }
    assert list(document) == [f.name for f in fields(replay_view.ReplayView)]
    for key, record in records.items():
        shown = document[key][0] if isinstance(document[key], list) else document[key]
        assert list(shown) == [f.name for f in fields(record)], key


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs/command-line.md").read_text()
    for name in commands.COMMANDS:
        assert f"| `{name}` |" in text


def test_every_scenario_parses() -> None:
    text = (ROOT / "docs/what-if.md").read_text()
    night = text[text.index("## What people ask") : text.index("## When nothing")]
    scenarios = [s.replace(r"\|", "|") for s in re.findall(r"\| `([^`]+)` \|", night)]
    scenarios += re.findall(r"(?:-w|--what-if) '([^']+)'", text)
    assert len(scenarios) > 10
    for scenario in scenarios:
        assert parse(scenario).rules


def test_every_key_kind_and_collective_is_documented() -> None:
    text = (ROOT / "docs/what-if.md").read_text()
    for key in KEYS:
        assert f"`{key}:" in text
    for word in (*KINDS, *COLLECTIVE_KINDS):
        assert f"`{word}`" in text or word == "kernel"
