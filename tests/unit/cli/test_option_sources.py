"""Options from the environment and from a file: their precedence, and mistakes in them."""

from __future__ import annotations

import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kiel_groups.cli import app
from kiel_groups.cli.commands.consume import consume

pytestmark = pytest.mark.unit

Given = dict[str, Any]


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Given:
    """Return the options that ``consume`` gets. No configuration file and no variables of this package are set."""
    options: Given = {}
    monkeypatch.setattr(consume, "callback", lambda **given: options.update(given))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("BROKERS", "ZOOKEEPER", "CONFIG"):
        monkeypatch.delenv(f"KIEL_GROUPS_{name}", raising=False)
    return options


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes the default configuration file."""

    def write(text: str) -> Path:
        path = tmp_path / "kiel-groups" / "config.toml"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        return path

    return write


FILE = """
brokers = ["file:1", "file:2"]
zookeeper = "file:3"
[consume]
group = "of-the-file"
max = 7
"""


def test_a_file_sets_the_missing_options(write: Callable[[str], Path], given: Given) -> None:
    """
    The configuration file sets options that are missing elsewhere. A list is joined with commas, and keys at the top
    apply to all commands.
    """
    write(FILE)
    assert app.run(["consume", "t"]) == 0
    assert (given["brokers"], given["zookeeper"]) == ("file:1,file:2", "file:3")
    assert (given["group"], given["most"]) == ("of-the-file", 7)


def test_arguments_override_the_environment_which_overrides_the_file(
    write: Callable[[str], Path], given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments override the environment, and the environment overrides the configuration file."""
    write(FILE)
    monkeypatch.setenv("KIEL_GROUPS_BROKERS", "environment:1")
    monkeypatch.setenv("KIEL_GROUPS_CONSUME_MAX", "8")
    monkeypatch.setenv("KIEL_GROUPS_ZOOKEEPER", "environment:3")
    assert app.run(["consume", "t", "--zookeeper=argument:3"]) == 0
    assert (given["zookeeper"], given["brokers"], given["group"]) == ("argument:3", "environment:1", "of-the-file")
    assert given["most"] == 8


def test_another_file_is_read(tmp_path: Path, given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--config`` or ``KIEL_GROUPS_CONFIG`` names another configuration file."""
    (tmp_path / "mine.toml").write_text(FILE)
    assert app.run([f"--config={tmp_path}/mine.toml", "consume", "t"]) == 0
    assert given.pop("group") == "of-the-file"
    monkeypatch.setenv("KIEL_GROUPS_CONFIG", f"{tmp_path}/mine.toml")
    assert app.run(["consume", "t"]) == 0
    assert given["group"] == "of-the-file"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("brokres = 'a:1'", ": there is no 'brokres'; did you mean 'brokers'?"),
        ("[consmue]", ": there is no 'consmue'; did you mean 'consume'?"),
        ("[consume]\ngruop = 'g'", ": [consume]: there is no 'gruop'; did you mean 'group'?"),
        ("[consume]\nsession_timeout_ms = 5", "there is no 'session_timeout_ms'; did you mean 'session-timeout-ms'?"),
        ("[consume]\nqqq = 5", "there is no 'qqq'; known: brokers, coordination, zookeeper, "),
        ("[brokers]\nx = 5", ": brokers: a table given; expected a value"),
        ("consume = 5", ": [consume]: 5 given; expected a table"),
        ("brokers = ", " is not TOML: Invalid value (at end of document)"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    """
    A mistake in the configuration file is an error of one line. The error about an unknown key has the file, the
    section, the key, and the nearest known key.
    """
    path = write(text)
    assert app.run(["consume", "t"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert str(path) in line
    assert words in line


@pytest.mark.parametrize("name", ["max", "max-messages"])
def test_each_name_of_an_option_works_in_the_file_and_in_the_environment(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """
    Each name of an option works in the file and in the environment. The error about the invalid value shows that the
    name was recognized.
    """
    path = write(f"brokers = 'b:1'\n[consume]\n{name} = 'many'\n")
    assert app.run(["consume", "t"]) == 2
    assert f"'many' is not an integer. It is set in {path}." in capsys.readouterr().err
    variable = f"KIEL_GROUPS_CONSUME_{name.upper().replace('-', '_')}"
    monkeypatch.setenv(variable, "few")
    assert app.run(["consume", "t"]) == 2
    assert f"'few' is not an integer. It is set in {variable}." in capsys.readouterr().err


def test_the_error_about_an_invalid_value_names_its_source(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The error about an invalid value names its file or variable. Users would otherwise look for the value on the command
    line.
    """
    path = write(FILE.replace("7", "'many'"))
    assert app.run(["consume", "t"]) == 2
    assert f"'--max' / '--max-messages': 'many' is not an integer. It is set in {path}." in capsys.readouterr().err
    monkeypatch.setenv("KIEL_GROUPS_CONSUME_MAX", "few")
    assert app.run(["consume", "t"]) == 2
    assert "'few' is not an integer. It is set in KIEL_GROUPS_CONSUME_MAX." in capsys.readouterr().err


def test_a_misspelt_variable_is_an_error_and_an_unrelated_one_is_not(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A misspelt variable is an error with the variable that was probably meant. Variables that Kubernetes sets for
    services are ignored.
    """
    write(FILE)
    monkeypatch.setenv("KIEL_GROUPS_SERVICE_HOST", "10.0.0.1")
    assert app.run(["consume", "t"]) == 0
    monkeypatch.setenv("KIEL_GROUPS_BROKRES", "a:1")
    assert app.run(["consume", "t"]) == 2
    assert (
        "KIEL_GROUPS_BROKRES: there is no such variable; did you mean KIEL_GROUPS_BROKERS?" in capsys.readouterr().err
    )


@pytest.mark.parametrize("path", ["missing.toml", "."])
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A file named by ``--config`` that cannot be read is an error with the file's name."""
    monkeypatch.chdir(tmp_path)
    assert app.run([f"--config={path}", "consume", "t"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert path in line


def test_without_a_home_folder_there_is_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: Given) -> None:
    """
    A user with neither HOME nor a passwd entry, as in a container with a random user id, has no file; one whose HOME
    may not be searched has none, either.
    """
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME")
    with monkeypatch.context() as unknown:
        unknown.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("uid not found")))
        assert app.run(["consume", "t", "--brokers", "b:1", "--max", "1"]) == 0
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(Path, "stat", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert app.run(["consume", "t", "--brokers", "b:1", "--max", "2"]) == 0
    assert given["most"] == 2
