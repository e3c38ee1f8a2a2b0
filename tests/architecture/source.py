"""Read the package's modules, their layers and their imports from their source, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import kiel_groups
from tests.architecture.layers import LAYERS

__all__ = [
    "PACKAGE",
    "file_of",
    "imported_modules",
    "imports",
    "layer_of",
    "libraries",
    "lies_in",
    "modules",
    "name_of",
    "packages",
    "tree",
]

PACKAGE = Path(kiel_groups.__file__).parent


@cache
def modules() -> tuple[Path, ...]:
    """Return the paths of all modules, sorted. Leave out an ``__init__`` that has only a docstring."""
    found = sorted(PACKAGE.rglob("*.py"))
    return tuple(path for path in found if path.name != "__init__.py" or len(tree(path).body) > 1)


@cache
def packages() -> dict[str, list[str]]:
    """Return the names of the modules directly in each package, by the package's path below ``kiel_groups``."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != "__init__.py":
            found.setdefault(str(path.parent.relative_to(PACKAGE)), []).append(path.stem)
    return found


def name_of(module: Path) -> str:
    """
    Return a module's path below ``kiel_groups``, such as ``group/planner``. For an ``__init__``, return its
    package's path.
    """
    return str(module.relative_to(PACKAGE).with_suffix("")).removesuffix("/__init__")


def layer_of(name: str) -> str:
    """Return the layer of a module or package: the longest entry of ``LAYERS`` that contains it, or ""."""
    parts = name.split("/")
    prefixes = ("/".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in LAYERS), "")


def lies_in(name: str, layer: str) -> bool:
    """Return whether ``name`` is the module or package ``layer``, or is inside it."""
    return f"{name}/".startswith(f"{layer}/")


@cache
def tree(module: Path) -> ast.Module:
    """Return the syntax tree of a module of the package."""
    return _parsed(module)


def _parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


@cache
def imports(module: Path) -> tuple[str, ...]:
    """Return all imported modules, including imports within functions and under ``TYPE_CHECKING``."""
    # Only the trees of the package are kept: those of all tests would take 300 MB.
    return tuple(_imports(module, (tree if module.is_relative_to(PACKAGE) else _parsed)(module)))


def _imports(module: Path, code: ast.Module) -> Iterator[str]:
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports are not used here"
            assert node.module is not None
            for alias in node.names:
                # `from kiel_groups.group.leader import planner` names a module, too.
                whole = f"{node.module}.{alias.name}"
                yield whole if file_of(whole) is not None else node.module


@cache
def imported_modules(module: Path) -> frozenset[str]:
    """Return the modules and packages of ``kiel_groups`` that a module imports, named as by ``name_of``."""
    own = (name for name in imports(module) if name.startswith("kiel_groups."))
    return frozenset(name.removeprefix("kiel_groups.").replace(".", "/") for name in own)


@cache
def libraries(module: Path) -> frozenset[str]:
    """Return the top-level names of a module's imports from outside ``kiel_groups``."""
    return frozenset(name.partition(".")[0] for name in imports(module)) - {"kiel_groups"}


@cache
def file_of(dotted: str) -> Path | None:
    """Return the file of a module or package below ``kiel_groups``; None for any other name."""
    if not dotted.startswith("kiel_groups."):
        return None
    path = PACKAGE / dotted.removeprefix("kiel_groups.").replace(".", "/")
    candidates = (path.with_suffix(".py"), path.with_suffix(".pyi"), path / "__init__.py")
    return next((each for each in candidates if each.is_file()), None)
