"""One ZooKeeper server, stand-alone or in an ensemble."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kiel_groups.embedded.jars.classpaths import zookeeper_class_path
from kiel_groups.embedded.processes.server_process import Server, accepts, in_thread
from kiel_groups.embedded.servers.kafka_broker import java_command
from kiel_groups.embedded.servers.server_files import Settings, as_properties, zookeeper_settings
from kiel_groups.ops import zookeeper_client

__all__ = ["DEFAULT_ZOOKEEPER", "ZooKeeperServer"]

#: The release that runs by default.
DEFAULT_ZOOKEEPER = "3.9.5"

_ANSWER_LIMIT_S = 0.5
_MODE = re.compile(rb"^Mode: (?P<mode>[\w-]+)$", re.MULTILINE)
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperServer(Server):
    """
    A real ZooKeeper on a loopback port.

    Args:
        version: ``"3.9.5"`` or ``"3.4.6"``.
        tick_time_ms: ZooKeeper's unit of time. Session timeouts are between 2 and 20 ticks.
        max_session_timeout_ms: The longest session timeout granted, by default 20 ticks.
        port: The server's port. 0 lets the system choose one.
        overrides: Further lines of ``zoo.cfg``.
    """

    def __init__(
        self,
        version: str = DEFAULT_ZOOKEEPER,
        *,
        tick_time_ms: int = 500,
        max_session_timeout_ms: int | None = None,
        port: int = 0,
        overrides: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(f"zookeeper-{version}", port)
        self.version = version
        self._classes = zookeeper_class_path(version)
        self._tick_time_ms = tick_time_ms
        self._overrides: Settings = overrides or {}
        if max_session_timeout_ms is not None:
            self._overrides = {"maxSessionTimeout": max_session_timeout_ms, **self._overrides}

    @property
    def hosts(self) -> str:
        """The connection string for clients, ``127.0.0.1:port``."""
        return self.address

    async def mode(self) -> str | None:
        """
        Return ``"standalone"``, ``"leader"`` or ``"follower"``, or None if the server is down, frozen or without a
        quorum.

        A server that is configured to serve reads without a quorum returns ``"read-only"`` instead of None.
        """
        return await in_thread(self._mode)

    def _mode(self) -> str | None:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=_ANSWER_LIMIT_S) as connection:
                connection.settimeout(_ANSWER_LIMIT_S)
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return None
        found = _MODE.search(answer)
        return found["mode"].decode() if found else None

    def _quorum(self) -> Settings:
        """Return the settings in ``zoo.cfg`` about other servers. A stand-alone server has none."""
        return {}

    def _command(self) -> list[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        own = zookeeper_settings(data, self.port, tick_time_ms=self._tick_time_ms)
        configuration = self.folder / "zoo.cfg"
        configuration.write_text(as_properties({**own, **self._quorum(), **self._overrides}), encoding="utf-8")
        return java_command(self._classes, self.folder, _MAIN, configuration, heap_mb=128)

    @contextmanager
    def _readiness(self) -> Iterator[Callable[[], bool]]:
        # Short attempts: 3.9.5 neither answers nor closes a connection that arrives right after its start, because its
        # connection handler fails while the database is not loaded.
        yield lambda: accepts(self.port) and zookeeper_client.answers(self.hosts, timeout_s=0.5)
