"""
Servers in KRaft mode, which keep the metadata of their cluster in a log of its controller: brokers and controllers.

A single broker is its own controller. Several brokers have a controller in a process of its own, so that each of them
can be stopped. The cluster's id is written to the folder of a server before its first start.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kiel_groups.config import HostPort, parse_hosts
from kiel_groups.embedded.jars.kafka_releases import KafkaRelease, kafka_release
from kiel_groups.embedded.processes.child_process import ChildProcess, log_tail
from kiel_groups.embedded.processes.server_process import Server
from kiel_groups.embedded.servers.broker_links import BrokerLinks
from kiel_groups.embedded.servers.kafka_broker import BROKER_HEAP_MB, MAIN, STARTED, KafkaBroker, java_command
from kiel_groups.embedded.servers.server_files import CLIENTS, CONTROLLER, as_properties, kraft_settings
from kiel_groups.errors import ServerError

__all__ = ["KRaftBroker", "KRaftController", "cluster_id"]

_FORMAT = "kafka.tools.StorageTool"
_FORMAT_LIMIT_S = 60.0
_CONTROLLER_HEAP_MB = 128
#: The controller's number. The brokers have 0, 1, ...
_CONTROLLER_NODE = 1_000


def cluster_id(data: Path | None = None) -> str:
    """
    Return an id for a cluster, a UUID in base64: always the same for a folder of kept data, or a random one for None.
    """
    first, *rest = (uuid.uuid4() if data is None else uuid.uuid5(uuid.NAMESPACE_URL, data.resolve().as_uri())).bytes
    # A first bit of 0 avoids ids that begin with a hyphen, which the tool that gets them takes for an option.
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode().rstrip("=")


class KRaftController(Server):
    """
    A controller in a process of its own, on a loopback port.

    Args:
        cluster: The id of its cluster.
        version: ``"3.9.1"``.
        overrides: Lines that are added to ``server.properties`` or replace lines there.
    """

    def __init__(self, cluster: str, version: str, *, overrides: Mapping[str, object] | None = None) -> None:
        super().__init__("kafka-controller")
        self.version = version
        self._cluster = cluster
        self._release = kafka_release(version)
        self._overrides = overrides or {}
        self.links: BrokerLinks | None = None
        """The proxies of its cluster, which run, or None."""

    @property
    def voters(self) -> dict[int, int]:
        """The port at which each controller is reached, by its number."""
        return {_CONTROLLER_NODE: self._reached_at.port}

    @property
    def _reached_at(self) -> HostPort:
        proxy = self.links.controller if self.links is not None else None
        return parse_hosts(proxy or self.address, 0, "controller")[0]

    def _command(self) -> list[str]:
        data = self.folder / "data"
        settings = kraft_settings(self._release, data, _CONTROLLER_NODE, {CONTROLLER: self.port}, self.voters)
        # Brokers learn this address from the answers of the controller, beside that in their configuration.
        settings["advertised.listeners"] = f"{CONTROLLER}://{self._reached_at}"
        return _command(self._release, self.folder, self._cluster, {**settings, **self._overrides})

    @contextmanager
    def _readiness(self) -> Iterator[Callable[[], bool]]:
        log_start = self.log.stat().st_size if self.log.exists() else 0
        yield lambda: STARTED.search(self._logged(log_start)) is not None


class KRaftBroker(KafkaBroker):
    """
    A real broker on a loopback port, in KRaft mode. Its ``zk_connect`` is empty.

    The broker is ready when its log says that it has started, which is after the controller lets clients use it.

    Args:
        cluster: The id of its cluster.
        broker_id: The broker's number in the cluster.
        controller: The cluster's controller, which runs. None makes this broker the controller, too.
        version: ``"3.9.1"``.
        port: The broker's port. 0 lets the system choose one.
        advertised: The address, ``host:port``, at which clients and other brokers are to reach this broker, such as a
            proxy's. None means the broker's own address.
        overrides: Lines that are added to ``server.properties`` or replace lines there.
    """

    _FURTHER_PORTS = 1

    def __init__(
        self,
        cluster: str,
        broker_id: int = 0,
        *,
        controller: KRaftController | None = None,
        version: str,
        port: int = 0,
        advertised: str | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__("", broker_id, version=version, port=port, advertised=advertised, overrides=overrides)
        self._cluster = cluster
        self._controller = controller

    def _command(self) -> list[str]:
        listeners = {CLIENTS: self.port}
        if self._controller is not None:
            voters = self._controller.voters
        else:
            listeners[CONTROLLER] = self._port_number(1)
            voters = {self.broker_id: listeners[CONTROLLER]}
        settings = kraft_settings(self._release, self.folder / "data", self.broker_id, listeners, voters)
        return _command(self._release, self.folder, self._cluster, {**settings, **self._overrides})

    @contextmanager
    def _readiness(self) -> Iterator[Callable[[], bool]]:
        log_start = self.log.stat().st_size if self.log.exists() else 0
        yield lambda: self._has_started(log_start)


def _command(release: KafkaRelease, folder: Path, cluster: str, settings: Mapping[str, object]) -> list[str]:
    """Write a server's configuration, prepare its data folder, and return the command that runs the server."""
    configuration = folder / "server.properties"
    configuration.write_text(as_properties(settings), encoding="utf-8")
    if not (folder / "data" / "meta.properties").exists():
        _format(
            java_command(
                release.classes, folder, _FORMAT, "format", "-g", "-t", cluster, "-c", configuration, heap_mb=64
            ),
            folder,
        )
    return java_command(release.classes, folder, MAIN, configuration, heap_mb=BROKER_HEAP_MB)


def _format(command: list[str], folder: Path) -> None:
    log = folder / "format.log"
    process = ChildProcess(command, log=log, folder=folder)
    if not process.wait(_FORMAT_LIMIT_S):
        process.kill()
    if process.status != 0:
        raise ServerError(f"{folder.name}: its data folder could not be prepared; the log ends:\n{log_tail(log)}")
