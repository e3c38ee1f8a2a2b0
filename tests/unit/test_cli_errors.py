"""What a person sees when something is wrong: one line, and an exit status that tells whose turn it is."""

from __future__ import annotations

import subprocess
import sys
import time

import click
import pytest

from kiel_groups import __version__
from kiel_groups.cli import app as cli
from kiel_groups.cli.demo import demo
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
    assert cli.run(["demo"]) == status
    assert capsys.readouterr() == ("", f"error: {error}\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_is_130_without_a_word(
    failing: dict[str, BaseException], capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    """Somebody who pressed Ctrl-C knows."""
    failing["error"] = error
    assert cli.run(["demo"]) == 130
    out, err = capsys.readouterr()
    assert out + err.strip() == ""


@pytest.mark.parametrize("arguments", [["nope"], ["demo", "--nope"], ["demo", "surplus"]])
def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """An unknown command, option or argument is named."""
    assert cli.run(arguments) == 2
    assert arguments[-1] in capsys.readouterr().err


def test_the_status_of_a_command_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo whose proof fails makes the process end with 1."""
    monkeypatch.setattr(demo, "callback", lambda **options: 1)
    assert cli.run(["demo"]) == 1


def test_the_version_is_printed_without_loading_the_house() -> None:
    """--version imports neither a client nor ZooKeeper nor the event loop, so it is there at once."""
    code = (
        "import sys; sys.argv[1:] = ['--version']\n"
        "from kiel_groups.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'kazoo', 'tornado', 'asyncio', 'rich', 'aiokafka'} & set(sys.modules)))"
    )
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"kiel-groups {__version__}\n[]\n"
    assert time.monotonic() - began_s < 2
