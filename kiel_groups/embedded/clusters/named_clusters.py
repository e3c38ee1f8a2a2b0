"""
Clusters that run under a name: their records, whether they still run, and how to stop them.

A supervisor holds the lock of its name while it runs, and publishes a record when its servers are ready. The record has
the supervisor's process id and start time. So a record left behind by kill -9 is recognized, even if another process
has the same id now.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kiel_groups.config import check_name
from kiel_groups.embedded.clusters.embedded_cluster import Cluster
from kiel_groups.embedded.processes.file_lock import try_lock
from kiel_groups.embedded.processes.server_process import made_runs_folder
from kiel_groups.errors import ServerError

__all__ = ["RunningCluster", "RunningServer", "Claim", "claim_name", "find_cluster", "running_clusters", "stop_cluster"]

_STOP_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """One server of a running cluster, as it was when the cluster became ready."""

    name: str
    address: str
    pid: int
    log: str

    @property
    def is_alive(self) -> bool:
        return _start_ticks(self.pid) is not None


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """
    The record of a running cluster.

    ``pid`` and ``start_ticks`` (its start time in clock ticks since boot) identify the supervisor's process.
    ``zookeeper`` is the connection string, or None in KRaft mode. ``data`` is the folder of kept data, or None if the
    cluster keeps none.
    """

    name: str
    pid: int
    start_ticks: int
    started_at_ms: int
    kafka_version: str
    zookeeper_version: str | None
    zookeeper: str | None
    brokers: tuple[str, ...]
    servers: tuple[RunningServer, ...]
    data: str | None

    @property
    def is_alive(self) -> bool:
        return _start_ticks(self.pid) == self.start_ticks

    @classmethod
    def parse(cls, text: str) -> RunningCluster:
        """Parse a record. Raise ValueError, TypeError or KeyError if it is invalid."""
        fields = json.loads(text)
        fields["brokers"] = tuple(fields["brokers"])
        fields["servers"] = tuple(RunningServer(**server) for server in fields["servers"])
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the record, as they are published and printed."""
        return asdict(self)


class Claim:
    """The exclusive right to run a cluster under this name and to publish its record."""

    def __init__(self, name: str, record: Path) -> None:
        self.name = name
        self._record = record

    def publish(self, cluster: Cluster, data: Path | None) -> RunningCluster:
        """Write and return the record of a cluster that is ready for clients."""
        pid = os.getpid()
        running = RunningCluster(
            name=self.name,
            pid=pid,
            start_ticks=_start_ticks(pid) or 0,
            started_at_ms=round(time.time() * 1000),
            kafka_version=cluster.kafka[0].version if cluster.kafka else "",
            zookeeper_version=cluster.zookeeper.version if cluster.uses_zookeeper else None,
            zookeeper=cluster.zk_hosts if cluster.uses_zookeeper else None,
            brokers=tuple(cluster.brokers),
            servers=tuple(RunningServer(s.name, s.address, s.pid, str(s.log)) for s in cluster.servers),
            data=str(data) if data is not None else None,
        )
        written = self._record.with_suffix(".new")
        written.write_text(json.dumps(running.to_json()), encoding="utf-8")
        written.replace(self._record)
        return running


@contextmanager
def claim_name(name: str) -> Iterator[Claim]:
    """
    Reserve ``name`` for a cluster during the block, and remove the cluster's record at its end.

    Raises:
        ConfigError: The name is invalid.
        ServerError: A cluster of this name runs, starts or stops.
    """
    folder = clusters_folder()
    record = folder / f"{check_name(name, 'name')}.json"
    lock = try_lock(folder / f"{name}.lock")
    if lock is None:
        running = find_cluster(name)
        what = f"runs already, as process {running.pid}" if running is not None else "is starting or stopping"
        ending = f"'kiel-groups cluster down --name {name}'"
        raise ServerError(f"cluster {name!r} {what}; end it with {ending}, or choose another --name")
    with lock:
        try:
            yield Claim(name, record)
        finally:
            record.unlink(missing_ok=True)


def clusters_folder() -> Path:
    """Return the folder with the records of running clusters, and the logs of detached clusters."""
    folder = made_runs_folder() / "clusters"
    folder.mkdir(exist_ok=True)
    return folder


def find_cluster(name: str) -> RunningCluster | None:
    """Return the record of a running cluster, or None. A cluster has no record before it is ready."""
    try:
        cluster = RunningCluster.parse((clusters_folder() / f"{check_name(name, 'name')}.json").read_text("utf-8"))
    except (OSError, ValueError, TypeError, KeyError):
        return None  # The name is invalid, there is no record, or another release of this package wrote it.
    return cluster if cluster.is_alive else None


def running_clusters() -> list[RunningCluster]:
    """Return the user's running clusters, sorted by name."""
    found = (find_cluster(path.stem) for path in sorted(clusters_folder().glob("*.json")))
    return [cluster for cluster in found if cluster is not None]


def stop_cluster(cluster: RunningCluster) -> None:
    """
    Stop a cluster, and return when its supervisor and, with it, all servers have ended.

    Raises:
        ServerError: The supervisor still runs after a minute.
    """
    with suppress(ProcessLookupError), _process(cluster.pid) as process:
        if not cluster.is_alive:
            return
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended = select.poll()
        ended.register(process, select.POLLIN)
        if not ended.poll(_STOP_LIMIT_S * 1000):
            raise ServerError(
                f"cluster {cluster.name!r} still runs {_STOP_LIMIT_S:g} s after SIGTERM;"
                f" 'kill -9 {cluster.pid}' ends it and its servers"
            )


@contextmanager
def _process(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, or None if the process has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The first field after the name is number 3 (see proc(5)); the start time is number 22.
    return None if state in "ZX" else int(rest[22 - 3 - 1])
