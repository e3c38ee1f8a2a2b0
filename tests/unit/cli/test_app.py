"""Errors of the command line are one line each, and their exit status says whether other arguments may help."""

from __future__ import annotations

import signal
import subprocess
import sys
from unittest.mock import Mock

import click
import pytest
from kazoo.client import KazooClient

from kiel_groups import __version__
from kiel_groups.allocators import ALLOCATORS
from kiel_groups.cli import app
from kiel_groups.cli.commands.demo import demo
from kiel_groups.errors import ConfigError, KielGroupsError, ServerError
from tests.helpers.commands import environment

pytestmark = pytest.mark.unit


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException]:
    """Have the demo raise the error that the test sets."""
    raised: dict[str, BaseException] = {}

    def callback(**options: object) -> int:
        raise raised["error"]

    monkeypatch.setattr(demo, "callback", callback)
    return raised


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KielGroupsError("it broke"), 1),
        (ServerError("no java"), 1),
        (ConfigError("rate: -1 given"), 2),
    ],
)
def test_an_error_of_the_package_is_one_line(
    failing: dict[str, BaseException],
    capsys: pytest.CaptureFixture[str],
    error: KielGroupsError,
    status: int,
) -> None:
    """
    An error of this package is printed as one line on standard error. The exit status is 2 if other arguments may help,
    and 1 for all other errors.
    """
    failing["error"] = error
    assert app.run(["demo"]) == status
    assert capsys.readouterr() == ("", f"error: {error}\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_exits_with_130_without_output(
    failing: dict[str, BaseException], capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    """After Ctrl-C, a command exits with status 130 and prints no message, because the user needs none."""
    failing["error"] = error
    assert app.run(["demo"]) == 130
    out, err = capsys.readouterr()
    assert out + err.strip() == ""


@pytest.mark.parametrize("arguments", [["nope"], ["demo", "--nope"], ["demo", "surplus"], ["consume", "--nope"]])
def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """
    Wrong usage exits with status 2. The error has the unknown command, option or argument, and the command that lists
    the valid ones.
    """
    assert app.run(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert arguments[-1] in err
    assert err.endswith("--help'.\n")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *[("releas", "release"), ("leases", ""), ("topic", "topics"), ("lags", "lag"), ("nothing-like-it", "")],
        *[("delete", "groups delete"), ("deleet", "groups delete"), ("lst", "groups list"), ("--list", "groups list")],
        *[("status", "describe"), ("--describe", "describe"), ("--lag", "lag"), ("--replace", "")],
    ],
)
def test_the_command_that_is_meant_is_suggested(capsys: pytest.CaptureFixture[str], word: str, meant: str) -> None:
    """Typing errors, and words of Kafka's tools, suggest a command. Few suggest ``release``, which acts on members."""
    assert app.run([word]) == 2
    err = capsys.readouterr().err
    assert f"No such {'option' if word.startswith('--') else 'command'}" in err
    assert (f"Did you mean '{meant}'?" in err) if meant else ("Did you mean" not in err)


def test_an_option_with_the_name_of_a_command_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    """``--config`` names a file, and ``config`` is a command."""
    assert app.run(["--config", "/nowhere.toml", "demo", "--help"]) == 2
    assert "--config: /nowhere.toml cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("word", app._MEANT)
def test_each_suggestion_is_a_command(capsys: pytest.CaptureFixture[str], word: str) -> None:
    """A word of Kafka's tools suggests a command that exists, or nothing."""
    assert app.run([word]) == 2
    _, suggests, rest = capsys.readouterr().err.partition("Did you mean '")
    assert not suggests or app.run([*rest.partition("'")[0].split(), "--help"]) == 0


