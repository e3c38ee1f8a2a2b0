"""
Real servers for tests, as fixtures.

Shared ones are started once a session (with ``pytest -n``, once a worker) and are left as they were found: tests use
topics and groups of their own names (``unique``). A test that stops, kills or freezes servers starts its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kiel_groups.embedded import Cluster, ZooKeeperServer
from kiel_groups.embedded.jars.kafka_releases import DEFAULT_KAFKA, KAFKAS

ZOOKEEPERS = ("3.9.5", "3.4.6")
#: A machine that stands still for some seconds is no fault to be tried: a lone broker of 0.8 whose session has expired
#: finds its own old registration, and leads nothing for a while.
PATIENT = {"zookeeper.session.timeout.ms": 10_000}


@pytest.fixture(scope="session")
def shared_clusters() -> Iterator[Callable[..., Cluster]]:
    """
    One cluster of one broker for each version of ZooKeeper, started when first asked for.

    ``shared_clusters("3.9.5", "0.8.1.1")`` is one of another Kafka.
    """
    running: dict[tuple[str, str], Cluster] = {}
    with ExitStack() as stack:

        def cluster_on(zookeeper: str, kafka: str = DEFAULT_KAFKA) -> Cluster:
            versions = (zookeeper, kafka)
            if versions not in running:
                cluster = Cluster(zookeeper=zookeeper, kafka=kafka, broker_overrides=PATIENT)
                running[versions] = stack.enter_context(cluster)
            return running[versions]

        yield cluster_on


@pytest.fixture(params=ZOOKEEPERS, ids=lambda version: f"zk{version}")
def cluster(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> Cluster:
    """A shared cluster; the test runs once for every version of ZooKeeper."""
    return shared_clusters(request.param)


@pytest.fixture
def cluster_39(shared_clusters: Callable[..., Cluster]) -> Cluster:
    """The shared cluster on ZooKeeper 3.9.5, for tests to which ZooKeeper's version is nothing."""
    return shared_clusters("3.9.5")


@pytest.fixture(params=KAFKAS, ids=lambda version: f"kafka{version}")
def release_cluster(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> Cluster:
    """A shared cluster on ZooKeeper 3.9.5; the test runs once for every release of Kafka."""
    return shared_clusters("3.9.5", request.param)


@pytest.fixture(params=KAFKAS, ids=lambda version: f"kafka{version}")
def kafka_version(request: pytest.FixtureRequest) -> str:
    """Run the test once for every release of Kafka, for use with ``start_cluster``."""
    return str(request.param)


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
