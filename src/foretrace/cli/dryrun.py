"""``foretrace dryrun``: a training script as one rank of a world that does not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def dryrun_command(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- SCRIPT.py [ARGUMENTS]...", help="The script, after '--'."),
    ],
    world_size: Annotated[int, typer.Option("--world-size", min=1, help="Ranks of the world.")],
    *,
    rank: Annotated[
        int | None, typer.Option(min=0, help="The rank to trace; 0 by default.")
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="unique|0-3,7", help="Ranks to trace; 'unique': one of each role."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT.trace", help="The trace set.")
    ] = None,
    fake: Annotated[
        bool, typer.Option("--fake", help="Tensors without data: no memory, no times.")
    ] = False,
    routing: Annotated[
        str,
        typer.Option(metavar="LAW|FILE.json", help="Tokens for experts: uniform, zipf:S, counts."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Run a training script as single ranks of a world that does not exist, and record them."""
    from dataclasses import asdict

    from foretrace.cli.terminal import print_json, print_line
    from foretrace.collector.dryrun import dry_run
    from foretrace.replay.scenario import parse_numbers
    from foretrace.traces.errors import ForetraceError

    if rank is not None and ranks is not None:
        raise ForetraceError("give --rank or --ranks, not both")
    if ranks is None:
        wanted: Any = [rank or 0]
    else:
        wanted = ranks if ranks == "unique" else sorted(parse_numbers(ranks, f"--ranks {ranks}"))
    script, *arguments = command
    out = output or Path(f"{Path(script).stem}.trace")
    result = dry_run(
        script,
        arguments,
        world_size=world_size,
        ranks=wanted,
        out=out,
        fake=fake,
        routing=routing,
    )
    if as_json:
        print_json(asdict(result) | {"path": str(result.path)})
        return
    for each in result.ranks:
        same = f", {result.roles[each]:,} ranks alike" if result.roles[each] else ""
        print_line(
            f"rank {each}: {result.operations[each]:,} operations, {result.collectives[each]:,} "
            f"collectives that it puts {result.bytes_in[each] / 1e6:,.1f} MB into{same}"
        )
    for note in result.notes:
        print_line(f"note: {note}")
    print_line(
        f"{result.path}: {len(result.ranks)} of {world_size:,} ranks, {result.seconds:.1f} s"
    )
