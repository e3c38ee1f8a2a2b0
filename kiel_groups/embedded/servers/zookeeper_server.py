"""One ZooKeeper server: stand-alone, or (see ensemble) one of several."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kiel_groups.admin import cluster_admin
from kiel_groups.embedded.jars.classpaths import zookeeper_class_path
from kiel_groups.embedded.processes.ports import accepts
from kiel_groups.embedded.processes.server_process import Server, in_thread
from kiel_groups.embedded.servers.java import java_command
from kiel_groups.embedded.servers.server_files import Settings, as_properties, zookeeper_settings

__all__ = ["ZooKeeperServer"]

_WORD_LIMIT_S = 0.5
_MODE = re.compile(rb"^Mode: (?P<mode>[\w-]+)$", re.MULTILINE)
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperServer(Server):
    """
    A real ZooKeeper on a loopback port.

    Args:
        version: ``"3.9.5"`` or ``"3.4.6"``.
        tick_time_ms: ZooKeeper's unit of time; sessions last between 2 and 20 of them.
        max_session_timeout_ms: The longest session granted; 20 ticks unless given.
        port: Its port; 0 has the system choose one.
        overrides: Further lines of ``zoo.cfg``.
    """

    def __init__(
        self,
        version: str = "3.9.5",
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
        """The connection string of its clients, ``127.0.0.1:port``."""
        return self.address

    async def mode(self) -> str | None:
        """
        ``"standalone"``, ``"leader"`` or ``"follower"``; ``"read-only"`` where it was told to go on alone as such.

        None where it is down, frozen, or otherwise not in a quorum.
        """
        return await in_thread(self._mode)

    def _mode(self) -> str | None:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=_WORD_LIMIT_S) as connection:
                connection.settimeout(_WORD_LIMIT_S)
                connection.sendall(b"srvr")
                said = b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return None
        found = _MODE.search(said)
        return found["mode"].decode() if found else None

    def _quorum(self) -> Settings:
        """Lines of ``zoo.cfg`` about other servers; a stand-alone one has none."""
        return {}

    def _command(self) -> list[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        alone = zookeeper_settings(data, self.port, tick_time_ms=self._tick_time_ms)
        configuration = self.folder / "zoo.cfg"
        configuration.write_text(as_properties({**alone, **self._quorum(), **self._overrides}), encoding="utf-8")
        return java_command(self._classes, self.folder, _MAIN, configuration, heap_mb=128)

    @contextmanager
    def _readiness(self) -> Iterator[Callable[[], bool]]:
        # Short tries: 3.9.5 never answers, nor closes, a connection that comes in the first moment of its start (its
        # connection handler fails on a database that is not there yet).
        yield lambda: accepts(self.port) and cluster_admin.answers(self.hosts, timeout_s=0.5)
