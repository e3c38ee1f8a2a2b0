"""Configuration files in ``docker/`` and ``zookeeper/``, generated from the settings of the embedded servers."""

from __future__ import annotations

from pathlib import PurePosixPath

from kiel_groups.embedded.jars import pom
from kiel_groups.embedded.java_servers import (
    LOG4J,
    LOOPBACK,
    Peer,
    as_properties,
    broker_settings,
    ensemble_settings,
    zookeeper_settings,
)
from kiel_groups.embedded.releases import DEFAULT_KAFKA, kafka_release

__all__ = ["configuration_files"]

_MADE = "Made by scripts/make-configurations of what the tests' own servers run with; change it there."

_ZOOKEEPER_PORT, _KAFKA_PORT = 2181, 9092
_QUORUM_PORT, _ELECTION_PORT = 2888, 3888
_ENSEMBLE = range(1, 4)


def configuration_files() -> dict[str, str]:
    """Return the content of every file, by its path in the repository."""
    files = {
        "docker/kafka/pom.xml": f"<!-- {_MADE} -->\n{pom(kafka_release(DEFAULT_KAFKA).classes)}",
        "docker/kafka/server.properties": _commented(as_properties(_broker_in_a_container())),
        "docker/kafka/log4j.properties": _commented(LOG4J),
        "zookeeper/zoo.cfg": _commented(as_properties(zookeeper_settings(_data(), _ZOOKEEPER_PORT))),
    }
    return files | {f"zookeeper/ensemble/zoo-{number}.cfg": _of_three(number) for number in _ENSEMBLE}


def _broker_in_a_container() -> dict[str, object]:
    """Return settings that listen on all interfaces and advertise the broker's name in the container network."""
    settings = broker_settings(
        kafka_release(DEFAULT_KAFKA), PurePosixPath("/data"), _KAFKA_PORT, f"zookeeper:{_ZOOKEEPER_PORT}"
    )
    del settings["host.name"]
    return settings | {"advertised.host.name": "kafka"}


def _of_three(number: int) -> str:
    """Return ``zoo.cfg`` of one of three servers on one host. The file ``myid`` in its data must contain ``number``."""
    peers = {each: Peer(LOOPBACK, _QUORUM_PORT + each - 1, _ELECTION_PORT + each - 1) for each in _ENSEMBLE}
    settings = zookeeper_settings(_data() / str(number), _ZOOKEEPER_PORT + number - 1)
    return _commented(as_properties(settings | ensemble_settings(peers)), f"{_data()}/{number}/myid holds {number}.")


def _data() -> PurePosixPath:
    return PurePosixPath("/var/lib/zookeeper")


def _commented(text: str, *further: str) -> str:
    return "".join(f"# {line}\n" for line in (_MADE, *further)) + text
