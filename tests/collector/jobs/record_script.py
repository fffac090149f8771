"""Takes down all communication of a real rank. Run as ``record_script.py OUT SCRIPT ...``.

With a dispatch-level hook in place the script runs as its own ``__main__``.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from foretrace.collector.calls import OPERATORS
from foretrace.collector.hook import CollectiveHook, describe_group
from foretrace.collector.recorder import Recorder


def fail(error: BaseException) -> None:
    raise error


def main() -> None:
    out, *sys.argv = sys.argv[1:]
    recorder = Recorder(describe_group)
    hook = CollectiveHook(recorder, fail)
    hook.install()
    recorder.open()
    runpy.run_path(sys.argv[0], run_name="__main__")
    hook.remove()
    groups = recorder.groups()
    rows = [
        {
            "kind": OPERATORS[call.operator].kind,
            "ranks": groups[call.group].ranks,
            "bytes_in": call.bytes_in,
            "bytes_out": call.bytes_out,
            "dtype": call.dtype,
            "peer": call.peer,
            "seq": call.seq,
            "in_splits": call.in_splits,
            "out_splits": call.out_splits,
        }
        for call in recorder.rows()[0]
    ]
    Path(out).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
