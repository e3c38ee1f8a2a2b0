"""The tutorial: its commands run as they stand there, one after the other, in an empty folder."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from tests.helpers.commands import REPOSITORY, environment
from tests.helpers.spark.sessions import worker_environment

# Three Javas, one after the other, each of which takes seconds to start, and on a busy machine a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.xdist_group("spark-session")]

PAGE = (REPOSITORY / "docs" / "tutorial-spark.rst").read_text(encoding="utf-8")
INSTALLING = ".venv/bin/pip install"


def commands() -> list[str]:
    """The page's blocks for a shell, without the one that installs what the tests run in."""
    complaints = io.StringIO()
    tree = publish_doctree(PAGE, settings_overrides={"report_level": 2, "warning_stream": complaints})
    assert complaints.getvalue() == ""
    blocks = [block.astext() for block in tree.findall(nodes.literal_block) if "code" not in block["classes"]]
    (installing,) = [block for block in blocks if INSTALLING in block]
    blocks.remove(installing)
    return blocks


def programs() -> dict[str, str]:
    """What is to be saved, by the names of the files."""
    found = re.findall(r"``(\w+\.py)``[^\n]*:\n\n\.\. code-block:: python\n\n((?:(?:    .*)?\n)+)", PAGE)
    return {name: re.sub(r"^    ", "", text, flags=re.MULTILINE) for name, text in found}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which commands are those of this checkout, with clusters that nobody else sees."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("python", ""), ("kiel-groups", " -m kiel_groups")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{arguments} "$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "tmp").mkdir()
    variables = environment() | worker_environment() | {"TMPDIR": str(tmp_path / "tmp")}
    variables["PATH"] = f"{programs}{os.pathsep}{variables['PATH']}"
    yield variables
    subprocess.run([programs / "kiel-groups", "cluster", "down"], env=variables, capture_output=True, check=False)


def test_the_commands_run_as_they_stand_there(shell: dict[str, str], tmp_path: Path) -> None:
    """From an empty folder to a table, and on: what the page says of each is what is printed."""
    folder = tmp_path / "empty"
    folder.mkdir()
    for name, text in programs().items():
        (folder / name).write_text(text)
    script = "\n".join(["set -euo pipefail", *commands()])
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=shell, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for told in (
        "would read 2,000 records at most",
        "archived 2,000 records",
        "|/articles/0.html|285  |",
        "\n2,000 records, the last offset is ",
        "committed for the group archive",
        "\n4,000 records, the last offset is ",
    ):
        assert told in done.stdout, done.stdout
    assert re.findall(r"^lag +(\S+)", done.stdout, re.MULTILINE) == ["2,000", "0"], done.stdout
    assert sorted(path.name for path in (folder / "lake").iterdir()) == [
        "_archive.json",
        "_checkpoint",
        "_spark_metadata",
        "topic=page-views",
    ]
