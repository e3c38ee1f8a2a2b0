"""The documentation of the command line: options of examples exist, and help fits the terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kiel_groups.cli import app as cli
from kiel_groups.cli.app import app

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs"
#: The pages about the command line.
PAGES = ("cli.rst", "cli-records.rst")


def examples(page: str) -> list[str]:
    """Return the commands on a page, without the rest of their pipelines."""
    text = (DOCS / page).read_text()
    found = re.findall(r'^    (?:.*\| |eval "\$\()?kiel-groups (.*?)(?: \| .*|\)")?$', text, re.MULTILINE)
    return [str(example) for example in found]


def paths(group: click.Group = app, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that name each command and each command group."""
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from paths(command, (*path, name))
        else:
            yield (*path, name)


def test_each_group_of_commands_has_an_example() -> None:
    """The pages show examples of the most important commands. Users find commands by their examples."""
    shown = {example.split()[0] for page in PAGES for example in examples(page)}
    important = {"cluster", "topics", "produce", "consume", "describe", "workers", "connectors", "spark", "completion"}
    assert important <= shown


@pytest.mark.parametrize("example", [each for page in (*PAGES, "leaving-0.8.rst") for each in examples(page)])
def test_the_options_of_an_example_exist(example: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each example can be parsed if the environment has the addresses of brokers and ZooKeeper, as the page says."""
    monkeypatch.chdir(tmp_path)
    for name in ("access.log", "logs.json"):
        (tmp_path / name).touch()
    token = tmp_path / "workers.token"
    token.touch(0o600)
    token.write_text("t0ken-of-all-workers")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("KIEL_GROUPS_BROKERS", "kafka:9092")
    monkeypatch.setenv("KIEL_GROUPS_ZOOKEEPER", "zookeeper:2181")
    monkeypatch.setenv("KIEL_GROUPS_MIRROR_FROM", "zookeeper:2181")
    monkeypatch.setenv("KIEL_GROUPS_MIRROR_TO", "new:9092")
    words = shlex.split(example)
    context, command = click.Context(app), app
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        if not isinstance(found, click.Group):
            found.make_context(name, words, parent=context)
            return
        command = found


@pytest.mark.parametrize("path", list(paths()), ids=" ".join)
def test_help_fits_80_columns(capsys: pytest.CaptureFixture[str], path: tuple[str, ...]) -> None:
    """No line of a help text is wider than 80 columns, and each command documents its exit status."""
    assert cli.run([*path, "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "Exit status: 0 " in out
