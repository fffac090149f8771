"""Entry point of the program: finds the command, and turns errors into one line.

Exit codes: 0 done, 1 the reader of our output went away, 2 the input or the command
line is at fault, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from foretrace import __version__
from foretrace.cli.commands import COMMANDS
from foretrace.traces.errors import ForetraceError

# BadParameter < UsageError < ClickException. Only the first has one home in all Typer
# versions (newer ones carry their own copy of click), so the others are taken from it.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

PROGRAM = "foretrace"


class _LazyGroup(TyperGroup):
    """A group whose commands are imported when they are used, not when they are listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            if not ctx.resilient_parsing:
                ctx.fail(_no_such_command(cmd_name))
            return None
        module, _, function = entry.target.partition(":")
        single = typer.Typer(rich_markup_mode=None, add_completion=False)
        single.command(cmd_name)(getattr(import_module(module), function))
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


def _no_such_command(name: str) -> str:
    close = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"commands: {', '.join(COMMANDS)}"
    return f"no such command {name!r}; {hint}"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (with any command).")
    ] = False,
) -> None:
    """Record, replay and question the training steps of distributed PyTorch jobs."""


def build_program() -> Any:
    """The whole command line as a click-compatible group; imports no command."""
    app = typer.Typer(
        name=PROGRAM,
        cls=_LazyGroup,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return typer.main.get_command(app)


def main(argv: list[str] | None = None) -> None:
    """Run the program and end the process.

    Args:
        argv: arguments without the program's name; those of the process by default.
    """
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    debug = "--debug" in args
    if debug:  # wherever it stands: people add it at the end of the line that failed
        args = [arg for arg in args if arg != "--debug"] or ["--help"]
    sys.exit(_run(args, debug))


def _run(args: list[str], debug: bool) -> int:
    if isinstance(sys.stdout, TextIOWrapper):  # a name that the terminal cannot show is no failure
        sys.stdout.reconfigure(errors="replace")
    try:
        result = build_program().main(args, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (_ClickException, ForetraceError, OSError, typer.Abort, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError):
            return _reader_gone()
        if debug:
            raise
        return _explain(error)


def _explain(error: BaseException) -> int:
    """Print one line about ``error`` and give the exit code."""
    if isinstance(error, (typer.Abort, KeyboardInterrupt)):
        return _say("interrupted", 130)
    if isinstance(error, _ClickException):
        return _say(_usage_text(error), 2)
    if isinstance(error, OSError):
        return _say(_file_text(error), 2)
    return _say(str(error), getattr(error, "exit_code", 2))


def _usage_text(error: Any) -> str:
    text = error.format_message()
    ctx = getattr(error, "ctx", None)
    if ctx is not None:
        text = f"{text.rstrip('.')} (see '{ctx.command_path} --help')"
    return str(text)


def _file_text(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error) or type(error).__name__
    return f"{error.filename}: {error.strerror}"


def _say(text: str, code: int) -> int:
    line = " ".join(text.split())
    sys.stderr.write(f"{PROGRAM}: error: {line}\n")
    return code


def _reader_gone() -> int:
    """The reader of our output closed it (``| head``): end without a word.

    Standard output is led to nowhere, or Python would complain when it flushes at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    main()
