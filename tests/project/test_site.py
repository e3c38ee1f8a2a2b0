"""The documentation site is built without a warning."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.commands import REPOSITORY

pytestmark = pytest.mark.unit


@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("furo") is None, reason="Sphinx is not installed: pip install '.[docs]'")
def test_the_site_has_no_warnings(tmp_path: Path) -> None:
    """
    All pages are read, and their links are resolved. ``scripts/docs`` also writes them, which takes twice as long.
    """
    words = ["--fail-on-warning", "--keep-going", "--nitpicky", "--quiet", "--conf-dir", "docs", "--builder", "dummy"]
    command = [sys.executable, "-m", "sphinx", *words, "--doctree-dir", str(tmp_path / "trees"), ".", str(tmp_path)]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
