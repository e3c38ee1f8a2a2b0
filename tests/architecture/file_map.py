"""Write the file map: each package with its purpose and import rules, and each module with its purpose."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.layers import LAYERS, ONLY_IN, PURE_LAYERS
from tests.architecture.source import PACKAGE, lies_in, packages, tree

__all__ = ["WIDTH", "file_map"]

WIDTH = 100

_LEGEND = """\
The packages of kiel_groups, the highest first: a package imports packages below it, and none above.
(pure): without clock, randomness or connection. (kazoo, ...): imports this library; others do not.
"""


def file_map() -> str:
    """Return the whole map, the content of ``docs/layers.txt``."""
    lines = [_LEGEND.rstrip("\n")]
    for package in sorted(packages(), key=_height, reverse=True):
        lines += ["", *_package_lines(package)]
    return "\n".join(lines) + "\n"


def _package_lines(package: str) -> Iterator[str]:
    yield "the package itself" if package == "." else f"{package}{_tags(package)}"
    yield from _wrapped(_purpose(PACKAGE / package / "__init__.py"), "  ")
    for name in packages()[package]:
        yield from _wrapped(f"{name}: {_purpose(PACKAGE / package / f'{name}.py')}", "    ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def _purpose(path: Path) -> str:
    return (ast.get_docstring(tree(path)) or "").partition("\n")[0].replace("``", "")


def _height(package: str) -> int:
    """Return the place of a package's highest layer; modules at the top level are the lowest."""
    return max((at for at, layer in enumerate(LAYERS) if lies_in(layer, package)), default=-1)


def _tags(package: str) -> str:
    pure = ["pure"] if any(lies_in(package, layer) for layer in PURE_LAYERS) else []
    tags = pure + [library for library, homes in ONLY_IN.items() if any(lies_in(home, package) for home in homes)]
    return f" ({', '.join(tags)})" if tags else ""
