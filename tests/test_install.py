"""The package as users get it: a wheel made from the sdist, and an editable install.

Each goes into a new virtual environment and is used from a folder whose own files have the
names of our four parts. Nothing is downloaded: the dependencies are those of the environment
that runs the tests, led to by a ``.pth`` file.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import foretrace

ROOT = Path(__file__).resolve().parents[1]
CLASHING = ("analysis", "collector", "replay", "traces")

TRAIN = """
import sys, foretrace, foretrace.collector, foretrace.replay.graph, foretrace.cli.app
from foretrace import ForetraceError, TraceSet
from foretrace.traces.schema import arrow_schema
assert "kind" in arrow_schema("events").names
assert "torch" not in sys.modules
print(foretrace.__file__)
"""


def run(command: Sequence[str | Path], cwd: Path) -> str:
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an sdist, and the wheel that was made from it."""
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT], cwd=out)
    return out


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Working folder of a user whose files and folders carry our names."""
    folder = tmp_path / "desk"
    folder.mkdir()
    for name in CLASHING:
        (folder / f"{name}.py").write_text('raise RuntimeError("the wrong file was imported")\n')
        (folder / name).mkdir()  # plain data folders
    (folder / "train.py").write_text(TRAIN)
    return folder


def new_environment(folder: Path) -> Path:
    """A virtual environment without pip; gives its interpreter."""
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def lend_dependencies(python: Path) -> None:
    """Lead the new environment to the packages of this one (but not to its ``.pth`` files)."""
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    (site / "_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")


def pip_install(python: Path, *what: str | Path) -> None:
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed"]
    run(
        [sys.executable, "-m", "pip", "--python", python, "install", *options, *what],
        cwd=python.parent,
    )


def use(python: Path, desk: Path) -> Path:
    """Run the user's script and the console program; gives where foretrace came from."""
    where = Path(run([python, "train.py"], cwd=desk).strip())
    program = python.with_name("foretrace")
    assert run([program, "--version"], cwd=desk).strip() == f"foretrace {foretrace.__version__}"
    assert "replay" in run([program, "--help"], cwd=desk)
    assert run([python, "-m", "foretrace", "--version"], cwd=desk).startswith("foretrace ")
    return where


def test_wheel_from_sdist(built: Path, desk: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    python = new_environment(tmp_path / "venv")
    pip_install(python, wheel)
    lend_dependencies(python)
    assert use(python, desk).is_relative_to(tmp_path / "venv")


def test_editable(desk: Path, tmp_path: Path) -> None:
    python = new_environment(tmp_path / "venv")
    lend_dependencies(python)
    pip_install(python, "--editable", ROOT)
    assert use(python, desk) == ROOT / "src" / "foretrace" / "__init__.py"


def test_wheel_holds_the_four_parts_and_no_link(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert all((info.external_attr >> 16) & 0o170000 != 0o120000 for info in archive.infolist())
    for name in CLASHING:
        in_tree = {
            f"foretrace/{p.relative_to(ROOT)}"
            for p in (ROOT / name).rglob("*.py")
            if (p.parent / "__init__.py").exists()
        }
        assert in_tree <= set(names)
    assert "foretrace/py.typed" in names
    assert "foretrace/traces/classify.toml" in names
    assert not any(".trace/" in name for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert all(name.startswith(("foretrace/", "foretrace-")) for name in names)


def test_sdist_holds_what_it_needs(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/foretrace/cli/app.py"} <= names
    assert "src/foretrace/replay/graph.py" in names
