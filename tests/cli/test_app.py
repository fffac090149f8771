"""The program's edges: help, usage errors, errors of commands, pipes and interrupts."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace import __version__
from foretrace.cli import app, commands
from foretrace.traces.errors import ForetraceError, ScenarioError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the program with one command, ``try``, and gives exit code, stdout and stderr."""

    def call(*args: str, command: Callable[..., object] | None = None) -> tuple[int, str, str]:
        if command is not None:
            module = types.ModuleType("fake_commands")
            vars(module)["command"] = command
            monkeypatch.setitem(sys.modules, "fake_commands", module)
            entry = commands.Entry("fake_commands:command", "Try.")
            monkeypatch.setitem(commands.COMMANDS, "try", entry)
        with pytest.raises(SystemExit) as end:
            app.main(list(args))
        code = end.value.code
        assert isinstance(code, int)
        return code, *capsys.readouterr()

    return call


def test_help_lists_every_command(program: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = program("--help")
    assert code == 0
    for name, entry in commands.COMMANDS.items():
        assert f"  {name} " in out
        assert entry.help.split()[0] in out


def test_without_arguments_it_shows_help(program: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = program()
    assert code == 0
    assert "Usage: foretrace" in out


def test_version(program: Callable[..., tuple[int, str, str]]) -> None:
    assert program("--version")[:2] == (0, f"foretrace {__version__}\n")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("replai",), "did you mean 'replay'?"),
        (("xyz",), "commands: import, replay"),
        (("--colour",), "--colour"),
        (("try", "--colour"), "--colour"),
        (("try",), "thing"),
        (("try", "5", "6"), "6"),
        (("try", "five"), "integer"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(
    program: Callable[..., tuple[int, str, str]], args: tuple[str, ...], says: str
) -> None:
    def command(thing: int) -> None:
        """Try."""

    code, out, err = program(*args, command=command)
    assert (code, out) == (2, "")
    assert err.startswith("foretrace: error: ")
    assert err.count("\n") == 1
    assert says in err.replace("THING", "thing")
    assert "--help'" in err


def test_an_error_of_the_input_is_one_line(program: Callable[..., tuple[int, str, str]]) -> None:
    def command() -> None:
        raise ScenarioError("rank 3:\nnothing fits")

    assert program("try", command=command) == (2, "", "foretrace: error: rank 3: nothing fits\n")


def test_an_error_may_choose_its_exit_code(program: Callable[..., tuple[int, str, str]]) -> None:
    class OtherError(ForetraceError):
        exit_code = 7

    def command() -> None:
        raise OtherError("x")

    assert program("try", command=command)[0] == 7


def test_a_missing_file_is_one_line(program: Callable[..., tuple[int, str, str]]) -> None:
    def command() -> None:
        Path("no/such/file").read_bytes()

    code, _, err = program("try", command=command)
    assert (code, err) == (2, "foretrace: error: no/such/file: No such file or directory\n")


@pytest.mark.parametrize("args", [("--debug", "try"), ("try", "--debug")])
def test_debug_shows_the_traceback(
    args: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[..., tuple[int, str, str]],
) -> None:
    def command() -> None:
        raise ScenarioError("nothing fits")

    program("try", command=command)
    with pytest.raises(ScenarioError):
        app.main(list(args))


def test_a_bug_keeps_its_traceback(
    program: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        raise KeyError("a fault of ours")

    with pytest.raises(KeyError):
        program("try", command=command)


def test_interrupt_is_quiet(program: Callable[..., tuple[int, str, str]]) -> None:
    def command() -> None:
        raise KeyboardInterrupt

    code, _, err = program("try", command=command)
    assert code == 130
    assert "Traceback" not in err


def test_a_command_may_choose_its_exit_code(program: Callable[..., tuple[int, str, str]]) -> None:
    def command() -> int:
        return 3

    assert program("try", command=command)[0] == 3


@pytest.mark.parametrize("name", sorted(commands.COMMANDS))
def test_every_entry_leads_to_a_documented_function(
    name: str, program: Callable[..., tuple[int, str, str]]
) -> None:
    entry = commands.COMMANDS[name]
    module, _, function = entry.target.partition(":")
    command = getattr(importlib.import_module(module), function)
    assert (command.__doc__ or "").strip()
    assert len(entry.help) <= 70
    code, out, _ = program(name, "--help")
    assert code == 0
    assert f"Usage: foretrace {name}" in out


CHILD = """
import sys, time
from foretrace.cli import app, commands
def command() -> None:
    {body}
sys.modules["fake"] = sys.modules["__main__"]
commands.COMMANDS["try"] = commands.Entry("fake:command", "Try.")
app.main(["try"])
"""
LONG_OUTPUT = CHILD.format(body="for i in range(200_000): print('line', i)")
SLEEPS = CHILD.format(body="print('ready', flush=True); time.sleep(60)")


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", LONG_OUTPUT], stdout=write, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(write)
        os.read(read, 10)
        os.close(read)
        _, err = process.communicate(timeout=60)
    assert err == ""
    assert process.returncode == 1


def test_a_real_interrupt_ends_it_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode == 130


STARTS = """
import sys, time
from foretrace.cli import commands, start
def command() -> None:
    time.sleep(60)
sys.modules["fake"] = sys.modules["__main__"]
commands.COMMANDS["try"] = commands.Entry("fake:command", "Try.")
sys.argv = ["foretrace", "try"]
start.main()
"""


@pytest.mark.parametrize("module", ["difflib", "typer"])
def test_an_interrupt_while_it_starts_ends_it_quietly(module: str) -> None:
    """Sent when a module has been imported, among the first of those that take time or later."""
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-c", STARTS], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split()[-1] == module:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode == 130


def test_the_program_begins_where_interrupts_are_heard_first() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    assert scripts == {"foretrace": "foretrace.cli.start:main"}
    slow = "{'typing', 'typer', 're'} & {*sys.modules}"
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
    code += f"import foretrace.cli.start; print({slow})"
    command = [sys.executable, "-S", "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout == "set()\n"
