"""All pages can be parsed, and the paths, modules and classes in the pages for programmers exist."""

from __future__ import annotations

import ast
import io
import re
from functools import cache
from pathlib import Path

import pytest
from docutils.core import publish_doctree

from tests.diagrams import DIAGRAMS, drawn

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).parents[2]
DOCS, PACKAGE = REPOSITORY / "docs", REPOSITORY / "kiel_groups"
PAGES = sorted([*REPOSITORY.glob("*.rst"), *DOCS.glob("*.rst"), *(REPOSITORY / "zookeeper").glob("*.rst")])
EXAMPLES = sorted((REPOSITORY / "examples").rglob("README.rst"))
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
#: The pages that explain the code.
GUIDES = ("docs/architecture.rst", "CONTRIBUTING.rst", "docs/index.rst", "README.rst")


def literals(page: str) -> list[str]:
    """Return the texts between double backticks, the targets of links, and the lines of literal blocks."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^    (.*)$", text, re.MULTILINE)
    words = text.replace("\n", " ")
    return [*re.findall(r"``([^`]+)``", words), *re.findall(r"<([\w./-]+)>`__", words), *blocks]


def test_there_are_pages() -> None:
    """The patterns for pages find the main pages."""
    assert {DOCS / "index.rst", REPOSITORY / "README.rst", REPOSITORY / "CONTRIBUTING.rst"} <= set(PAGES)


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_a_page_parses(page: Path) -> None:
    """docutils parses each page without a problem, such as a missing included file."""
    complaints = io.StringIO()
    settings = {"report_level": 2, "halt_level": 5, "warning_stream": complaints}
    publish_doctree(page.read_text(encoding="utf-8"), source_path=str(page), settings_overrides=settings)
    assert complaints.getvalue() == ""


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES, *DECISIONS], ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_lines_of_a_page_are_short(page: Path) -> None:
    """The lines of a page have at most 120 characters, as in the code. Literal blocks may have longer ones."""
    lines = page.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line) > 120 and not line.startswith("    ")]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == DOCS], ids=lambda page: page.name)
def test_a_page_is_short(page: Path) -> None:
    """A page answers one question. A longer one is shortened, or divided by the questions of its readers."""
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 300


def test_the_index_has_every_page() -> None:
    """The index names every page, because readers find pages there."""
    named = set(literals("docs/index.rst"))
    assert {str(page.relative_to(REPOSITORY)) for page in PAGES} - named == {"docs/index.rst"}


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_as_it_is_drawn(name: str) -> None:
    """The file of a diagram is what ``python -m tests.diagrams`` draws, and a page shows it."""
    assert (DOCS / name).read_text(encoding="utf-8") == drawn(DIAGRAMS[name])
    assert any(f".. image:: {name}\n" in page.read_text(encoding="utf-8") for page in PAGES)


def test_the_index_of_decisions_has_each_of_them() -> None:
    """The index links to every record, and to no other."""
    index = DOCS / "decisions" / "README.md"
    linked = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", index.read_text(encoding="utf-8"))
    assert sorted(linked) == [record.name for record in DECISIONS if record != index]


@pytest.mark.parametrize("page", GUIDES)
def test_every_path_in_a_guide_exists(page: str) -> None:
    """
    Every path in a guide exists. A path is relative to the repository or to the package, or is only a file's name.
    Texts with a placeholder are skipped.
    """
    made = (".venv/", "build/")
    words = [word for literal in literals(page) for word in literal.split()[:1] if not word.startswith(made)]
    paths = {word for word in words if re.fullmatch(r"[\w.][\w./-]*", word) and ("/" in word or _is_file_name(word))}
    assert len(paths) >= 10
    assert not {path for path in paths if not _exists(path)}


@pytest.mark.parametrize("page", GUIDES)
def test_every_module_in_a_guide_exists(page: str) -> None:
    """Every module that a guide names in dotted form, as for ``python -m``, exists."""
    found = re.findall(r"\b(?:tests|kiel_groups|benchmarks)(?:\.(?!rst\b)\w+)+", " ".join(literals(page)))
    paths = {name: REPOSITORY / name.replace(".", "/") for name in found}
    assert not {name for name, path in paths.items() if not (path.is_dir() or path.with_suffix(".py").is_file())}


# One process finds the classes for all pages.
@pytest.mark.xdist_group("classes")
@pytest.mark.parametrize("page", GUIDES)
def test_every_class_and_method_in_a_guide_exists(page: str) -> None:
    """Every ``Class`` or ``Class.method`` that a guide names exists."""
    found = [re.fullmatch(r"([A-Z]\w*[a-z]\w*)(?:\.(\w+))?", literal) for literal in literals(page)]
    named = {(match[1], match[2] or "") for match in found if match}
    assert not {(name, member) for name, member in named if not member and not _classes(name)}
    assert not {(name, member) for name, member in named if member and member not in _members(name)}


def _is_file_name(word: str) -> bool:
    return word.endswith((".py", ".rst", ".txt"))


def _exists(path: str) -> bool:
    beside = any((folder / path).exists() for folder in (REPOSITORY, PACKAGE, DOCS))
    return beside or ("/" not in path and any(PACKAGE.rglob(path)))


@cache
def _places() -> dict[str, set[Path]]:
    """Return the files of the package and of the tests that define a class of a name. To parse all takes seconds."""
    found: dict[str, set[Path]] = {}
    for path in (*PACKAGE.rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")):
        for name in re.findall(r"^ *class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(name, set()).add(path)
    return found


@cache
def _classes(name: str) -> list[ast.ClassDef]:
    """Return the classes of that name."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in _places().get(name, ()))
    nodes = (node for tree in trees for node in ast.walk(tree))
    return [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]


def _defined(node: ast.ClassDef) -> set[str]:
    functions = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return functions | {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}


def _members(name: str) -> set[str]:
    """Return the members of all classes of that name, and of their base classes."""
    found = _classes(name)
    bases = {ast.unparse(base) for node in found for base in node.bases}
    return set().union(*map(_defined, found), *map(_members, bases))
