"""The package's structure: imports between layers, pure layers, names of modules, and size limits."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.layers import APART, IMPURE, INDEPENDENT, LAYERS, ONLY_IN, PURE_LAYERS
from tests.architecture.source import (
    PACKAGE,
    file_of,
    imported_modules,
    layer_of,
    libraries,
    lies_in,
    modules,
    name_of,
    packages,
    tree,
)

# One process reads the package, for all of these modules.
pytestmark = [pytest.mark.unit, pytest.mark.xdist_group("the package's sources")]

LONGEST_FILE = 700
LONGEST_FUNCTION = 50

#: The package itself and its programs belong to no layer: they import the public names and the command line.
TOP = {"__init__", "__main__", "embedded/__main__"}


def test_every_module_has_its_place_in_the_order() -> None:
    """Every module belongs to a layer in ``LAYERS``, to which a new module or package must be added."""
    assert {name_of(module) for module in modules() if not layer_of(name_of(module))} <= TOP


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_itself_and_lower_layers(layer: str) -> None:
    """A layer imports only itself and lower layers, also within functions and under ``TYPE_CHECKING``."""
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    wrong = {
        f"{name_of(module)} imports {name}"
        for module in modules()
        if layer_of(name_of(module)) == layer
        for name in imported_modules(module)
        if layer_of(name) not in allowed
    }
    assert not wrong


def test_the_package_imports_no_name_from_its_root() -> None:
    """A name of the root hides which layer is imported. Only the command line has to ask for the version there."""
    named = {
        f"{name_of(module)} imports {alias.name}"
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom) and node.module == "kiel_groups"
        for alias in node.names
        if file_of(f"kiel_groups.{alias.name}") is None
    }
    whole = {
        f"{name_of(module)} imports kiel_groups"
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Import) and any(alias.name == "kiel_groups" for alias in node.names)
    }
    assert named | whole == {"cli/app imports __version__"}


@pytest.mark.parametrize(("one", "other"), APART)
def test_layers_that_are_kept_apart_do_not_import_each_other(one: str, other: str) -> None:
    """
    The layers of each pair in ``APART`` do not import each other. For example, the group's decisions do not depend on
    Kafka's protocol.
    """
    names = [(name_of(module), imported_modules(module)) for module in modules()]
    pairs = [(name, used) for name, imported in names for used in imported]
    assert not {
        f"{name} imports {used}"
        for name, used in pairs
        if (lies_in(name, one) and lies_in(used, other)) or (lies_in(name, other) and lies_in(used, one))
    }


@pytest.mark.parametrize(("one", "other"), INDEPENDENT)
def test_independent_modules_do_not_reach_each_other(one: str, other: str) -> None:
    """
    Neither module of a pair in ``INDEPENDENT`` imports the other, directly or through others. For example, the claims
    of a member are decided without the state of the leader.
    """
    used = {name_of(module): imported_modules(module) for module in modules()}
    assert {one, other} <= used.keys()
    assert other not in _reached(used, one)
    assert one not in _reached(used, other)


def _reached(used: Mapping[str, Collection[str]], module: str) -> set[str]:
    """Return a module and all modules that it imports, directly or through others."""
    reached, new = {module}, [module]
    while new:
        found = set(used.get(new.pop(), ())) - reached
        reached |= found
        new += found
    return reached


def test_imports_have_no_cycles() -> None:
    """Modules do not import each other, neither directly nor through others."""
    try:
        TopologicalSorter({name_of(module): imported_modules(module) for module in modules()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("layer", PURE_LAYERS)
def test_a_pure_layer_has_neither_clock_nor_randomness_nor_connection(layer: str) -> None:
    """
    A pure layer imports no clock, randomness or connection, so the same arguments always lead to the same decision.
    """
    assert not {
        f"{name_of(module)} imports {name}"
        for module in modules()
        if lies_in(name_of(module), layer)
        for name in libraries(module) & IMPURE
    }


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_in_its_layers_only(library: str) -> None:
    """
    A library is imported only in its layers, and in each of them. Few layers use a library, so that it can be replaced
    there.
    """
    users = {name_of(module) for module in modules() if library in libraries(module)}
    assert not {user for user in users if not any(lies_in(user, home) for home in ONLY_IN[library])}
    assert all(any(lies_in(user, home) for user in users) for home in ONLY_IN[library]), "a home without a user"


#: Modules and functions for clocks, randomness, names and threads; locks and constants are allowed.
OF_THE_RUNTIME = {
    *("time", "random", "uuid", "secrets", "concurrent", "datetime"),
    *("os.getpid", "socket.gethostname", "socket.getfqdn", "platform.node", "asyncio.to_thread"),
    *("threading.Thread", "threading.Timer", "threading.Event", "threading.get_ident"),
}
#: What a simulation replaces: the runtime itself, kazoo's client, and the thread of heartbeats to a coordinator with
#: its connection.
THE_RUNTIME = {
    *("zookeeper/runtime", "zookeeper/kazoo_client"),
    *("members/brokers/coordinator", "members/brokers/transport"),
}


#: The layers that run on simulated time, too.
SIMULATED = (
    "members",
    "zookeeper",
    "clients/delivery",
    "workers/membership",
    "workers/session",
    "workers/runners",
    "workers/execution",
    "spark/member",
)
#: The modules that create a runtime: the settings of a consumer, a query's member, a worker, the allocator command.
RUNTIME_ROOTS = {
    "clients/delivery/record_reader",
    "members/programs/generic_member",
    "spark/member",
    "workers/execution/worker",
    "cli/commands/serve",
}


def test_members_have_clocks_and_threads_from_their_runtime() -> None:
    """
    The parts of members and leaders get clocks, randomness, names and threads only from the runtime that is passed to
    them, because they also run on simulated time.
    """
    simulated = [
        module
        for module in modules()
        if any(lies_in(name_of(module), layer) for layer in SIMULATED) and name_of(module) not in THE_RUNTIME
    ]
    assert {layer for layer in SIMULATED if not any(lies_in(name_of(module), layer) for module in simulated)} == set()
    assert not {
        f"{name_of(module)} uses {name}"
        for module in simulated
        for name in (libraries(module) | _names_used(module)) & OF_THE_RUNTIME
    }


def _names_used(module: Path) -> set[str]:
    """Return the dotted names of attributes, such as ``os.getpid``, and of what is imported from modules."""
    nodes = list(ast.walk(tree(module)))
    named = {
        f"{node.value.id}.{node.attr}"
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    imported = {
        f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return named | imported


def test_a_runtime_is_created_by_applications_only() -> None:
    """Only the objects that an application creates create a runtime; all other parts get theirs from them."""
    assert {name_of(module) for module in modules() if _creates_a_runtime(module)} == RUNTIME_ROOTS


def _creates_a_runtime(module: Path) -> bool:
    """Return whether a module calls ``Runtime``, or passes the class, as to ``default_factory``."""
    calls = [node for node in ast.walk(tree(module)) if isinstance(node, ast.Call)]
    used = [value for call in calls for value in (call.func, *call.args, *(word.value for word in call.keywords))]
    return any(isinstance(value, ast.Name) and value.id == "Runtime" for value in used)


def test_a_package_describes_itself() -> None:
    """The docstring of a package has at least three lines: its purpose, its callers, and its limits."""
    docstrings = {package: ast.get_docstring(tree(_init(package))) or "" for package in packages() if package != "."}
    assert not {
        package for package, text in docstrings.items() if len([line for line in text.splitlines() if line.strip()]) < 3
    }


@pytest.mark.parametrize("package", sorted(packages()))
def test_a_lazy_name_is_no_module_of_its_package(package: str) -> None:
    """A module becomes an attribute of its package when it is imported, and would hide a name that is loaded later."""
    lazy = {
        node.value
        for statement in tree(_init(package)).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "_HOMES"
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Constant)
    }
    assert not lazy & set(packages()[package])


def test_the_name_of_a_time_has_one_definition() -> None:
    """A public constant in seconds or milliseconds has a name of its own. So a name never means two times."""
    counts = Counter(name for module in modules() for name in _defined(module) if re.fullmatch(r"[A-Z]\w*_M?S", name))
    assert not {name for name, count in counts.items() if count > 1}


def _defined(module: Path) -> Iterator[str]:
    """Yield the names that a module assigns, but not those it imports."""
    for statement in tree(module).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        yield from (node.id for each in targets if each for node in ast.walk(each) if isinstance(node, ast.Name))


def test_wait_for_is_not_used() -> None:
    """
    The package does not use ``asyncio.wait_for``. In Python 3.11, it loses a cancellation that coincides with the
    result, unlike ``asyncio.timeout``.
    """
    assert not {name_of(module) for module in modules() if "asyncio.wait_for(" in module.read_text(encoding="utf-8")}


def test_files_and_functions_stay_small() -> None:
    """Files and functions stay below the limits. Larger ones are split."""
    sizes = {name_of(module): len(module.read_text(encoding="utf-8").splitlines()) for module in modules()}
    assert {name: lines for name, lines in sizes.items() if lines > LONGEST_FILE} == {}
    assert not {
        f"{node.name} in {name_of(module)}"
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _length(node) > LONGEST_FUNCTION
    }


#: A number before a plural, maybe with adjectives between them: ``%d records``, ``%d more values``.
A_COUNT = re.compile(r"%d (?:[a-z]+ ){0,2}[a-z]{3,}s\b")


def test_counts_in_log_lines_have_a_singular() -> None:
    """Log lines use ``wording.counted``, so that they do not print ``1 records``."""
    assert not [text for module in modules() for text in _log_texts(module) if A_COUNT.search(text)]


def _log_texts(module: Path) -> Iterator[str]:
    """Yield the texts in the arguments of log calls, and those of the variables that the arguments name."""
    variables: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                variables.setdefault(ast.unparse(target), []).append(node.value)
    calls = (node for node in ast.walk(tree(module)) if isinstance(node, ast.Call))
    # The format is the second argument of ``log.log``, and only texts of formats contain ``%d``.
    given = (argument for call in calls if _is_log(call.func) for argument in call.args)
    for argument in given:
        for value in (argument, *variables.get(ast.unparse(argument), ())):
            constants = (node.value for node in ast.walk(value) if isinstance(node, ast.Constant))
            yield from (text for text in constants if isinstance(text, str))


def _is_log(function: ast.expr) -> bool:
    """Whether this is a method of a logger: of a module's ``log``, or of another logger named after it."""
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id.endswith("log")
    )


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function's body, without signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def _init(package: str) -> Path:
    return PACKAGE / package / "__init__.py"
