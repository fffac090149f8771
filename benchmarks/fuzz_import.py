"""Import real files with damage: nothing may crash, hang or end in a traceback.

Run: python benchmarks/fuzz_import.py [--data DIR] [--count 2000] [--seed 1] [--case N]

Every case is a real file, or a piece of a long one, with one to eight changes: flipped bits,
cuts, pieces of other files, doubled and deleted ranges, odd numbers and stray punctuation.
Every other case takes any file, the rest give every format the same share. Formats of which
there is no real file take part with one that is made: the flight recorder and Nsight Systems.
Where a format spreads over a folder, its other files lie whole beside the damaged one.
Compiled code checks every index here, so that reading beside the text is found, too.
A case is good if the import gives tables that hold together, or raises one of foretrace's own
errors with one line of text. ``--case N`` runs one case alone and shows what it does.
Traces are read from DIR (default: FORETRACE_DATA, else ../shared/data beside the project).
``fuzz_coverage.py`` looks for new paths through the readers instead of new damage.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from _trace_files import TraceFile, trace_files

ROOT = Path(__file__).resolve().parents[1]
PIECE_BYTES = 120_000
HANG_SECONDS = 60
TOKENS = (
    *(c.encode() for c in '"\\{}[],:\n\0'),
    *(b"\xff\xfe", b"null", b"NaN", b"-Infinity", b'{"ph":"X",'),
    *(b'"args":{', b'"traceEvents":[', b'"dur":-5,', b'"ts":0,'),
)
NUMBERS = (b"0", b"-1", b"1e308", b"1e-9", b"9223372036854775807", b"-9223372036854775808",
           b"18446744073709551615", b"99999999999999999999999", b"2147483648", b"0.0005", b"inf",
           b"4294967296", b'"12"', b"1E400", b"[]", b"true")  # fmt: skip


def make_case(files: Sequence[TraceFile], seed: int, case: int) -> TraceFile:
    """The damaged file of a number; the same for the same seed and files."""
    rng = random.Random(f"{seed}/{case}")  # noqa: S311
    kind = rng.choice(sorted({f.kind for f in files}))
    file = rng.choice([f for f in files if case % 2 or f.kind == kind])
    data = file.data
    text = bytearray(data)
    if len(data) > 2 * PIECE_BYTES and not file.name.endswith((".gz", ".tgz", ".parquet")):
        at = rng.randrange(PIECE_BYTES, len(data) - PIECE_BYTES)
        text = bytearray(data[: PIECE_BYTES // 4] + data[at : at + PIECE_BYTES] + data[-2000:])
    for _ in range(rng.randint(1, 8)):
        damage(text, rng, rng.choice(files).data)
    if rng.random() < 0.1:
        packed = bytearray(gzip.compress(bytes(text)))
        packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
        return replace(file, name=file.name + ".gz", data=bytes(packed))
    return replace(file, data=bytes(text))


def damage(text: bytearray, rng: random.Random, other: bytes) -> None:
    """Change ``text`` in one of the ways."""
    if not text:
        return
    at = rng.randrange(len(text))
    length = min(int(rng.expovariate(1 / 200)) + 1, len(text) - at)
    way = rng.randrange(9)
    if way == 0:
        text[at] ^= 1 << rng.randrange(8)
    elif way == 1 and rng.random() < 0.3:
        del text[at:]
    elif way == 2:
        begin = rng.randrange(max(len(other), 1))
        text[at:at] = other[begin : begin + length * 4]
    elif way == 3:
        del text[at : at + length]
    elif way == 4:
        text[at:at] = text[at : at + length * 8]
    elif way == 5:
        text[at : at + length] = rng.randbytes(min(length, 16))
    elif way == 6:
        text[at:at] = rng.choice(TOKENS)
    else:
        change_number(text, at, rng)


def change_number(text: bytearray, at: int, rng: random.Random) -> None:
    """Put an odd number in the place of the next one."""
    digits = b"0123456789.-"
    while at < len(text) and text[at] not in b"0123456789":
        at += 1
    stop = at
    while stop < len(text) and text[stop] in digits:
        stop += 1
    text[at:stop] = rng.choice(NUMBERS)


def run_case(file: TraceFile, folder: Path) -> str:
    """What came of one case, "data" or "error"; anything else raises."""
    from foretrace.traces.errors import ForetraceError
    from foretrace.traces.importers import import_paths

    given = folder / "in"
    given.mkdir()
    for name, data in {file.name: file.data, **file.beside}.items():
        (given / name).write_bytes(data)
    out = folder / "out.trace"
    try:
        report = import_paths([given if file.beside else given / file.name], out, jobs=1)
    except ForetraceError as error:
        if "\n" in str(error).strip():
            raise AssertionError(f"an error of several lines: {error}") from None
        return "error"
    finally:
        shutil.rmtree(given)
    check(str(out), report.ranks)
    return "data"


def check(out: str, ranks: list[int]) -> None:
    """Tables hold together: sorted, no negative times, rows that exist."""
    from foretrace.traces.store import TraceSet

    traces = TraceSet.open(out)
    if sorted(ranks) != traces.ranks:
        raise AssertionError(f"ranks {traces.ranks}, reported {ranks}")
    for rank in ranks:
        info, events = traces.info(rank), traces.events(rank, ["start_ns", "dur_ns"])
        starts, durations = (events[c].to_numpy() for c in ("start_ns", "dur_ns"))
        if len(starts) and ((starts[1:] < starts[:-1]).any() or durations.min() < 0):
            raise AssertionError("events are not sorted, or a duration is negative")
        if len(starts) and not (starts + durations >= starts).all():
            raise AssertionError("an end does not fit 63 bits")
        if sum(info.counts.values()) != len(starts):
            raise AssertionError(f"{len(starts)} rows, counts {info.counts}")
        for column in ("call_event", "work_event", "wait_event"):
            values = traces.collectives(rank, [column])[column].to_numpy()
            if len(values) and (values.max() >= len(starts) or values.min() < -1):
                raise AssertionError(f"{column} names rows that are not there")


def work(options: argparse.Namespace, first: int, last: int) -> None:
    """What a worker process does: a line per case."""
    files = trace_files(options.data)
    for case in range(first, last):
        file = make_case(files, options.seed, case)
        print(json.dumps([case, "begun", file.kind, file.name]), flush=True)
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = run_case(file, Path(folder))
            except Exception as error:  # every kind of failure is what is looked for
                result = f"{type(error).__name__}: {error}"
                traceback.print_exc()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps([case, result, file.kind, file.name]), flush=True)


def supervise(options: argparse.Namespace) -> int:
    """Run all cases in worker processes; a new one goes on where one died."""
    case, results, bad = options.first, Counter[tuple[str, str]](), []
    last = options.first + options.count
    command = [sys.executable, __file__, "--data", str(options.data), "--seed", str(options.seed)]
    cache = tempfile.TemporaryDirectory()  # what is cached elsewhere checks no index
    checked = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": cache.name}
    while case < last:
        with tempfile.TemporaryFile("w+") as errors:
            worker = subprocess.Popen(
                [*command, "--work", f"{case}:{last}"],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=checked,
            )
            state = name = ""
            for line in worker.stdout or ():
                case, state, kind, name = json.loads(line)
                if state not in ("begun", "data", "error"):
                    bad.append(f"case {case} ({name}): {state[:200]}")
                if state != "begun":
                    results[kind, state if state in ("data", "error") else "bad"] += 1
            if worker.wait() or state == "begun":
                errors.seek(0)
                bad.append(f"case {case} ({name}): the process died\n{errors.read()[-1500:]}")
        case += 1
    print(f"seed {options.seed}: {sum(results.values())} damaged files")
    print(f"{'format':<40}{'data':>8}{'error':>8}{'bad':>8}")
    for kind in sorted({k for k, _ in results}):
        print(f"{kind:<40}" + "".join(f"{results[kind, s]:>8}" for s in ("data", "error", "bad")))
    print("\n".join(bad[:40]))
    print(f"{len(bad)} bad" if bad else "no crash, no hang, no traceback")
    return len(bad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run one case and show it")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.data = Path(options.data or ROOT.parent / "shared" / "data")
    if options.work:
        first, last = (int(n) for n in options.work.split(":"))
        work(options, first, last)
    elif options.case is not None:
        work(options, options.case, options.case + 1)
    else:
        sys.exit(1 if supervise(options) else 0)


if __name__ == "__main__":
    main()
