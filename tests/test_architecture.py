"""The house stands as it was drawn: who imports whom, what stays pure, how large a file and a function may grow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import kiel_groups

pytestmark = pytest.mark.unit

PACKAGE = Path(kiel_groups.__file__).parent

#: A layer imports only what stands above it.
LAYERS = (
    "lazily",
    "wording",
    "model",
    "errors",
    "exc",
    "config",
    "listeners",
    "metrics",
    "allocators",
    "group",
    "wire",
    "constants",
    "coordination",
    "clients",
    "sync",
    "spark",
    "ops",
    "service",
    "embedded",
    "testing",
    "demo",
    "cli",
)

#: Neither a clock nor chance nor a wire: these come in as arguments.
IMPURE = {"kazoo", "tornado", "asyncio", "threading", "socket", "time", "random"}
PURE_LAYERS = ("wording", "model", "errors", "config", "listeners", "allocators", "group", "wire", "ops")

#: Whoever else needs one of these goes through the layer that has it.
ONLY_IN = {
    # testing stands in for its connections.
    "kazoo": ("coordination", "testing"),
    "tornado": ("coordination", "clients", "service", "demo"),
    "aiokafka": ("wire/message_sets/encoder.py", "wire/message_sets/python_decoder.py"),
    "cramjam": ("wire",),
    "pyspark": ("spark",),
    "pyarrow": ("spark",),
    "click": ("cli",),
    "rich": ("ops", "embedded", "demo", "cli"),
}

LONGEST_FILE = 450
LONGEST_FUNCTION = 50


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def layer_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def imports(module: Path) -> Iterator[str]:
    """Every module named in an import statement, also those within functions."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports are not used here"
            assert node.module is not None
            # `from kiel_groups import config` names a module, too.
            yield from (
                f"{node.module}.{alias.name}" if node.module == "kiel_groups" else node.module for alias in node.names
            )


def outside(module: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(module)} - {"kiel_groups"}


def inside(module: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(module) if name.startswith("kiel_groups.")}


def test_every_room_has_its_place_in_the_order() -> None:
    """A new layer is placed before it is used; nobody slips in beside the order."""
    rooms = {layer_of(module) for module in modules()} - {"__init__", "__main__"}
    assert rooms <= set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_stands_above_it(layer: str) -> None:
    """No import points downwards, and wire and group do not know each other."""
    allowed = {*LAYERS[: LAYERS.index(layer) + 1], "__version__"}
    if layer == "wire":
        allowed.discard("group")
    wrong = {
        f"{module.relative_to(PACKAGE)} imports {name}"
        for module in modules()
        if layer_of(module) == layer
        for name in inside(module) - allowed
    }
    assert not wrong


@pytest.mark.parametrize("layer", PURE_LAYERS)
def test_a_pure_layer_has_neither_clock_nor_chance_nor_wire(layer: str) -> None:
    """What decides can be run again with the same outcome."""
    wrong = {
        f"{module.relative_to(PACKAGE)} imports {name}"
        for module in modules()
        if layer_of(module) == layer
        for name in outside(module) & IMPURE
    }
    assert not wrong


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_in_its_layers_only(library: str) -> None:
    """Each library has one home, so that it can be replaced there."""
    homes = tuple(f"{home}/" if not home.endswith(".py") else home for home in ONLY_IN[library])
    wrong = {
        str(module.relative_to(PACKAGE))
        for module in modules()
        if library in outside(module) and not str(module.relative_to(PACKAGE)).startswith(homes)
    }
    assert not wrong


#: Clocks, chance, names and threads; locks and constants are none of these.
OF_THE_MACHINE = {
    *("time", "random", "uuid", "secrets", "concurrent", "datetime"),
    *("os.getpid", "socket.gethostname", "socket.getfqdn", "platform.node", "asyncio.to_thread"),
    *("threading.Thread", "threading.Timer", "threading.Event", "threading.get_ident"),
}
#: The machine itself, and what operators call: it blocks, has no session of a member, and is not simulated.
BESIDE_THE_MACHINE = {"machine.py", "threads.py", "admin.py", "force_release.py"}


@pytest.mark.parametrize(
    "module",
    [module for module in modules() if layer_of(module) == "coordination" and module.name not in BESIDE_THE_MACHINE],
    ids=lambda module: module.name,
)
def test_coordination_has_clocks_and_threads_from_its_machine(module: Path) -> None:
    """What runs in a group runs on simulated time as well: nothing reaches past ``coordination.machine``."""
    named = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert not (outside(module) | named | imported) & OF_THE_MACHINE


@pytest.mark.parametrize("module", modules(), ids=lambda module: str(module.relative_to(PACKAGE)))
def test_nothing_waits_with_wait_for(module: Path) -> None:
    """In Python 3.11 it loses a cancellation that comes together with the answer; ``asyncio.timeout`` does not."""
    assert "asyncio.wait_for(" not in module.read_text(encoding="utf-8")


@pytest.mark.parametrize("module", modules(), ids=lambda module: str(module.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(module: Path) -> None:
    """What no longer fits on a few screens is split."""
    assert len(module.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    functions = (node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    assert not {function.name for function in functions if length(function) > LONGEST_FUNCTION}


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of its body without the docstring: neither that nor a long signature makes a function hard to follow."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0
