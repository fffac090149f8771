"""Rules of the whole project: layers, import weight, the public surface, the layout."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import foretrace

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("analysis", "collector", "replay", "traces")
HEAVY = ("torch", "numba", "pyarrow", "pandas", "scipy", "matplotlib", "rich", "typer", "numpy")


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (p for p in (ROOT / folder).rglob("*.py") if not _through_link(p))


def _through_link(path: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if ROOT in parent.parents)


def text_files() -> Iterator[Path]:
    """All files that belong to the project, as git sees them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink():
            yield path


def test_layers() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_links_lead_to_the_four_folders() -> None:
    links = {p.name: p for p in (ROOT / "src/foretrace").iterdir() if p.is_symlink()}
    assert sorted(links) == sorted(FOLDERS)
    for name, link in links.items():
        assert link.readlink() == Path("../..") / name
        assert link.resolve() == ROOT / name


def test_root_names_are_few_sorted_and_importable() -> None:
    names = foretrace.__all__
    assert names == sorted(names)
    assert len(names) <= 15
    for name in names:
        assert getattr(foretrace, name) is not None
    assert set(names) == {*foretrace._HOME, "__version__"}
    with pytest.raises(AttributeError, match="no_such_name"):
        foretrace.no_such_name  # noqa: B018


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after ``statement``."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "docs"
    )
    return {name.partition(".")[0] for name in json.loads(result.stdout)}


def test_root_import_is_light() -> None:
    assert not modules_after("import foretrace") & set(HEAVY)


def test_program_help_is_light() -> None:
    statement = "from foretrace.cli.app import build_program\nbuild_program()"
    assert not modules_after(statement) & (set(HEAVY) - {"typer"})


@pytest.mark.parametrize("module", ["foretrace.collector", "foretrace.cli.replay"])
def test_torch_is_not_imported_before_it_is_needed(module: str) -> None:
    assert "torch" not in modules_after(f"import {module}")


def imports_of(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_torch_only_in_the_collector_and_there_inside_functions() -> None:
    for path in sources("analysis", "replay", "traces", "src"):
        if path.is_relative_to(ROOT / "traces/sample"):
            continue  # the scripts that made the sample train a model
        assert "torch" not in imports_of(ast.parse(path.read_text())), path
    for path in sources("collector"):
        tree = ast.parse(path.read_text())
        at_top = [
            node
            for node in tree.body
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.If))
        ]
        assert "torch" not in imports_of(ast.Module(at_top, [])), path


def test_modules_are_not_catch_alls() -> None:
    banned = {"utils.py", "common.py", "helpers.py", "util.py", "misc.py"}
    found = [p for p in sources(*FOLDERS, "src") if p.name in banned]
    assert not found


def test_no_file_names_a_machine_or_a_registry() -> None:
    # Put together here, or this file would be found.
    banned = ["/" + word + "/" for word in ("work", "tmp", "root", "opt")]
    banned += ["py" + "pi.org", "python" + "hosted", "download.py" + "torch"]
    found = []
    for path in text_files():
        data = path.read_bytes()
        if b"\0" in data[:4096]:
            continue
        text = data.decode("utf-8", "replace")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in banned if word in text]
    assert not found


def test_sample_names_no_machine() -> None:
    """What the sample recorded may hold paths and hosts in its tables."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = list((ROOT / "traces/sample").rglob("*.parquet"))
    if not tables:
        pytest.skip("no sample yet")
    for path in tables:
        for column in pq.read_table(path).columns:
            if not pa.types.is_dictionary(column.type):
                continue
            for text in column.combine_chunks().dictionary.to_pylist():
                assert "/" + "work/" not in text, f"{path}: {text}"
                assert "/" + "root/" not in text, f"{path}: {text}"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_help_lists_the_targets() -> None:
    result = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"demo", "test", "bench"} <= {
        line.split()[0] for line in result.stdout.splitlines() if line
    }