def test_the_status_of_a_command_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a command is the exit status of the process. For example, the demo returns 1 if its check fails."""
    monkeypatch.setattr(demo, "callback", lambda **options: 1)
    assert app.run(["demo"]) == 1


def test_the_version_is_printed_without_importing_the_clients() -> None:
    """``--version`` imports neither kazoo, Tornado, asyncio, rich nor aiokafka, which take longer than the rest."""
    code = (
        "import sys; sys.argv[1:] = ['--version']\n"
        "from kiel_groups.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'kazoo', 'tornado', 'asyncio', 'rich', 'aiokafka'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"kiel-groups {__version__}\n[]\n"


@pytest.mark.parametrize("command", ["consume", "topics"])
def test_help_imports_no_library(command: str) -> None:
    """The help of a command imports neither its libraries nor the metadata of installed packages, which take longer."""
    code = (
        "import sys; sys.argv[1:] = [sys.argv[1], '--help']\n"
        "from kiel_groups.cli import main\n"
        "libraries = {'kazoo', 'tornado', 'asyncio', 'rich', 'aiokafka', 'importlib.metadata'}\n"
        "try: main()\n"
        "finally: print(sorted(libraries & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")


@pytest.mark.parametrize("command", ["consume", "serve"])
def test_the_help_names_all_allocators(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of ``--allocator`` names each built-in allocator."""
    assert app.run([command, "--help"]) == 0
    assert ", ".join(ALLOCATORS) in " ".join(capsys.readouterr().out.split())


def test_without_a_command_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """``kiel-groups`` without a command prints its help on standard error, and exits with status 2 for wrong usage."""
    assert app.run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: kiel-groups [OPTIONS]" in err
    assert "consume" in err


@pytest.mark.parametrize("group", ["topics", "cluster"])
def test_a_command_group_alone_prints_its_commands(capsys: pytest.CaptureFixture[str], group: str) -> None:
    """A command group without a command prints its commands, and exits with status 2 for wrong usage."""
    assert app.run([group]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"Usage: kiel-groups {group} [OPTIONS] COMMAND")
    assert "\nCommands:\n" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["groups", "--zookeeper=z", "x"],
            "error: Got unexpected extra argument (x). See 'kiel-groups groups list --help'.\n",
        ),
        (["completion"], "Choose from: bash, zsh, fish. See 'kiel-groups completion --help'.\n"),
        (
            ["consume", "t"],
            "(env var: 'KIEL_GROUPS_BROKERS'). After 'kiel-groups cluster up',"
            """ eval "$(kiel-groups cluster env)" sets it. See 'kiel-groups consume --help'.\n""",
        ),
        (
            ["mirror", "verify", "--from=z"],
            "Missing option '--to' (env var: 'KIEL_GROUPS_MIRROR_TO'). See 'kiel-groups mirror verify --help'.\n",
        ),
    ],
)
def test_sentences_of_an_error_are_separated(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """In an error of wrong usage, Click's message ends with a full stop before the hint."""
    assert app.run(arguments) == 2
    err = capsys.readouterr().err
    assert err.endswith(message)
    assert "\t" not in err


def test_ctrl_c_before_kazoos_thread_runs_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stop of a client that has no thread yet fails in kazoo, which must not hide the Ctrl-C."""
    monkeypatch.setattr(KazooClient, "start", Mock(side_effect=KeyboardInterrupt))
    assert app.run(["topics", "list", "--zookeeper", "127.0.0.1:1"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_ctrl_c_while_the_interpreter_ends_prints_nothing() -> None:
    """The command is done then, and its output is written."""
    code = """
import atexit, os, signal, sys
from kiel_groups.cli import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv = ["kiel-groups", "--version"]
main()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"kiel-groups {__version__}\n", "")
    assert done.returncode == -signal.SIGINT


def test_nothing_is_imported_before_a_ctrl_c_is_expected() -> None:
    """``main`` handles a Ctrl-C, so what is imported before it, while one would print a traceback, is little."""
    code = "import sys; before = set(sys.modules); import kiel_groups.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"__future__", "kiel_groups", "kiel_groups.cli", "kiel_groups.lazy_imports"}
