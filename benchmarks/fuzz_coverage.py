"""Coverage-guided fuzzing of the readers: data or one clear error, whatever the bytes are.

Run: python benchmarks/fuzz_coverage.py [--seconds 60] [--data DIR] [--input FILE]

It needs atheris, which is no dependency of the project: ``pip install atheris``. atheris keeps
an input if it reached code that no other input reached, and changes it further. The first byte
of an input chooses the reader, the second how long the pieces are that the reader is given.
The Python code of the package counts as coverage; compiled functions are run as they are, but
with every index checked. A fault is anything but tables that hold together or an error of
foretrace's own with one line of text. Each distinct fault is kept in ``out/fuzz`` with one
input, and the search goes on; ``--input`` runs such a file alone. An input that takes over 20
seconds, or 4 GB, ends the search.
Seeds come from DIR (default: FORETRACE_DATA, else ../shared/data beside the project) and from
``_trace_files.py``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SEED_BYTES = (600, 4000)
LONGEST = 6000
FAULTS = ROOT / "out" / "fuzz"
READERS = ("kineto", "flight_recorder", "execution_trace", "nccl_inspector", "nccl_plugin",
           "pipeline_json", "chakra")  # fmt: skip
_FINAL = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_STATE = re.compile(r"#\d+\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)")


def compiled_modules() -> list[str]:
    """Modules with compiled functions, which cannot be instrumented."""
    found = [p for p in (ROOT / "traces").rglob("*.py") if "@njit" in p.read_text()]
    return ["foretrace." + ".".join(p.relative_to(ROOT).with_suffix("").parts) for p in found]


def reader_of(name: str) -> Callable[[list[bytes]], Any]:
    """What reads the pieces of one file of a format."""
    from importlib import import_module

    module = import_module(f"foretrace.traces.importers.{name}")
    if hasattr(module, "read_bundle"):
        return lambda pieces: module.read_bundle({"pp_rank_0.json": b"".join(pieces)})
    read: Callable[[list[bytes]], Any] = module.read
    return read


def run_input(readers: list[Callable[[list[bytes]], Any]], data: bytes) -> None:
    """Read one input; raises what is a fault."""
    from foretrace.traces.errors import ForetraceError

    if len(data) < 3:
        return
    text, length = data[2:], 1 + 32 * data[1]
    try:
        tables = readers[data[0] % len(readers)](
            [text[i : i + length] for i in range(0, len(text), length)]
        )
    except ForetraceError as error:
        if "\n" in str(error).strip():
            raise AssertionError(f"an error of several lines: {error}") from None
        return
    for rank in tables if isinstance(tables, list) else [tables]:
        check(rank)


def check(tables: Any) -> None:
    """Events are sorted and end where 63 bits end; rows that are named are there."""
    starts, durations = (tables.events[c].to_numpy() for c in ("start_ns", "dur_ns"))
    if (starts[1:] < starts[:-1]).any() or (durations < 0).any():
        raise AssertionError("events are not sorted, or a duration is negative")
    if not (starts + durations >= starts).all():
        raise AssertionError("an end does not fit 63 bits")
    for column in ("call_event", "work_event", "wait_event"):
        rows = tables.collectives[column].to_numpy()
        if len(rows) and (rows.max() >= len(starts) or rows.min() < -1):
            raise AssertionError(f"{column} names rows that are not there")


def write_seeds(corpus: Path, data: Path) -> int:
    """The beginnings of real and made files, each for the reader of its format."""
    from _trace_files import trace_files

    from foretrace.traces.importers.registry import FORMATS

    number = 0
    module_of = {f.NAME: f.__name__.rpartition(".")[2] for f in FORMATS}  # type: ignore[union-attr]
    for file in trace_files(data if data.is_dir() else None):
        name = module_of.get(file.kind)
        for length in SEED_BYTES if name in READERS else ():
            first = bytes([READERS.index(name), 255])
            (corpus / str(number)).write_bytes(first + file.data[:length])
            number += 1
    return number


def search(options: argparse.Namespace) -> None:
    """What the fuzzing process does; atheris ends it."""
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=["foretrace"], exclude=compiled_modules()):
        readers = [reader_of(name) for name in READERS]
    seen: set[tuple[str, str]] = set()

    def one(data: bytes) -> None:
        try:
            run_input(readers, data)
        except Exception as error:  # every kind of failure is what is looked for
            where = traceback.extract_tb(error.__traceback__)[-1]
            key = (type(error).__name__, f"{where.filename}:{where.lineno}")
            if key not in seen:
                seen.add(key)
                (FAULTS / f"fault-{len(seen)}").write_bytes(data)
                traceback.print_exc()

    for seed in sorted(options.corpus.iterdir()):  # compile before the time counts
        one(seed.read_bytes())
    flags = [
        f"-max_total_time={options.seconds}",
        f"-max_len={LONGEST}",
        f"-artifact_prefix={FAULTS}/",
        *("-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1"),
    ]
    atheris.Setup([sys.argv[0], *flags, str(options.corpus)], one)
    atheris.Fuzz()


def supervise(options: argparse.Namespace) -> int:
    """Start the search and sum up what it said; the number of faults."""
    FAULTS.mkdir(parents=True, exist_ok=True)
    for old in FAULTS.iterdir():
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        corpus, cache = Path(folder) / "corpus", Path(folder) / "compiled"
        corpus.mkdir()
        seeds = write_seeds(corpus, options.data)
        command = [sys.executable, __file__, "--seconds", str(options.seconds), "--corpus", corpus]
        checked = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
        result = subprocess.run(
            command, env=checked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    log = result.stdout.decode("utf-8", "replace")
    runs, states = _FINAL.search(log), _STATE.findall(log)
    faults = sorted(FAULTS.iterdir())
    coverage, features, kept = states[-1] if states else ("?",) * 3
    print(f"{', '.join(READERS)}: {seeds} seeds, {options.seconds} s")
    print(f"{runs.group(1) if runs else '?'} executions, {kept} inputs kept, {features} features;")
    print(f"edges covered: {states[0][0] if states else '?'} by the seeds, {coverage} at the end")
    if result.returncode or faults:
        print(log[-6000:])
    print(f"{len(faults)} faults in {FAULTS}" if faults else "no fault")
    return len(faults) or result.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    parser.add_argument("--input", type=Path, help="run this file alone")
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.data = Path(options.data or ROOT.parent / "shared" / "data")
    if options.input:
        run_input([reader_of(name) for name in READERS], options.input.read_bytes())
        print("no fault")
    elif find_spec("atheris") is None:
        print("atheris is not installed, nothing was run; install it with: pip install atheris")
    elif options.corpus:
        search(options)
    else:
        sys.exit(1 if supervise(options) else 0)


if __name__ == "__main__":
    main()
