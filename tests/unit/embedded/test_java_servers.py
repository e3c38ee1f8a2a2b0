"""The configuration of each release: only settings that it knows, and addresses on the loopback interface."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from kiel_groups.embedded.java_servers import (
    CLIENTS,
    CONTROLLER,
    as_properties,
    broker_settings,
    kraft_settings,
)
from kiel_groups.embedded.kafka import cluster_id
from kiel_groups.embedded.releases import KAFKAS, kafka_release

pytestmark = pytest.mark.unit

DATA = PurePosixPath("/data")
DATA_FOLDER = Path("/data")


@pytest.mark.parametrize("version", [version for version, release in KAFKAS.items() if release.uses_zookeeper])
def test_a_broker_with_zookeeper_listens_as_its_release_says(version: str) -> None:
    """Up to 0.8.2 a broker has a host and a port, later a listener. Only 0.8.0 cannot delete topics."""
    release = kafka_release(version)
    settings = broker_settings(release, DATA, 9092, "127.0.0.1:2181/kafka", broker_id=3)
    assert settings["zookeeper.connect"] == "127.0.0.1:2181/kafka"
    assert settings["broker.id"] == 3
    if version.startswith("0.8"):
        assert (settings["host.name"], settings["port"]) == ("127.0.0.1", 9092)
    else:
        assert settings["listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert ("delete.topic.enable" in settings) == (version != "0.8.0")
    assert ("group.initial.rebalance.delay.ms" in settings) == (version in ("1.1.1", "2.8.2"))


def test_the_configuration_of_servers_in_kraft_mode() -> None:
    """A server has the roles of its listeners. All servers of a cluster have the same voters."""
    release = kafka_release("3.9.1")
    both = kraft_settings(release, DATA, 0, {CLIENTS: 9092, CONTROLLER: 9093}, {0: 9093})
    assert as_properties(both).splitlines()[:6] == [
        "node.id=0",
        "process.roles=broker,controller",
        "controller.quorum.voters=0@127.0.0.1:9093",
        "controller.listener.names=CONTROLLER",
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    ]
    broker = kraft_settings(release, DATA, 1, {CLIENTS: 9092}, {1000: 9093})
    controller = kraft_settings(release, DATA, 1000, {CONTROLLER: 9093}, {1000: 9093})
    assert (broker["process.roles"], controller["process.roles"]) == ("broker", "controller")
    assert broker["controller.quorum.voters"] == controller["controller.quorum.voters"] == "1000@127.0.0.1:9093"
    assert both["group.initial.rebalance.delay.ms"] == 0
    assert not any(name.startswith("zookeeper") for name in both)


def test_the_id_of_a_cluster_belongs_to_its_kept_data() -> None:
    """Kept data always has the same id. Other clusters have ids of their own. No id begins with a hyphen."""
    assert cluster_id(None) != cluster_id(None)
    assert cluster_id(DATA_FOLDER) == cluster_id(DATA_FOLDER) != cluster_id(DATA_FOLDER / "other")
    ids = [cluster_id(None) for _ in range(200)]
    assert {len(each) for each in ids} == {22}
    assert not any(each.startswith("-") for each in ids)
