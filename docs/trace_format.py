"""Writes docs/trace-format.md out of the schema and the manifests' own words.

Run it after a change to traces/schema.py or traces/manifest.py; a test holds them equal.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from foretrace.traces import manifest, schema

PAGE = Path(__file__).with_name("trace-format.md")

INTRODUCTION = """\
# The trace set

<!-- Written by docs/trace_format.py out of traces/schema.py and traces/manifest.py. -->

A trace set is a folder, by custom named `NAME.trace`, on any file system that fsspec knows.

```
NAME.trace/
  manifest.json               the index: all ranks, written last
  rank=00000/
    events.parquet            every event, by start
    collectives.parquet       every communication operation, in issue order
    memory.parquet            every allocation, only where recorded
    dependencies.parquet      recorded edges between events, only where recorded
    manifest.json             what is known of the rank besides
  rank=00001/
    ...
```

**Rules of all tables.** Times are whole nanoseconds (int64) on one clock for all ranks; sizes
are bytes. Units stand in the names. A value that was not recorded is -1, or an empty text,
unless a column says otherwise; no column has nulls. Texts are dictionary-encoded. Files are
Parquet, zstd-compressed, with statistics; row groups of `events` follow each other in time.

**Writing.** A rank is written by itself and appears whole or not at all: into a temporary
folder that is then renamed, or, where there is no renaming (object stores), with its manifest
last. The index joins the ranks' manifests and holds each distinct group once, so that a
job of thousands of ranks opens by reading this one file. A set whose writing was cut off opens
with the ranks that are whole, and says what is missing.

**Versions.** `format_version` is {version}. It grows when an old reader would misread a new
file: a column that changes its meaning, type or unit, or goes away. New columns and new fields
of a manifest do not change it: a reader ignores fields and columns it does not know and supplies
absent values for those that an older file lacks. A reader refuses a higher version.

```python
from foretrace import TraceSet

traces = TraceSet.open("NAME.trace")
traces.ranks, traces.missing_ranks, traces.steps, traces.groups
traces.info(0).host
traces.events(0, columns=["name", "start_ns", "dur_ns"])  # a pyarrow Table
traces.collectives(0, pandas=True)  # a pandas DataFrame
```
"""

REDACTION = """\
## Redaction

`foretrace redact NAME.trace -o OTHER.trace` makes a copy that names no people, hosts and files
and replays like the original.

| removed or replaced | how |
| --- | --- |
| host names | numbered, `host-0` ... |
| sources, labels, notes, examples of losses | removed, but for the profiler's own switches |
| Python frames | numbered, `frame-0` ... |
| paths, URLs, e-mail and IP addresses in names and other texts | numbered, `path-0` ... |
| host and user names found anywhere in the set | replaced wherever they stand as a word |

Texts are the names of events, their concrete inputs, versions and descriptions of groups.

Kept: times, operator and kernel names, shapes, types, groups, ranks, device models, versions,
process and thread ids, memory addresses. Annotations keep their words apart from the above, so
look at them (`kind` is `annotation`) before you pass a copy on.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION.format(version=schema.FORMAT_VERSION)]
    for name, columns in schema.TABLES.items():
        parts.append(_table(name, columns))
        if name == "events":
            parts.append(_kinds("Kinds of events", schema.EVENT_KINDS))
        if name == "collectives":
            parts.append(_kinds("Kinds of collectives", schema.COLLECTIVE_KINDS))
    parts.append("## Manifests\n")
    parts += [_struct(s) for s in ("RankInfo", "GroupInfo", "StepInfo", "Dropped", "Index")]
    parts.append(REDACTION)
    return "\n".join(parts)


def _table(name: str, columns: tuple[schema.Column, ...]) -> str:
    lines = [
        f"## {name}.parquet\n",
        "| column | type | absent | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for column in columns:
        kind = "text" if column.type == schema.TEXT else str(column.type)
        absent = "never" if column.absent is None else str(column.absent) or "empty"
        lines.append(f"| `{column.name}` | {kind} | {absent} | {column.doc} |")
    return "\n".join(lines) + "\n"


def _kinds(title: str, kinds: tuple[str, ...]) -> str:
    """The kinds with what the comments behind them say."""
    comments = {}
    for line in inspect.getsource(schema).splitlines():
        text = line.strip()
        if text.startswith('"') and "#" in text:
            comments[text.split('"')[1]] = text.split("#", 1)[1].strip()
    lines = [f"{title}, in the order of their codes:\n"]
    lines += [f"- `{k}`" + (f": {comments[k]}" if k in comments else "") for k in kinds]
    return "\n".join(lines) + "\n"


def _struct(name: str) -> str:
    tree = ast.parse(inspect.getsource(manifest))
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    lines = [f"### {name}\n", (ast.get_docstring(body) or "") + "\n"]
    lines += ["| field | type | meaning |", "| --- | --- | --- |"]
    field = None
    for node in body.body:
        if isinstance(node, ast.AnnAssign):
            field = node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and field:
            words = " ".join(str(node.value.value).split())
            kind = ast.unparse(field.annotation)
            lines.append(f"| `{ast.unparse(field.target)}` | `{kind}` | {words} |")
            field = None
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
