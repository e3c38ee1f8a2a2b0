"""The README, the tutorials without Spark and the trial of security run as printed; names in the README exist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kiel_groups.cli.app import app
from tests.helpers.commands import REPOSITORY
from tests.helpers.pages import Shell, check_steps, page, steps

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

README = page("README.rst")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "pages",
    [
        # In one shell: the README leaves neither a cluster nor variables in the way of a tutorial.
        pytest.param({"README.rst": 20, "docs/tutorial-workers.rst": 25}, id="readme-workers"),
        pytest.param({"docs/tutorial-operating.rst": 20}, id="operating", marks=pytest.mark.slow),
        pytest.param({"docs/tutorial-mirror.rst": 35}, id="mirror", marks=pytest.mark.slow),
        pytest.param({"docs/security.rst": 10}, id="security", marks=pytest.mark.slow),
    ],
)
def test_pages_run_as_printed(shell: Shell, pages: Mapping[str, int]) -> None:
    """A reader who types the commands of a page, of which it has at least so many, sees what the page shows."""
    for name, least in pages.items():
        text = page(name)
        found = steps(text)
        assert len(found) >= least
        shell.enter(Path(name).stem, text)
        check_steps(shell, found, lambda step: check_znodes(shell) if step.command.startswith("kill -9") else None)


def check_znodes(shell: Shell) -> None:
    """Check that the page about workers explains each znode of a group's workers, and none that does not exist."""
    paths = re.findall(r"^``(/kiel-groups/<group>/(?:connect|workers)[^`]*)``", page("docs/workers.rst"), re.MULTILINE)
    assert len(paths) >= 8
    patterns = {path: re.sub("<[a-z ]+>", "[^/]+", path) for path in paths}
    _, (zookeeper,) = shell.run('echo "$KIEL_GROUPS_ZOOKEEPER"')
    client = KazooClient(zookeeper)
    client.start()
    try:
        root = "/kiel-groups/copiers"
        leaves = [path for name in ("connect", "workers") for path in _with_data(client, f"{root}/{name}")]
    finally:
        client.stop()
        client.close()
    unexplained = [leaf for leaf in leaves if not any(re.fullmatch(pattern, leaf) for pattern in patterns.values())]
    assert unexplained == []
    absent = [path for path, pattern in patterns.items() if not any(re.fullmatch(pattern, leaf) for leaf in leaves)]
    assert absent == []


def _with_data(client: KazooClient, path: str) -> list[str]:
    """Return the paths of the znodes that have data, from a path on."""
    data, _ = client.get(path)
    below = [each for name in client.get_children(path) for each in _with_data(client, f"{path}/{name}")]
    return ([path] if data else []) + below


def test_every_python_snippet_of_the_readme_is_a_program_that_is_run() -> None:
    """No snippet is only a part: the page names a file for each one, and a command that runs the file."""
    snippets = README.count(".. code-block:: python")
    named = re.findall(r"``(\w+\.py)``:\n\n\.\. code-block:: python\n", README)
    assert len(named) == snippets == 2
    commands = [step.command for step in steps(README)]
    assert [name for name in named if not any(command.startswith(f"python {name}") for command in commands)] == []


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    """
    Each figure is in a page of benchmarks, so that a new measurement changes both. Each command is one that measures.
    """
    (table,) = re.findall(r"=\nmedians .*\n=[= ]*\n((?:.*\n)+?)=", README)
    rows = [re.split(r"\s{2,}", line) for line in table.splitlines()]
    figures = [figure for row in rows for cell in row[1:3] for figure in re.findall(r"\d[\d,.]*\d", cell)]
    assert len(figures) == 18
    benchmarks = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs").rglob("*benchmark*.rst"))
    measured = set(re.findall(r"\d[\d,.]*\d", benchmarks))
    # Some of its tables have thousands.
    in_full = {figure: f"{float(figure.replace(',', '')) * 1000:,.0f}" for figure in figures}
    assert [figure for figure in figures if not measured & {figure, in_full[figure]}] == []
    assert [row[3] for row in rows if f"python -m {row[3].strip('`')}" not in benchmarks] == []


def test_every_path_in_the_readme_exists() -> None:
    """All paths of the repository that the README names exist."""
    named = set(re.findall(r"(?<![\w/.-])(?:scripts|tests|docs|examples|kiel_groups)(?:/[\w.-]*\w)+", README))
    assert {"scripts/demo", "scripts/test", "scripts/package", "docs/demo.svg", "docs/glossary.rst"} <= named
    assert {path for path in named if not (REPOSITORY / path).exists()} == set()


def test_every_command_and_option_in_the_readme_exists() -> None:
    """``kiel-groups`` has the named commands, and ``scripts/demo`` the named options."""
    commands = set(re.findall(r"(?:``|^    \$ )kiel-groups (\w+)", README, re.MULTILINE))
    context = app.make_context("kiel-groups", ["demo"])
    assert {"consume"} <= commands <= set(app.list_commands(context))
    demo = app.get_command(context, "demo")
    assert demo is not None
    known = {option for parameter in demo.params for option in parameter.opts}
    lines = re.findall(r"(?:scripts/demo|kiel-groups demo)((?: --?[\w-]+(?: [\w/.]+)?)+)", README)
    assert lines
    assert {option for line in lines for option in re.findall(r"--[\w-]+", line)} <= known


def test_the_readme_works_on_a_computer_with_other_servers_and_without_an_index() -> None:
    """The README names no port of this computer, which may be in use, and no package that an index would have."""
    assert not re.findall(r"127\.0\.0\.1:\d|-port", README)
    assert "pip install kiel-groups" not in README
