"""Import real files with damage: nothing may crash, hang or end in a traceback.

Run: python benchmarks/fuzz_import.py [--data DIR] [--count 2000] [--seed 1] [--case N]
     python benchmarks/fuzz_import.py --guided SECONDS [--reader json|pickle]

Every case is a real file, or a piece of a long one, with one to eight changes: flipped bits,
cuts, pieces of other files, doubled and deleted ranges, odd numbers and stray punctuation.
A case is good if the import gives tables that hold together, or raises one of foretrace's own
errors with one line of text. ``--case N`` runs one case alone and shows what it does.
``--guided`` hands the reader to the coverage-guided fuzzer atheris instead, if it is installed.
Traces are read from DIR (default: FORETRACE_DATA, else ../shared/data beside the project).
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

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


def contents(folder: Path) -> list[tuple[str, bytes]]:
    """Name and plain content of every real file, members of archives included."""
    found: list[tuple[str, bytes]] = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if path.name.endswith((".csv", ".yaml")):
            continue
        data = path.read_bytes()
        if path.name.endswith((".tar.gz", ".tgz")):
            found.append((path.name, data))
            with tarfile.open(path) as tar:
                members = [m for m in tar if m.isfile()][:4]
                files = [(m.name, tar.extractfile(m)) for m in members]
                found += [(n.rsplit("/", 1)[-1], f.read()) for n, f in files if f]
        elif path.name.endswith(".gz"):
            found.append((path.name.removesuffix(".gz"), gzip.decompress(data)))
        else:
            found.append((path.name, data))
    return found


def make_case(files: Sequence[tuple[str, bytes]], seed: int, case: int) -> tuple[str, bytes]:
    """The damaged file of a number; the same for the same seed and files."""
    rng = random.Random(f"{seed}/{case}")  # noqa: S311
    name, data = rng.choice(files)
    text = bytearray(data)
    if len(data) > 2 * PIECE_BYTES and not name.endswith((".gz", ".tgz", ".parquet")):
        at = rng.randrange(PIECE_BYTES, len(data) - PIECE_BYTES)
        text = bytearray(data[: PIECE_BYTES // 4] + data[at : at + PIECE_BYTES] + data[-2000:])
    for _ in range(rng.randint(1, 8)):
        damage(text, rng, rng.choice(files)[1])
    if rng.random() < 0.1:
        packed = bytearray(gzip.compress(bytes(text)))
        packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
        return name + ".gz", bytes(packed)
    return name, bytes(text)


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


def run_case(name: str, data: bytes, folder: Path) -> str:
    """What came of one case, "data" or "error"; anything else raises."""
    from foretrace.traces.errors import ForetraceError
    from foretrace.traces.importers import import_paths

    path = folder / name
    path.write_bytes(data)
    out = folder / "out.trace"
    try:
        report = import_paths([path], out, jobs=1)
    except ForetraceError as error:
        if "\n" in str(error).strip():
            raise AssertionError(f"an error of several lines: {error}") from None
        return "error"
    finally:
        path.unlink()
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
    files = contents(options.data)
    for case in range(first, last):
        name, data = make_case(files, options.seed, case)
        print(json.dumps([case, "begun", name]), flush=True)
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = run_case(name, data, Path(folder))
            except Exception as error:  # every kind of failure is what is looked for
                result = f"{type(error).__name__}: {error}"
                traceback.print_exc()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps([case, result, name]), flush=True)


def supervise(options: argparse.Namespace) -> int:
    """Run all cases in worker processes; a new one goes on where one died."""
    case, results, bad = options.first, Counter[str](), []
    last = options.first + options.count
    command = [sys.executable, __file__, "--data", str(options.data), "--seed", str(options.seed)]
    while case < last:
        with tempfile.TemporaryFile("w+") as errors:
            worker = subprocess.Popen(
                [*command, "--work", f"{case}:{last}"],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            state = name = ""
            for line in worker.stdout or ():
                case, state, name = json.loads(line)
                if state not in ("begun", "data", "error"):
                    bad.append(f"case {case} ({name}): {state[:200]}")
                if state != "begun":
                    results[state if state in ("data", "error") else "bad"] += 1
            if worker.wait() or state == "begun":
                errors.seek(0)
                bad.append(f"case {case} ({name}): the process died\n{errors.read()[-1500:]}")
        case += 1
    print(f"seed {options.seed}: {sum(results.values())} files, {dict(results)}")
    print("\n".join(bad[:40]))
    print(f"{len(bad)} bad" if bad else "no crash, no hang, no traceback")
    return len(bad)


def guided(options: argparse.Namespace) -> None:
    """Coverage-guided fuzzing of one reader in this process."""
    import atheris  # type: ignore[import-not-found]

    from foretrace.traces import layout  # compiled: not to be instrumented
    from foretrace.traces.importers import intern, json_text, numbers, scan

    compiled = [m.__name__ for m in (layout, intern, json_text, numbers, scan)]
    for name in [m for m in sys.modules if m.startswith("foretrace") and m not in compiled]:
        del sys.modules[name]
    with atheris.instrument_imports(include=["foretrace"], exclude=compiled):
        from foretrace.traces.errors import ForetraceError
        from foretrace.traces.importers import flight_recorder, kineto
    reader = kineto if options.reader == "json" else flight_recorder

    def one(data: bytes) -> None:
        chunk = 1 + data[0] * 16 if data else 1
        pieces = [data[i : i + chunk] for i in range(0, len(data), chunk)]
        try:
            reader.read(pieces)
        except ForetraceError:
            return

    corpus = Path(tempfile.mkdtemp())
    for number, (_, data) in enumerate(contents(options.data)):
        if reader.sniff(data[: 1 << 16], "x") and options.reader == "json":
            (corpus / str(number)).write_bytes(data[:3000])
    if options.reader == "pickle":
        import pickle

        entry = {"record_id": 0, "pg_id": 0, "process_group": ("0", "default"), "p2p_seq_id": 0,
                 "collective_seq_id": 1, "op_id": 1, "profiling_name": "nccl:all_reduce",
                 "time_created_ns": 5, "input_sizes": [[4]], "output_sizes": [[4]],
                 "input_dtypes": ["Float"], "state": "completed", "is_p2p": False}  # fmt: skip
        for version in ("2.2", "2.10"):
            dump = {"version": version, "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [entry]}
            (corpus / version).write_bytes(pickle.dumps(dump))
    flags = [
        f"-max_total_time={options.guided}",
        "-timeout=20",
        "-rss_limit_mb=3000",
        "-max_len=8000",
        f"-artifact_prefix={corpus}-",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run one case and show it")
    parser.add_argument("--guided", type=int, metavar="SECONDS")
    parser.add_argument("--reader", choices=("json", "pickle"), default="json")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.data = Path(options.data or ROOT.parent / "shared" / "data")
    if options.work:
        first, last = (int(n) for n in options.work.split(":"))
        work(options, first, last)
    elif options.guided:
        guided(options)
    elif options.case is not None:
        work(options, options.case, options.case + 1)
    else:
        sys.exit(1 if supervise(options) else 0)


if __name__ == "__main__":
    main()
