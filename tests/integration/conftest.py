"""
Real servers for tests.

Shared ones are started once a session (with ``pytest -n``, once a worker) and are left as they were found: tests use
topics and groups of their own names (``unique``). A test that stops, kills or freezes servers starts its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kiel_groups.embedded import Cluster, ZooKeeperServer

ZOOKEEPERS = ("3.9.5", "3.4.6")


@pytest.fixture(scope="session")
def shared_clusters() -> Iterator[Callable[[str], Cluster]]:
    """One cluster of one broker for each version of ZooKeeper, started when first asked for."""
    running: dict[str, Cluster] = {}
    with ExitStack() as stack:

        def cluster_on(version: str) -> Cluster:
            if version not in running:
                running[version] = stack.enter_context(Cluster(zookeeper=version))
            return running[version]

        yield cluster_on


@pytest.fixture(params=ZOOKEEPERS, ids=lambda version: f"zk{version}")
def cluster(request: pytest.FixtureRequest, shared_clusters: Callable[[str], Cluster]) -> Cluster:
    """A shared cluster; the test runs once for every version of ZooKeeper."""
    return shared_clusters(request.param)


@pytest.fixture
def cluster_39(shared_clusters: Callable[[str], Cluster]) -> Cluster:
    """The shared cluster on ZooKeeper 3.9.5, for tests to which ZooKeeper's version is nothing."""
    return shared_clusters("3.9.5")


@pytest.fixture(params=ZOOKEEPERS, ids=lambda version: f"zk{version}")
def zookeeper_version(request: pytest.FixtureRequest) -> str:
    """Run the test once for every version of ZooKeeper, for use with ``start_cluster``."""
    return str(request.param)


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., Cluster]]:
    """Start a cluster of this test's own, ``start_cluster(brokers=2, …)``, to maltreat; it ends with the test."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(Cluster(*args, **kwargs))


@pytest.fixture
def start_zookeeper() -> Iterator[Callable[..., ZooKeeperServer]]:
    """Start a ZooKeeper of the test's own, ``start_zookeeper(max_session_timeout_ms=2000)``; it ends with the test."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(ZooKeeperServer(*args, **kwargs))
