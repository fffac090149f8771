"""nccl-tests logs and CSV tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace.replay.costs.collectives.measurements import join, read_measurements
from foretrace.replay.costs.collectives.shapes import KINDS
from foretrace.traces.errors import TraceFormatError

HEAD = (
    "# nThread 1 nGpus {gpus} minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5\n"
)
RANK = "#  Rank {rank:2} Group  0 Pid {pid:6} on {host:>10} device {dev:2} [0x10] NVIDIA H100\n"
TABLE = """#
#                                                      out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
     1048576        262144     float    {op}      -1    50.00   20.97   {bus}      0    49.00
     4194304       1048576     float    {op}      -1    100.0   41.94   {bus2}      0    99.00
           0             0     float    {op}      -1     9.00    0.00    0.00      0     9.00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 61.2
"""


def log(op: str = "sum", bus: float = 1.75, hosts: int = 2, gpus: int = 1, name: str = "") -> str:
    ranks = "".join(
        RANK.format(rank=r, pid=100 + r // gpus, host=f"host{r * hosts // 8}", dev=r % 4)
        for r in range(8)
    )
    table = TABLE.format(op=op, bus=f"{20.97 * bus:.2f}", bus2=f"{41.94 * bus:.2f}")
    return f"{HEAD.format(gpus=gpus)}{name}# Using devices\n{ranks}{table}"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_log_of_an_all_reduce_is_known_by_its_bus_bandwidth(tmp_path: Path) -> None:
    found = read_measurements(write(tmp_path / "out.txt", log()))
    assert found.ops.size_bytes.tolist() == [1 << 20, 4 << 20]  # the empty row is left out
    assert found.time_us.tolist() == [50, 100]  # out of place
    assert set(found.ops.ranks) == {8}
    assert set(found.ops.nodes) == {2}
    assert KINDS[found.ops.kind[0]] == "all_reduce"


@pytest.mark.parametrize(
    ("name", "line", "kind"),
    [
        ("out.txt", "# Collective test starting: all_gather_perf\n", "all_gather"),
        ("reduce_scatter_perf.log", "", "reduce_scatter"),
        ("alltoall.log", "", "all_to_all"),
    ],
)
def test_log_that_says_what_it_measured(tmp_path: Path, name: str, line: str, kind: str) -> None:
    path = write(tmp_path / name, log("none", 0.875, name=line))
    assert KINDS[read_measurements(path).ops.kind[0]] == kind


def test_log_that_does_not_say(tmp_path: Path) -> None:
    path = write(tmp_path / "out.txt", log("none", 0.875))
    with pytest.raises(TraceFormatError, match="give --collective"):
        read_measurements(path)
    assert KINDS[read_measurements(path, "broadcast").ops.kind[0]] == "broadcast"


def test_one_process_for_all_gpus_pays_for_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "out.txt", log(hosts=1, gpus=8))
    assert read_measurements(path).time_us == pytest.approx([50 - 7 * 2.4, 100 - 7 * 2.4])


def test_log_without_its_head(tmp_path: Path) -> None:
    path = write(tmp_path / "out.txt", TABLE.format(op="sum", bus="1.0", bus2="1.0"))
    with pytest.raises(TraceFormatError, match="how many GPUs and hosts"):
        read_measurements(path)


def test_csv(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.csv",
        "# a comment\nmachine,collective,size_bytes,gpus,nodes,time_us\n"
        "x,allreduce,1024,8,1,10.5\ny,all_gather,2048,16,2,20\n",
    )
    found = read_measurements(path)
    assert found.ops.ranks.tolist() == [8, 16]
    assert found.ops.kind.tolist() == [0, 1]
    one = read_measurements(path, machine="y")
    assert one.time_us.tolist() == [20]
    both = join([found, one])
    assert both.time_us.tolist() == [10.5, 20, 20]
    assert np.array_equal(both.ops.nodes, [1, 2, 2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither an nccl-tests log nor a CSV"),
        ("a,b\n1,2\n", "expected a column collective or kind"),
        ("kind,bytes,ranks,nodes,time_us\nallreduce,many,8,1,5\n", "row 1, column bytes: 'many'"),
        ("kind,bytes,ranks,nodes,time_us\nallfoo,1,8,1,5\n", "no collective 'allfoo'"),
    ],
)
def test_wrong_tables(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceFormatError, match=message):
        read_measurements(write(tmp_path / "m.csv", text))


def test_no_such_machine_or_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.csv", "machine,kind,bytes,ranks,nodes,time_us\nx,allreduce,1,8,1,5\n"
    )
    with pytest.raises(TraceFormatError, match="no row has machine 'z'"):
        read_measurements(path, machine="z")
    with pytest.raises(TraceFormatError, match="cannot be read"):
        read_measurements(tmp_path / "absent.log")
