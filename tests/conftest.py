"""Hooks and fixtures for all tests: coroutine tests, unique names, and real servers."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import uuid
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import Phase, settings

# A busy computer would exceed any deadline.
settings.register_profile("suite", deadline=None, max_examples=25 if "CI" in os.environ else 100)
settings.load_profile("suite")
# Each trial of a mutant gets the same examples, and need not reduce the one that fails (docs/simulation.rst).
settings.register_profile(
    "mutants", settings.get_profile("suite"), phases=[Phase.explicit, Phase.generate], derandomize=True
)

# A failed ``assert`` shows its values only in modules of tests, and in modules that are registered before their import.
pytest.register_assert_rewrite("tests.helpers", "tests.proxies", "tests.integration")

from tests.failures.__main__ import ELSEWHERE
from tests.helpers.group_backends import (  # noqa: F401 -- fixtures
    backend,
    every_backend,
    release_backend,
    store_backend,
    zookeeper_backend,
)
from tests.helpers.running_time import RunningTimeLoop
from tests.helpers.servers import (  # noqa: F401 -- fixtures
    COORDINATING_KAFKAS,
    EARLY_KAFKAS,
    LATE_KAFKAS,
    ZOOKEEPERS,
    cluster,
    cluster_39,
    coordinating_cluster,
    coordinating_version,
    fresh_cluster,
    release_cluster,
    shared_clusters,
    start_cluster,
    start_zookeeper,
    zookeeper_version,
)

#: Releases of ZooKeeper and Kafka with fewer than 150 tests on a shared cluster each.
RARE_RELEASES = ("0.8.0", "0.8.1.1", "3.4.6", "3.9.1", "4.1.0")
_RELEASE = re.compile("|".join(map(re.escape, {*ZOOKEEPERS, *EARLY_KAFKAS, *COORDINATING_KAFKAS, *LATE_KAFKAS})))

TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """
    Run a coroutine test on its own event loop.

    The loop of a unit test keeps running time. If the computer stands still, no timeout of the test ends early.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    is_unit = pyfuncitem.get_closest_marker("unit") is not None
    with asyncio.Runner(loop_factory=RunningTimeLoop if is_unit else None) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Group tests that share the servers of their module, so that ``--dist=loadgroup`` runs them in one process.

    Group the tests on shared clusters of a release that few tests use, too: only one process starts such a cluster.
    Group the unit tests of a module: what pytest-xdist does for one test takes longer than most of them, and grows with
    the number of groups.

    Mark the tests that docs/failures*.rst names, so that ``-m failures`` selects them in all folders.
    """
    if os.environ.get("CI"):
        _leave_out(config, items)
    for item in items:
        if _is_on_the_page_of_failures(item):
            item.add_marker(pytest.mark.failures)
        shared = getattr(item, "_fixtureinfo", None)
        definitions = shared.name2fixturedefs.values() if shared is not None else ()
        shares = any(definition.scope == "module" for found in definitions for definition in found)
        is_unit = item.get_closest_marker("unit") is not None
        group = item.nodeid.partition("::")[0] if shares or is_unit else _rare_release(item)
        if group and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
    if config.getoption("loadgroup", default=False):
        _spread(items)


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Leave out slow tests, and all but one release of the servers for each test: continuous integration has 20 minutes.

    The names of the tests determine the releases. The choice is the same each time, and each release has its share.
    """
    variants = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            variants[_RELEASE.sub("", item.nodeid)].append(item)
    played = {found[zlib.crc32(name.encode()) % len(found)] for name, found in variants.items()}
    config.hook.pytest_deselected(items=[item for item in items if item not in played])
    items[:] = [item for item in items if item in played]


def _spread(items: list[pytest.Item]) -> None:
    """
    Order the tests so that each folder of ``tests`` has its share in every part of the run.

    Tests with servers mostly wait, and tests without servers keep a processor busy. If one kind ran after the other,
    processors would first be idle, and then be what all processes wait for. Large groups of tests with servers come
    first, and then tests with a longer time limit, so that none of them begins when the others have ended.
    """
    folders = [_place_of(item.path).partition("/")[0] for item in items]
    sizes, before = Counter(folders), Counter[str]()
    groups = Counter(map(_group_on_servers, items))
    places = {}
    for item, folder in zip(items, folders, strict=True):
        group = _group_on_servers(item)
        limit = item.get_closest_marker("timeout")
        is_long = limit is not None and limit.args[0] > float(item.config.getini("timeout"))
        places[item] = (-groups[group] if group else 0, not is_long, before[folder] / sizes[folder])
        before[folder] += 1
    items.sort(key=places.__getitem__)


def _group_on_servers(item: pytest.Item) -> str | None:
    group = item.get_closest_marker("xdist_group")
    return None if group is None or item.get_closest_marker("unit") is not None else str(group.args[0])


def _rare_release(item: pytest.Item) -> str | None:
    """
    Return the release of the shared cluster on which a test runs, if few tests run on that release.

    The parameters of the test name the release. A test that names such a release in its code has the mark itself.
    """
    if "shared_clusters" not in getattr(item, "fixturenames", ()) or not hasattr(item, "callspec"):
        return None
    named = re.findall(r"[\d.]+", item.callspec.id)
    return next((release for release in RARE_RELEASES if release in named), None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """
    Collect no garbage while tests are collected, and keep these and their modules out of later garbage collections,
    which would take 50 ms each. There is so little garbage by then that a search for it would only take time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _is_on_the_page_of_failures(item: pytest.Item) -> bool:
    name = getattr(item, "originalname", item.name).removeprefix("test_")
    return name in ELSEWHERE.get(_place_of(item.path), ())


@cache
def _place_of(module: Path) -> str:
    """Return the path of a module of tests below ``tests``. Each of its tests asks for it."""
    return module.relative_to(TESTS).as_posix()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that creates unique names of topics and groups: ``unique("topic")``."""
    test = re.sub(r"[^a-zA-Z0-9_-]+", "-", request.node.name).strip("-")[:60]
    return lambda kind: f"{kind}-{test}-{uuid.uuid4().hex[:6]}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of seeds that the simulator has run in all test processes."""
    reports = terminalreporter.getreports("passed")
    properties = [each for report in reports for each in report.user_properties]
    seeds = sum(value for name, value in properties if name == "simulated_seeds")
    if seeds:
        base = next(value for name, value in properties if name == "simulated_from")
        terminalreporter.write_line(
            f"simulator: {seeds} seeds played, none failed in these; the same again: SIM_SEED_BASE={base}"
        )
