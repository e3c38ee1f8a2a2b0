"""The example files agree with the servers that the tests run. No Docker engine is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kiel_groups.embedded.jars import COPY_GOAL
from tests.helpers.commands import REPOSITORY
from tests.helpers.compose_file import COMPOSE, services
from tests.helpers.example_files import configuration_files

pytestmark = pytest.mark.unit


#: The variables of the ZooKeeper image, and the settings of zoo.cfg that they set.
IMAGE_NAMES = {
    "ZOO_TICK_TIME": "tickTime",
    "ZOO_MAX_CLIENT_CNXNS": "maxClientCnxns",
    "ZOO_ADMINSERVER_ENABLED": "admin.enableServer",
    "ZOO_4LW_COMMANDS_WHITELIST": "4lw.commands.whitelist",
}


def settings(name: str) -> dict[str, str]:
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("name", configuration_files())
def test_configuration_files_are_up_to_date(name: str) -> None:
    """The configuration files equal what ``scripts/make-configurations`` writes."""
    assert (REPOSITORY / name).read_text(encoding="utf-8") == configuration_files()[name]


def test_the_compose_file_matches_its_schema() -> None:
    """The compose file matches the schema of the Compose specification."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout


def test_the_zookeeper_service_has_the_settings_of_zoo_cfg() -> None:
    """
    The ZooKeeper service has the settings of ``zoo.cfg``: the same ticks, and so the same session timeouts, and the
    same four-letter words.
    """
    configured = {IMAGE_NAMES[name]: value for name, value in services()["zookeeper"]["environment"].items()}
    written = settings("zookeeper/zoo.cfg")
    assert configured == {name: written[name] for name in IMAGE_NAMES.values()}


def test_names_and_ports_agree() -> None:
    """
    ZooKeeper's address, and the broker's advertised address and log folder, equal the names and ports of the services.
    """
    broker, found = settings("docker/kafka/server.properties"), services()
    addresses = found["cli"]["environment"]
    assert broker["zookeeper.connect"] == addresses["KIEL_GROUPS_ZOOKEEPER"] == "zookeeper:2181"
    assert f"{broker['advertised.host.name']}:{broker['port']}" == addresses["KIEL_GROUPS_BROKERS"]
    assert {"zookeeper", broker["advertised.host.name"]} <= set(found)
    assert "host.name" not in broker
    assert broker["log.dirs"] in found["kafka"]["volumes"][0].split(":")
    assert broker["port"] in found["kafka"]["healthcheck"]["test"][-1]


def test_the_dockerfile_of_kafka_uses_the_generated_files() -> None:
    """Kafka's Dockerfile has the Maven goal of the tests, and copies the generated files."""
    folder = REPOSITORY / "docker" / "kafka"
    lines = (folder / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert any(COPY_GOAL in line for line in lines)
    copied = [
        name for line in lines if line.startswith("COPY ") and "--from" not in line for name in line.split()[1:-1]
    ]
    assert copied == ["pom.xml", "server.properties", "log4j.properties"]
    assert all((folder / name).is_file() for name in copied)


def test_the_dockerfile_of_kiel_groups_copies_existing_files() -> None:
    """The Dockerfile of kiel-groups copies only files that exist in the repository, which is the build context."""
    lines = (REPOSITORY / "docker" / "kiel-groups" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert "kiel_groups" in copied
    assert all((REPOSITORY / name).exists() for name in copied)
    assert services()["allocator"]["build"]["dockerfile"] == "docker/kiel-groups/Dockerfile"


def test_the_three_servers_of_an_ensemble_agree() -> None:
    """
    The files of the three servers list the same servers. All ports differ, so the servers can run on one computer.
    """
    three = [settings(f"zookeeper/ensemble/zoo-{number}.cfg") for number in (1, 2, 3)]
    assert len({tuple(sorted((k, v) for k, v in each.items() if k.startswith("server."))) for each in three}) == 1
    assert len({each["clientPort"] for each in three}) == len({each["dataDir"] for each in three}) == 3
    ports = [port for key, value in three[0].items() if key.startswith("server.") for port in value.split(":")[1:]]
    assert len({*ports, *(each["clientPort"] for each in three)}) == 9
