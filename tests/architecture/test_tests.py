"""The structure of the tests: their folders, imports, sizes and markers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE

pytestmark = pytest.mark.unit

TESTS = Path(__file__).parents[1]
MODULES = sorted(TESTS.rglob("*.py"))
MOST_LINES = 450
#: Folders that contain a program besides its tests.
PROGRAMS = ("architecture", "chaos", "failures", "mutants", "sim")


def imported(path: Path) -> list[str]:
    """Return the dotted names of the test modules and helpers that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    froms = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    plain = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    return [name for name in [*froms, *plain] if name.split(".")[0] == "tests" or name.startswith("test_")]


def test_no_module_imports_a_test_module() -> None:
    """
    No module imports a test module. Code that several tests share is in ``tests/helpers``, or beside the program that
    they test.
    """
    found = {(path.name, name) for path in MODULES for name in imported(path)}
    assert {(path, name) for path, name in found if name.rpartition(".")[2].startswith("test_")} == set()


def test_helpers_do_not_import_the_tests_that_use_them() -> None:
    """Helpers import only other helpers, and the programs among the tests."""
    helpers = sorted((TESTS / "helpers").rglob("*.py"))
    allowed = {f"tests.{name}" for name in ("helpers", *PROGRAMS)}
    found = {name for path in helpers for name in imported(path) if ".".join(name.split(".")[:2]) not in allowed}
    assert found == set()


def test_unit_tests_mirror_the_package() -> None:
    """The unit tests mirror the package: those of ``kiel_groups/a/b`` are in ``tests/unit/a/b``."""
    unit = TESTS / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")}
    assert [folder.as_posix() for folder in folders if not (PACKAGE / folder).is_dir()] == []


def test_files_stay_small() -> None:
    """A file of tests has a limited number of lines. A longer file is split by subject."""
    sizes = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: lines for name, lines in sizes.items() if lines > MOST_LINES} == {}


def test_every_marker_is_used() -> None:
    """Every marker that ``pyproject.toml`` declares is used by a test."""
    settings = (TESTS.parent / "pyproject.toml").read_text(encoding="utf-8")
    declared = set(re.findall(r'^    "(\w+): ', settings[settings.index("markers = [") :], re.MULTILINE))
    used = {name for path in MODULES for name in re.findall(r"mark\.(\w+)", path.read_text(encoding="utf-8"))}
    assert declared
    assert declared <= used
