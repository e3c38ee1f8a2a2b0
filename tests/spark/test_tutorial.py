"""The tutorial's commands run as printed, one after the other, after those of the README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.pages import Shell, check_steps, page, steps
from tests.helpers.spark.sessions import worker_environment

# Three Java processes run one after the other; each takes seconds to start, and a minute on a busy computer.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.xdist_group("spark-session")]

PAGE = page("docs/tutorial-spark.rst")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    # The README ends with these variables, whose cluster it has stopped.
    left = {"KIEL_GROUPS_COORDINATION": "brokers", "KIEL_GROUPS_BROKERS": "127.0.0.1:1"}
    made = Shell(tmp_path, **worker_environment(), **left)
    yield made
    made.close()


@pytest.mark.slow
def test_the_commands_print_what_the_page_shows(shell: Shell) -> None:
    """The commands print the output that the page shows, in the shell in which the README has been followed."""
    found = steps(PAGE)
    assert len(found) >= 15
    snippets = re.findall(r"``(\w+\.py)``[^\n]*:\n\n\.\. code-block:: python\n", PAGE)
    assert len(snippets) == PAGE.count(".. code-block::") == 3
    assert [name for name in snippets if f"python {name}" not in [step.command for step in found]] == []
    shell.enter("spark", PAGE)
    check_steps(shell, found)
