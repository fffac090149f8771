"""``foretrace cost``, ``clusters`` and ``calibrate`` as people and scripts call them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from foretrace.cli.app import main
from foretrace.cli.cost import parse_size
from foretrace.replay.cluster import load_cluster
from foretrace.replay.costs.collectives.cost import Collectives, collective_costs
from foretrace.traces.errors import LayoutError

COST = ["cost", "allreduce", "1GiB", "--group", "64", "--cluster", "h100-8x400g"]


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def table(path: Path, factor: float = 1.0) -> Path:
    ops = Collectives.of(0, 2.0 ** np.arange(10, 33), 16, 2)
    time = collective_costs(ops, load_cluster("h100-8x400g")).time_us * factor
    rows = "".join(
        f"allreduce,{s:.0f},16,2,{t}\n" for s, t in zip(ops.size_bytes, time, strict=True)
    )
    path.write_text("collective,size_bytes,ranks,nodes,time_us\n" + rows)
    return path


def test_cost_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([*COST, "--json"], capsys)
    made = json.loads(out)
    assert (code, err) == (0, "")
    assert list(made) == ["seconds", "algorithm", "protocol", "terms", "nearest"]
    assert made["seconds"] == pytest.approx(sum(made["terms"].values()))
    assert 3e-3 < made["seconds"] < 12e-3  # 2 x 63/64 GiB over 8 NICs of 48 GB/s takes 5.5 ms
    assert made["nearest"] == []


def test_cost_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(COST, capsys)
    assert code == 0
    assert "all_reduce of 1024 MiB over 64 ranks on 8 nodes of h100-8x400g" in out
    assert "Where the choice changes" in out


def test_nearest_measured_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(table(tmp_path / "m.csv"))
    _, out, _ = run([*COST, "--json", "--measured", path], capsys)
    near = json.loads(out)["nearest"]
    assert (near[0]["size_bytes"], near[0]["ranks"]) == (1 << 30, 16)
    assert len(near) == 5


def test_calibrate_and_use_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, fit = str(table(tmp_path / "m.csv", 2.0)), str(tmp_path / "fit.json")
    cluster = ["--cluster", "h100-8x400g"]
    code, out, _ = run(["calibrate", path, *cluster, "-o", fit], capsys)
    assert code == 0
    assert "23 measured points" in out
    ask = ["cost", "allreduce", "256MiB", "--group", "16", *cluster, "--json"]
    _, plain, _ = run(ask, capsys)
    _, fitted, _ = run([*ask, "--fit", fit], capsys)
    before, after = json.loads(plain), json.loads(fitted)
    assert after["seconds"] == pytest.approx(2 * before["seconds"], rel=0.05)
    assert after["algorithm"] == before["algorithm"]
    _, _, note = run([*COST, "--fit", fit, "--json"], capsys)
    assert "larger than any measured group" in note


def test_placed_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "pod.toml"
    own.write_text(
        'gpu = "h100"\nfabric = "rdma"\ngpus_per_node = 8\nnics_per_node = 8\n'
        'nic_gbit_per_s = 400\n[[tiers]]\nname = "leaf"\nnodes = 4\noversubscription = 4.0\n'
        '[[tiers]]\nname = "pod"\nnodes = 8\n'
    )
    (tmp_path / "map.csv").write_text(
        "host,leaf,pod\n" + "".join(f"n{i},l{i // 4},p\n" for i in range(8))
    )
    ask = ["cost", "allreduce", "1GiB", "--group", "16", "--cluster", str(own), "--json"]
    ask += ["--topology", str(tmp_path / "map.csv"), "--hosts"]
    near = json.loads(run([*ask, "n[0-1]"], capsys)[1])["seconds"]
    far = json.loads(run([*ask, "n0,n4"], capsys)[1])["seconds"]
    assert far > 2 * near


def test_traffic_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal entries cost what the equal all-to-all costs; a hot rank is named and costs more."""
    equal, hot = np.full((16, 16), 1e6), np.full((16, 16), 1e6)
    hot[:, 5] *= 4
    for name, matrix in (("equal", equal), ("hot", hot)):
        np.savetxt(tmp_path / f"{name}.csv", matrix, delimiter=",")
    ask = ["--cluster", "h100-8x400g", "--json"]
    plain = json.loads(run(["cost", "alltoall", "16e6", "--group", "16", *ask], capsys)[1])
    made = json.loads(run(["cost", "alltoallv", str(tmp_path / "equal.csv"), *ask], capsys)[1])
    assert made["seconds"] == pytest.approx(plain["seconds"])
    assert made["seconds"] == pytest.approx(sum(made["terms"].values()))
    code, out, _ = run(["cost", "alltoallv", str(tmp_path / "hot.csv"), *ask[:2]], capsys)
    assert code == 0
    assert "rank 5 is the busiest" in out
    once = json.loads(
        run(["cost", "alltoallv", str(tmp_path / "hot.csv"), *ask, "--distinct", "0.3"], capsys)[1]
    )
    again = json.loads(run(["cost", "alltoallv", str(tmp_path / "hot.csv"), *ask], capsys)[1])
    assert once["hierarchical_seconds"] < again["hierarchical_seconds"]


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        ("1,2\n3,x\n", [], "expected a CSV of bytes"),
        ("1,2\n", [], "as many columns as rows"),
        ("0,1\n1,0\n", ["--group", "4"], "has 2 rows"),
        ("0,1\n1,0\n", ["--nodes", "3"], "do not fill 3 nodes"),
        ("0,-1\n1,0\n", [], "negative"),
    ],
)
def test_wrong_traffic(
    content: str,
    more: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "m.csv").write_text(content)
    ask = ["cost", "alltoallv", str(tmp_path / "m.csv"), "--cluster", "h100-8x400g", *more]
    code, out, err = run(ask, capsys)
    assert (code, out) == (2, "")
    assert message in err


def test_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["clusters"], capsys)
    assert code == 0
    assert "h100-8x400g" in out
    made = json.loads(run(["clusters", "--json"], capsys)[1])
    assert {g["name"] for g in made["gpus"]} >= {"v100", "mi355x"}
    assert all(c["sources"] for c in made["clusters"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["cost", "allreduce", "1Gib", "--group", "8", "--cluster", "h100"], "no cluster 'h100'"),
        (["cost", "allfoo", "1G", "--group", "8", "--cluster", "aws-p5"], "no collective"),
        (["cost", "allreduce", "big", "--group", "8", "--cluster", "aws-p5"], "no size 'big'"),
        (["cost", "allreduce", "1G", "--cluster", "aws-p5"], "give --group"),
        (["calibrate", "absent.log", "--cluster", "aws-p5"], "cannot be read"),
        ([*COST, "--hosts", "a"], "go together"),
        ([*COST, "--nodes", "100"], "cannot be on 100 nodes"),
    ],
)
def test_errors_are_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(argv, capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 2**30), ("64K", 65536), ("100MB", 100_000_000), ("25e6", 25_000_000), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1K", "1Q", "GiB", "inf", "nan"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(LayoutError, match="no size"):
        parse_size(text)
