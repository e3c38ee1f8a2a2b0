"""The script ``scripts/_setup``, with a fake Python that records its calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).parents[2]
SOURCES = ("setup.py", "pyproject.toml")

_PYTHON = """\
#!/bin/bash
case "$*" in
    --version) echo "Python 3.11.0" ;;
    "-m venv --clear "*) echo "$*" >>"$CALLS"; rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
    *"pip install"*) echo "$*" >>"$CALLS"; printf '%s\\n' "$PIP_SAYS"; exit "$PIP_STATUS" ;;
    *sysconfig*) echo "$INCLUDE" ;;
esac
"""


class Clone:
    """The files of a fresh clone that ``_setup`` reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.calls.touch()
        for name in SOURCES:
            shutil.copy(REPOSITORY / name, folder)
        for sources in ("kiel_groups/wire", "kiel_groups/clients/delivery", "kiel_groups/clients/produce"):
            # Other processes write files there, and rename them.
            shutil.copytree(REPOSITORY / sources, folder / sources, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "scripts").mkdir()
        shutil.copy(REPOSITORY / "scripts" / "_setup", folder / "scripts")
        (folder / "include").mkdir()
        (folder / "include" / "Python.h").touch()
        python = folder / "python"
        python.write_text(_PYTHON)
        python.chmod(0o755)

    def set_up(self, setup_for: str, says: str = "", status: int = 0) -> tuple[str, list[str]]:
        """Run ``_setup``, and return its output and its steps."""
        self.calls.write_text("")
        env = os.environ | {
            "PYTHON": str(self.folder / "python"),
            "CALLS": str(self.calls),
            "INCLUDE": str(self.folder / "include"),
            "PIP_SAYS": says,
            "PIP_STATUS": str(status),
        }
        script = f"set -euo pipefail; setup_for={setup_for}; source scripts/_setup; echo ready >&2"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode == 0) == (status == 0), done.stderr
        return done.stderr, [_step(line) for line in self.calls.read_text().splitlines()]


def _step(call: str) -> str:
    if "-m venv" in call:
        return "environment"
    return next((f"package and {what}" for what in ("dev", "docs") if call.endswith(f"[{what}]")), "package")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_the_demo_does_not_install_the_requirements_of_the_tests(clone: Clone) -> None:
    """
    The demo does not install the requirements of the tests: Spark alone has 400 MB. A second run installs nothing.
    """
    assert clone.set_up("use")[1] == ["environment", "package"]
    assert clone.set_up("use")[1] == []


def test_the_requirements_of_the_site_and_of_the_tests_are_added(clone: Clone) -> None:
    """
    The requirements of the site, and later those of the tests, are added to the environment of the demo. What needs
    less uses the environment as it is.
    """
    clone.set_up("use")
    assert clone.set_up("docs")[1] == ["package and docs"]
    assert clone.set_up("use")[1] == []
    assert clone.set_up("docs")[1] == []
    assert clone.set_up("tests")[1] == ["package and dev"]
    assert clone.set_up("use")[1] == []
    assert clone.set_up("docs")[1] == []
    assert clone.set_up("tests")[1] == []


def test_changed_requirements_make_a_new_environment(clone: Clone) -> None:
    """Changed requirements make a new environment, with the requirements of the tests if the former one had them."""
    clone.set_up("tests")
    (clone.folder / "setup.py").write_text("# other requirements")
    assert clone.set_up("use")[1] == ["environment", "package and dev"]


def test_the_packages_are_shown_while_they_are_installed(clone: Clone) -> None:
    """Each package is shown in one line while it is installed. A file has the complete output of pip."""
    says = "Collecting kazoo>=2.11 (from kiel-groups==0.1.0)\n  Using cached kazoo.whl\nCollecting six>=1.16"
    shown, _ = clone.set_up("use", says)
    assert "\n  1: kazoo>=2.11\n  2: six>=1.16\n" in shown
    assert (clone.folder / ".venv" / "pip.log").read_text() == says + "\n"


def test_a_failure_of_pip_is_shown_and_the_next_run_retries(clone: Clone) -> None:
    """
    A failure of pip is shown with its reason and the name of the file with pip's complete output. The next run retries.
    """
    says = "Collecting kazoo>=2.11\nERROR: Could not find a version that satisfies the requirement kazoo>=2.11"
    shown, _ = clone.set_up("use", says, status=1)
    assert "ERROR: Could not find a version that satisfies the requirement kazoo>=2.11" in shown
    assert "error: pip could not install the package; all that it said is in " in shown
    assert "ready" not in shown
    assert clone.set_up("use")[1] == ["environment", "package"]
