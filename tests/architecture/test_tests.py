"""The structure of the tests: their folders, imports, sizes and markers."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, file_of, imports, packages

pytestmark = pytest.mark.unit

TESTS = Path(__file__).parents[1]
UNIT = TESTS / "unit"
MODULES = sorted(TESTS.rglob("*.py"))
MOST_LINES = 700
#: Folders that contain a program besides its tests.
PROGRAMS = ("architecture", "chaos", "failures", "fuzz", "mutants", "sim")
#: Folders of what replaces servers and networks. They import nothing else of the tests.
REPLACEMENTS = ("fakes", "proxies")


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Return the dotted names of the test modules and helpers that a file imports."""
    return tuple(name for name in imports(path) if name.split(".")[0] == "tests" or name.startswith("test_"))


def folder_of(path: Path) -> str:
    """Return the folder of a unit test below ``tests/unit``, named as by ``packages``."""
    return str(path.parent.relative_to(UNIT))


@cache
def packages_used_by(path: Path) -> frozenset[str]:
    """Return the packages from which a test, or a helper that it imports, imports a module or a public name."""
    found = {package_of(name) for name in imports(path) if name.partition(".")[0] == "kiel_groups"}
    for name in imported(path):
        helper = TESTS.parent / (name.replace(".", "/") + ".py")
        if name.startswith("tests.helpers.") and helper.is_file():
            found |= packages_used_by(helper)
    return frozenset(found)


def package_of(dotted: str) -> str:
    """Return the package of a module, or the package itself, by its path below ``kiel_groups``."""
    file = file_of(dotted)
    return str(file.parent.relative_to(PACKAGE)) if file is not None else "."


def test_no_module_imports_a_test_module() -> None:
    """
    No module imports a test module. Code that several tests share is in ``tests/helpers``, or beside the program that
    they test.
    """
    found = {(path.name, name) for path in MODULES for name in imported(path)}
    assert {(path, name) for path, name in found if name.rpartition(".")[2].startswith("test_")} == set()


def test_helpers_do_not_import_the_tests_that_use_them() -> None:
    """Helpers import only other helpers, replacements of servers, and the programs among the tests."""
    helpers = sorted((TESTS / "helpers").rglob("*.py"))
    allowed = {f"tests.{name}" for name in ("helpers", *REPLACEMENTS, *PROGRAMS)}
    found = {name for path in helpers for name in imported(path) if ".".join(name.split(".")[:2]) not in allowed}
    assert found == set()


@pytest.mark.parametrize("folder", REPLACEMENTS)
def test_a_replacement_of_servers_imports_nothing_else_of_the_tests(folder: str) -> None:
    """What replaces servers or networks imports only itself and the package, and no client of the package."""
    files = [path for path in (TESTS / folder).rglob("*.py") if not path.stem.startswith("test_")]
    found = {(path.name, name) for path in files for name in imported(path)}
    assert {(path, name) for path, name in found if not f"{name}.".startswith(f"tests.{folder}.")} == set()
    used = {name for path in files for name in imports(path)}
    assert not {name for name in used if name.startswith(("kiel_groups.clients", "kiel_groups.sync"))}


def test_unit_tests_mirror_the_package() -> None:
    """The tests of the module ``kiel_groups/a/b.py`` are in ``tests/unit/a/test_b.py``."""
    folders: dict[str, set[str]] = {}
    for package, names in packages().items():
        for name in names:
            folders.setdefault(f"test_{name}", set()).add(package)
    assert not {
        f"{path.relative_to(UNIT)} belongs to {' or '.join(sorted(folders[path.stem]))}"
        for path in UNIT.rglob("test_*.py")
        if folder_of(path) not in folders.get(path.stem, {folder_of(path)})
    }


def test_a_unit_test_uses_the_package_of_its_folder() -> None:
    """A file that is not named after a module imports a module of its folder's package, maybe through a helper."""
    assert not {
        str(path.relative_to(UNIT))
        for path in UNIT.rglob("test_*.py")
        if path.stem.removeprefix("test_") not in packages().get(folder_of(path), ())
        and folder_of(path) not in packages_used_by(path)
    }


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


@pytest.mark.xdist_group("a-group")
def test_tests_of_a_group_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """Some releases of pytest and pytest-xdist ignore groups; each process then starts the servers of all groups."""
    if request.config.getoption("loadgroup", default=False):
        assert request.node.nodeid.endswith("@a-group")
