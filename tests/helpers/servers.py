"""
Fixtures for real servers.

Shared servers are started once in each session (with ``pytest -n``, in each worker). Tests on shared servers use unique
names of topics and groups (``unique``). A test that stops, kills or freezes servers starts its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kiel_groups.embedded import Cluster, ZooKeeperServer
from kiel_groups.embedded.releases import DEFAULT_KAFKA, kafka_release

ZOOKEEPERS = ("3.9.5", "3.4.6")
#: The releases for groups that are coordinated through ZooKeeper.
EARLY_KAFKAS = ("0.8.0", "0.8.1.1", "0.8.2.2", "0.9.0.1")
#: The releases whose brokers coordinate groups.
COORDINATING_KAFKAS = ("0.9.0.1", "0.10.2.2", "1.1.1", "2.8.2", "3.9.1")
#: Releases that no longer know the requests of 0.8. They are targets of mirrors.
LATE_KAFKAS = ("4.1.0",)
#: Those that coordinate groups, and that run unless KAFKA_RELEASES names others: a list with commas, or "all".
_PLAYED = "0.9.0.1,3.9.1"
#: The longest session timeout that shared servers grant, because the computer may pause for some seconds. A lease lasts
#: half of this time. If its session expires, a single broker of 0.8 finds its own old registration, and leads no
#: partition for a while.
LASTING_MS = 30_000
PATIENT = {"zookeeper.session.timeout.ms": LASTING_MS}
#: Fewer heartbeats, too: while no test uses the broker, it does little else.
PATIENT_CONTROLLER = {"broker.session.timeout.ms": 10_000, "broker.heartbeat.interval.ms": 2_000}


def plays_all_variants() -> bool:
    """Return whether KAFKA_RELEASES is set: tests then play their slower variants, too."""
    return "KAFKA_RELEASES" in os.environ


def played_kafkas(releases: tuple[str, ...] = COORDINATING_KAFKAS) -> list[str]:
    """Return those of the releases that the environment variable KAFKA_RELEASES selects."""
    asked = os.environ.get("KAFKA_RELEASES", _PLAYED)
    return [version for version in releases if asked == "all" or version in asked.split(",")]


@pytest.fixture(scope="session")
def shared_clusters() -> Iterator[Callable[..., Cluster]]:
    """
    Provide a function that returns a shared cluster of one broker, and starts it at its first use.

    Its arguments are the versions of ZooKeeper, or None in KRaft mode, and, optionally, of Kafka:
    ``shared_clusters("3.9.5", "0.8.1.1")``.
    """
    running: dict[tuple[str | None, str], Cluster] = {}
    with ExitStack() as stack:

        def cluster_on(zookeeper: str | None, kafka: str = DEFAULT_KAFKA) -> Cluster:
            versions = (zookeeper, kafka)
            if versions not in running:
                settings: dict[str, Any] = {"broker_overrides": PATIENT_CONTROLLER}
                if zookeeper is not None:
                    settings = {"broker_overrides": PATIENT, "max_session_timeout_ms": LASTING_MS}
                running[versions] = stack.enter_context(Cluster(zookeeper=zookeeper, kafka=kafka, **settings))
            return running[versions]

        yield cluster_on


@pytest.fixture(params=ZOOKEEPERS, ids=lambda version: f"zk{version}")
def cluster(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> Cluster:
    """Return a shared cluster. The test runs once for each version of ZooKeeper."""
    return shared_clusters(request.param)


@pytest.fixture
def cluster_39(shared_clusters: Callable[..., Cluster]) -> Cluster:
    """Return the shared cluster on ZooKeeper 3.9.5, for tests that do not depend on ZooKeeper's version."""
    return shared_clusters("3.9.5")


@pytest.fixture(scope="module")
def fresh_cluster() -> Iterator[Cluster]:
    """Start a cluster for a module whose tests read all groups again and again: a shared cluster has hundreds."""
    with Cluster(zookeeper="3.9.5", broker_overrides=PATIENT, max_session_timeout_ms=LASTING_MS) as cluster:
        yield cluster


@pytest.fixture(params=EARLY_KAFKAS, ids=lambda version: f"kafka{version}")
def release_cluster(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> Cluster:
    """Return a shared cluster on ZooKeeper 3.9.5. The test runs once for each release of Kafka up to 0.9."""
    return shared_clusters("3.9.5", request.param)


@pytest.fixture(params=played_kafkas(), ids=lambda version: f"kafka{version}")
def coordinating_version(request: pytest.FixtureRequest) -> str:
    """Run the test once for each played release whose brokers coordinate groups, for use with ``start_cluster``."""
    return str(request.param)


@pytest.fixture
def coordinating_cluster(coordinating_version: str, shared_clusters: Callable[..., Cluster]) -> Cluster:
    """Return a shared cluster. The test runs once for each played release whose brokers coordinate groups."""
    uses_zookeeper = kafka_release(coordinating_version).uses_zookeeper
    return shared_clusters("3.9.5" if uses_zookeeper else None, coordinating_version)


@pytest.fixture(params=ZOOKEEPERS, ids=lambda version: f"zk{version}")
def zookeeper_version(request: pytest.FixtureRequest) -> str:
    """Run the test once for each version of ZooKeeper, for use with ``start_cluster``."""
    return str(request.param)


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., Cluster]]:
    """Provide a function that starts a cluster for this test only: ``start_cluster(brokers=2, …)``."""
    with ExitStack() as stack:
        yield lambda *args, kind=Cluster, **kwargs: stack.enter_context(kind(*args, **kwargs))


@pytest.fixture
def start_zookeeper() -> Iterator[Callable[..., ZooKeeperServer]]:
    """Provide a function that starts a ZooKeeper for this test only: ``start_zookeeper(tick_time_ms=200)``."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(ZooKeeperServer(*args, **kwargs))
