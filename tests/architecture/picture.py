"""Draw the layers as text: packages as boxes, the lowest at the bottom, each with its purpose and import rules."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.architecture.layers import APART, LAYERS, ONLY_IN, PURE_LAYERS
from tests.architecture.source import PACKAGE, lies_in, packages, tree

__all__ = ["WIDTH", "picture"]

WIDTH = 100

_LEGEND = (
    "The layers of kiel_groups, the lowest at the bottom. A layer imports itself and layers below it.",
    "Boxes and columns that are side by side do not import each other. In a list of modules that are",
    "layers themselves, the first one is the highest.",
    "",
    "(pure)         has no clock, no randomness and no connection",
    "(kazoo, …)     imports this library; layers without its name do not import it",
    "no import of   layers further below that it does not import either",
)


@dataclass(frozen=True)
class _Cell:
    """A cell of the picture: a package, or modules that are adjacent in ``LAYERS``."""

    names: tuple[str, ...]
    heading: str
    purpose: str = ""
    inner: tuple[_Cell, ...] = field(default=())


def picture() -> str:
    """Return the whole picture, the content of ``docs/layers.txt``."""
    lines = list(_LEGEND)
    for left, right in _columns(_blocks()):
        lines.append("")
        if right:
            half = (WIDTH - 2) // 2
            lines += _beside(_stack(left, half), _stack(right, half), half, "  ")
        else:
            lines += _stack(left, WIDTH)
    return "\n".join(lines) + "\n"


def _blocks() -> list[_Cell]:
    """Return the boxes from top to bottom: one for each package, and one for adjacent modules outside packages."""
    grouped: list[tuple[str, list[str]]] = []
    for layer in reversed(LAYERS):
        package = layer.partition("/")[0]
        name = package if (PACKAGE / package).is_dir() else ""
        if grouped and grouped[-1][0] == name:
            grouped[-1][1].append(layer)
        else:
            grouped.append((name, [layer]))
    return [_block(name, layers) for name, layers in grouped]


def _block(package: str, layers: Sequence[str]) -> _Cell:
    if not package:
        return _Cell(tuple(layers), ", ".join(map(_tagged, layers)))
    inner = tuple(_sub_cells(package, layers))
    if len(inner) == 1 and inner[0].names[0] not in LAYERS:
        inner = ()
    return _Cell((package,), _tagged(package), _purpose(package), inner)


def _sub_cells(package: str, layers: Sequence[str]) -> Iterator[_Cell]:
    """Return the cells of a package's sub-packages and modules; adjacent modules share a cell."""
    modules: list[str] = []
    for layer in layers:
        if (PACKAGE / layer).is_dir() and layer != package:
            yield from _of_modules(modules)
            modules = []
            yield _Cell((layer,), _tagged(layer, within=package), _purpose(layer))
        elif layer == package:
            modules += [name for name in _direct_modules(package) if name not in LAYERS]
        else:
            modules.append(layer)
    yield from _of_modules(modules)


def _of_modules(names: Sequence[str]) -> Iterator[_Cell]:
    if names:
        yield _Cell(tuple(names), ", ".join(name.rpartition("/")[2] for name in names))


def _direct_modules(package: str) -> list[str]:
    return [f"{package}/{name}" for name in packages().get(package, ()) if name != "__main__"]


def _columns(cells: Iterable[_Cell]) -> Iterator[tuple[list[_Cell], list[_Cell]]]:
    """
    Arrange cells in rows, from top to bottom.

    Cells whose pairs are all in ``APART`` share a row, in two columns.
    """
    left: list[_Cell] = []
    right: list[_Cell] = []
    for cell in cells:
        if left and all(_apart(cell, other) for other in left):
            right.append(cell)
        elif right and all(_apart(cell, other) for other in right):
            left.append(cell)
        else:
            if left:
                yield left, right
            left, right = [cell], []
    if left:
        yield left, right


