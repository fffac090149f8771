"""Which commands there are: name, function and one line of help, without importing any."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One command of the program.

    Attributes:
        target: ``module:function`` of the command, imported when it is used.
        help: the line shown by ``foretrace --help``.
    """

    target: str
    help: str


COMMANDS = {
    "import": Entry(
        "foretrace.cli.traces:import_command",
        "Turn profiler traces (file, folder, glob, tar) into one trace set.",
    ),
    "replay": Entry(
        "foretrace.cli.replay:replay_command",
        "Replay a trace set, say how well it fits, and answer what-ifs.",
    ),
    "whatif": Entry(
        "foretrace.cli.whatif:whatif_command",
        "Replay a trace set under the scenarios of a file.",
    ),
    "analyze": Entry(
        "foretrace.cli.analysis:analyze_command",
        "Say where each rank's step time goes.",
    ),
    "stragglers": Entry(
        "foretrace.cli.stragglers:stragglers_command",
        "Say what slow workers cost, from a table of operations.",
    ),
    "report": Entry(
        "foretrace.cli.analysis:report_command",
        "Write a self-contained HTML report of a trace set.",
    ),
    "extrapolate": Entry(
        "foretrace.cli.extrapolate:extrapolate_command",
        "Predict a training step on a layout and cluster that nobody ran.",
    ),
    "sweep": Entry(
        "foretrace.cli.sweep:sweep_command",
        "Search the layouts of a model on so many GPUs for the fastest.",
    ),
    "dryrun": Entry(
        "foretrace.cli.dryrun:dryrun_command",
        "Run a training script as single ranks of a world that does not exist.",
    ),
    "cost": Entry(
        "foretrace.cli.cost:cost_command",
        "Price a collective on a cluster, with its terms.",
    ),
    "clusters": Entry(
        "foretrace.cli.cost:clusters_command",
        "List the clusters and GPU types that are known.",
    ),
    "calibrate": Entry(
        "foretrace.cli.cost:calibrate_command",
        "Fit the cost of collectives to one machine.",
    ),
    "memory": Entry(
        "foretrace.cli.memory:memory_command",
        "Say whether a job fits its GPUs, or what a recording held.",
    ),
    "export": Entry(
        "foretrace.cli.export:export_command",
        "Write a trace set for other tools: CSV, Parquet, Perfetto, Chakra.",
    ),
    "redact": Entry(
        "foretrace.cli.traces:redact_command",
        "Copy a trace set without names, paths and hosts.",
    ),
}
"""Commands in the order of the help page. Adding one is one line here and its function."""
