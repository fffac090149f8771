"""The page on what-ifs: its scenario file runs, and every transform and field stands on it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.replay.machine import Op
from tests.replay.transforms.jobs import MB, recorded

from foretrace.cli import app
from foretrace.replay.scenariofile import read_scenarios
from foretrace.replay.transforms import TRANSFORMS, transform_class

PAGE = Path(__file__).resolve().parents[3] / "docs/what-if.md"


def test_the_documented_file_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every transform of the page, on a job with two kinds of operations and their sizes."""
    path = tmp_path / "scenarios.toml"
    path.write_text("\n".join(re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    scenarios = read_scenarios(path)
    used = {type(t).__name__.lower() for s in scenarios for t in s.transforms}
    assert used == {name.replace("_", "") for name in TRANSFORMS}
    program = [Op("work", 50)]
    for size in (1, 10, 25, 25):
        program += [Op("kernel", 60), Op("kernel", 40), Op("collective", 20 + 10 * size)]
    program += [Op("await"), Op("kernel", 30), Op("kernel", 30), Op("sync"), Op("work", 20)]
    sizes = [size * MB for size in (1, 10, 25, 25)]
    recorded(tmp_path, [program] * 4, sizes)
    with pytest.raises(SystemExit) as end:
        app.main(["whatif", str(tmp_path / "job.trace"), "-s", str(path), "--json"])
    out, err = capsys.readouterr()
    assert end.value.code == 0, err
    got = json.loads(out)
    change = {row["name"]: row["change"] for row in got["scenarios"]}
    assert len(change) == len(scenarios)
    assert change["network twice as fast"] < 0 < change["rank 3 is slow"]
    assert change["communication in bfloat16"] < 0 < change["nothing overlaps"]


def test_every_transform_and_field_is_documented() -> None:
    text = PAGE.read_text()
    for name in TRANSFORMS:
        (row,) = re.findall(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
        for field in set(transform_class(name).__struct_fields__) - {"select"}:
            assert f"`{field}`" in row, f"{name}: {field}"