def _apart(one: _Cell, other: _Cell) -> bool:
    pairs = [(a, b) for a in one.names for b in other.names]
    return all(
        any((lies_in(a, x) and lies_in(b, y)) or (lies_in(a, y) and lies_in(b, x)) for x, y in APART) for a, b in pairs
    )


def _tagged(layer: str, within: str = "") -> str:
    """Return a layer's name with its tags: ``pure``, and the libraries that it imports."""
    pure = any(lies_in(layer, each) for each in PURE_LAYERS)
    tags = ["pure"] if pure and not any(lies_in(within, each) for each in PURE_LAYERS) else []
    tags += [library for library, homes in ONLY_IN.items() if any(_is_home(home, layer) for home in homes)]
    name = layer.rpartition("/")[2] if within else layer
    return f"{name} ({', '.join(tags)})" if tags else name


def _is_home(home: str, layer: str) -> bool:
    """
    Return whether the cell of ``layer`` is the smallest that contains ``home``, a layer that may import a library.
    """
    around = [each for each in LAYERS if lies_in(home, each)]
    return (max(around, key=len) if around else home) == layer


def _purpose(package: str) -> str:
    docstring = ast.get_docstring(tree(PACKAGE / package / "__init__.py")) or ""
    return docstring.partition("\n")[0].replace("``", "")


def _limits(cell: _Cell) -> str:
    """Return the names of lower layers that ``APART`` forbids, except those that the picture shows beside the cell."""
    found = [pair for name in cell.names for pair in APART if name in pair]
    others = [one if two in cell.names else two for one, two in found]
    below = [other for other in others if _height(other) < min(map(_height, cell.names))]
    return ", ".join(other for other in below if not _is_beside(cell, other))


def _is_beside(cell: _Cell, other: str) -> bool:
    """Return whether the picture shows the cell and the layer side by side."""
    groups: list[Sequence[_Cell]] = [_blocks(), *(block.inner for block in _blocks())]
    for left, right in (pair for group in groups for pair in _columns(group)):
        for here, there in ((left, right), (right, left)):
            if any(each.names == cell.names for each in here) and any(other in each.names for each in there):
                return True
    return False


def _height(layer: str) -> int:
    return max(at for at, each in enumerate(LAYERS) if lies_in(each, layer))


def _stack(cells: Iterable[_Cell], width: int) -> list[str]:
    return [line for cell in cells for line in _box(cell, width)]


def _box(cell: _Cell, width: int) -> list[str]:
    room = width - 4
    lines = [*_wrapped(cell.heading, room), *_described(cell, room)]
    for left, right in _columns(cell.inner):
        lines.append("─" * room)
        if right:
            half = (room - 3) // 2
            lines += _beside(_inner_stack(left, half), _inner_stack(right, half), half, " │ ")
        else:
            lines += _inner_stack(left, room)
    framed = [f"│ {line.ljust(room)} │" for line in lines]
    return [f"┌{'─' * (width - 2)}┐", *framed, f"└{'─' * (width - 2)}┘"]


def _inner_stack(cells: Sequence[_Cell], width: int) -> list[str]:
    lines: list[str] = []
    for at, cell in enumerate(cells):
        lines += ["─" * width] if at else []
        lines += [*_wrapped(cell.heading, width), *_described(cell, width)]
    return lines


def _described(cell: _Cell, width: int) -> list[str]:
    limits = _limits(cell)
    texts = [cell.purpose, f"no import of {limits}" if limits else ""]
    return [f"  {line}" for text in texts for line in _wrapped(text, width - 2)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _beside(left: Sequence[str], right: Sequence[str], width: int, between: str) -> list[str]:
    height = max(len(left), len(right))
    rows = zip([*left, *[""] * (height - len(left))], [*right, *[""] * (height - len(right))], strict=True)
    return [f"{one.ljust(width)}{between}{two.ljust(width)}".rstrip() for one, two in rows]
