"""The tutorial's commands run as printed, one after the other, in an empty folder."""

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

# Three Java processes run one after the other; each takes seconds to start, and a minute on a busy computer.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.xdist_group("spark-session")]

PAGE = (REPOSITORY / "docs" / "tutorial-spark.rst").read_text(encoding="utf-8")
INSTALLING = ".venv/bin/pip install"


def commands() -> list[str]:
    """Return the page's shell commands, without those that install the package."""
    warnings = io.StringIO()
    tree = publish_doctree(PAGE, settings_overrides={"report_level": 2, "warning_stream": warnings})
    assert warnings.getvalue() == ""
    blocks = [block.astext() for block in tree.findall(nodes.literal_block) if "code" not in block["classes"]]
    (installing,) = [block for block in blocks if INSTALLING in block]
    blocks.remove(installing)
    return blocks


def programs() -> dict[str, str]:
    """Return the programs that the page tells the reader to save, by file name."""
    found = re.findall(r"``(\w+\.py)``[^\n]*:\n\n\.\. code-block:: python\n\n((?:(?:    .*)?\n)+)", PAGE)
    return {name: re.sub(r"^    ", "", text, flags=re.MULTILINE) for name, text in found}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return an environment with this checkout's commands, and with clusters of its own."""
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


def test_the_commands_run_as_printed(shell: dict[str, str], tmp_path: Path) -> None:
    """The commands print the output that the page shows."""
    folder = tmp_path / "empty"
    folder.mkdir()
    for name, program in programs().items():
        (folder / name).write_text(program)
    script = "\n".join(["set -euo pipefail", *commands()])
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=shell, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in (
        "would read 2,000 records at most",
        "archived 2,000 records",
        "|/articles/0.html|285  |",
        "\n2,000 records, the last offset is ",
        "committed for the group archive",
        "\n4,000 records, the last offset is ",
    ):
        assert text in done.stdout, done.stdout
    assert re.findall(r"^lag +(\S+)", done.stdout, re.MULTILINE) == ["2,000", "0"], done.stdout
    assert sorted(path.name for path in (folder / "lake").iterdir()) == [
        "_archive.json",
        "_checkpoint",
        "_spark_metadata",
        "topic=page-views",
    ]
