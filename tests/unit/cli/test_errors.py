"""What a person sees when something is wrong: one line, and an exit status that tells whose turn it is."""

from __future__ import annotations

import resource
import subprocess
import sys

import click
import pytest

from kiel_groups import __version__
from kiel_groups.cli import app
from kiel_groups.cli.commands.demo import demo
from kiel_groups.errors import ConfigError, KielGroupsError, ServerError

pytestmark = pytest.mark.unit


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException]:
    """What the demo is to raise."""
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
    """Its text goes to standard error; 2 where the user can mend it, 1 otherwise."""
    failing["error"] = error
    assert app.run(["demo"]) == status
    assert capsys.readouterr() == ("", f"error: {error}\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_is_130_without_a_word(
    failing: dict[str, BaseException], capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    """Somebody who pressed Ctrl-C knows."""
    failing["error"] = error
    assert app.run(["demo"]) == 130
    out, err = capsys.readouterr()
    assert out + err.strip() == ""


@pytest.mark.parametrize("arguments", [["nope"], ["demo", "--nope"], ["demo", "surplus"], ["consume", "--nope"]])
def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """An unknown command, option or argument is named, in a line that says where the right ones stand."""
    assert app.run(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert arguments[-1] in err
    assert err.endswith("--help'.\n")


def test_the_status_of_a_command_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo whose proof fails makes the process end with 1."""
    monkeypatch.setattr(demo, "callback", lambda **options: 1)
    assert app.run(["demo"]) == 1


def test_the_version_is_printed_without_loading_the_house() -> None:
    """--version imports neither a client nor ZooKeeper nor the event loop, and takes less than 150 ms of CPU."""
    code = (
        "import sys; sys.argv[1:] = ['--version']\n"
        "from kiel_groups.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'kazoo', 'tornado', 'asyncio', 'rich', 'aiokafka'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)  # once for the bytecode
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout == f"kiel-groups {__version__}\n[]\n"
    assert (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime) < 0.15


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    """A bare ``kiel-groups`` shows what there is, and is wrong usage."""
    assert app.run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: kiel-groups [OPTIONS]" in err
    assert "consume" in err


@pytest.mark.parametrize("family", ["topics", "cluster"])
def test_a_family_without_its_command_shows_them(capsys: pytest.CaptureFixture[str], family: str) -> None:
    """Help in lines, as for the bare program, and wrong usage."""
    assert app.run([family]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"Usage: kiel-groups {family} [OPTIONS] COMMAND")
    assert "\nCommands:\n" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["groups", "--zookeeper=z", "x"],
            "error: Got unexpected extra argument (x). See 'kiel-groups groups --help'.\n",
        ),
        (["completion"], "Choose from: bash, zsh, fish. See 'kiel-groups completion --help'.\n"),
    ],
)
def test_sentences_end_before_the_next_one(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    """What click says goes well with what is added."""
    assert app.run(arguments) == 2
    err = capsys.readouterr().err
    assert err.endswith(told)
    assert "\t" not in err
