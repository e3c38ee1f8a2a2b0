"""
Run named clusters, in this process until a signal arrives, or in a background process. Find and stop named clusters.

The process that runs a cluster is the cluster's supervisor. The supervisor holds the lock of the cluster's name while
it runs, and publishes a record when the servers are ready. The record has the supervisor's process id and start time.
So a record that remains after kill -9 is recognized as outdated, even if another process has the same id.

``python -m kiel_groups.embedded.named_clusters`` is the background process. The arguments of this process are the
settings as JSON, and the file descriptor of a pipe. When the cluster is ready or has failed to start, the process
writes one JSON object to the pipe.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kiel_groups.config import check_name
from kiel_groups.embedded.cluster import Cluster
from kiel_groups.embedded.processes import Server, log_tail, made_runs_folder, try_lock
from kiel_groups.embedded.releases import DEFAULT_KAFKA
from kiel_groups.errors import ConfigError, KielGroupsError, ServerError

_STOP_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The record of one server of a cluster. ``pid`` is the server's process id when the record was published."""

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

    ``pid`` and ``start_ticks`` identify the supervisor's process. ``start_ticks`` is the start time of this process in
    clock ticks since boot. ``zookeeper`` is the connection string, of a secured cluster that of the ports for TLS, or
    None in KRaft mode. ``data`` is the folder of kept data, or None if the cluster keeps no data. ``security`` is the
    file for clients of a secured cluster, or None.
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
    security: str | None

    @property
    def is_alive(self) -> bool:
        return _start_ticks(self.pid) == self.start_ticks

    def server(self, name: str) -> RunningServer:
        """
        Return the server of the cluster with this name.

        Raises:
            ServerError: The cluster has no such server. The text lists all servers.
        """
        for server in self.servers:
            if server.name == name:
                return server
        known = ", ".join(server.name for server in self.servers)
        raise ServerError(f"cluster {self.name!r} has no server {name!r}; it has {known}")

    @classmethod
    def of(cls, cluster: Cluster, settings: ClusterSettings) -> RunningCluster:
        """Create the record of a cluster that this process runs, when all its servers are ready for clients."""
        pid = os.getpid()
        return cls(
            name=settings.name,
            pid=pid,
            start_ticks=_start_ticks(pid) or 0,
            started_at_ms=round(time.time() * 1000),
            kafka_version=settings.kafka,
            zookeeper_version=cluster.zookeeper.version if cluster.uses_zookeeper else None,
            zookeeper=(cluster.tls_hosts if settings.secure else cluster.zk_hosts) if cluster.uses_zookeeper else None,
            brokers=tuple(cluster.brokers),
            servers=tuple(RunningServer(s.name, s.address, s.pid, str(s.log)) for s in cluster.servers),
            data=settings.data,
            security=str(cluster.security.file) if settings.secure else None,
        )

    @classmethod
    def parse(cls, text: str) -> RunningCluster:
        """Parse the JSON of a record. Raise ValueError, TypeError or KeyError if the record is invalid."""
        fields = json.loads(text)
        fields["brokers"] = tuple(fields["brokers"])
        fields["servers"] = tuple(RunningServer(**server) for server in fields["servers"])
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the record as a document for JSON."""
        return asdict(self)


@contextmanager
def _claimed(name: str) -> Iterator[Path]:
    """
    Reserve ``name`` for a cluster during the block. Yield the path of the cluster's record. Remove the record at the
    end.

    Raises:
        ConfigError: The name is invalid.
        ServerError: A cluster of this name runs, starts or stops.
    """
    folder = _clusters_folder()
    record = folder / f"{check_name(name, 'name')}.json"
    lock = try_lock(folder / f"{name}.lock")
    if lock is None:
        running = find_cluster(name)
        what = f"runs already, as process {running.pid}" if running is not None else "is starting or stopping"
        ending = f"'kiel-groups cluster down --name {name}'"
        raise ServerError(f"cluster {name!r} {what}; end it with {ending}, or choose another --name")
    with lock:
        try:
            yield record
        finally:
            record.unlink(missing_ok=True)
            record.with_suffix(_REQUEST).unlink(missing_ok=True)


def _clusters_folder() -> Path:
    """
    Return the folder of the records of running clusters and the logs of supervisors. Create the folder if it is
    missing.
    """
    folder = made_runs_folder() / "clusters"
    folder.mkdir(exist_ok=True)
    return folder


def find_cluster(name: str) -> RunningCluster | None:
    """
    Return the record of the running cluster with this name, or None.

    A cluster has no record before it is ready. A name that is not valid gives None, too.
    """
    try:
        cluster = RunningCluster.parse((_clusters_folder() / f"{check_name(name, 'name')}.json").read_text("utf-8"))
    except (OSError, ValueError, TypeError, KeyError):
        return None  # The name is invalid, there is no record, or another release of this package wrote it.
    return cluster if cluster.is_alive else None


def running_clusters() -> list[RunningCluster]:
    """Return the records of the user's running clusters, sorted by name."""
    found = (find_cluster(path.stem) for path in sorted(_clusters_folder().glob("*.json")))
    return [cluster for cluster in found if cluster is not None]


def stop_cluster(cluster: RunningCluster) -> None:
    """
    Stop a cluster, and return when its supervisor and all servers have ended. Do nothing if the cluster has ended.

    Raises:
        ServerError: The supervisor still runs after a minute.
    """
    with suppress(ProcessLookupError):
        process = os.pidfd_open(cluster.pid)
        try:
            if not cluster.is_alive:
                return
            signal.pidfd_send_signal(process, signal.SIGTERM)
            if not select.select([process], [], [], _STOP_LIMIT_S)[0]:
                raise ServerError(
                    f"cluster {cluster.name!r} still runs {_STOP_LIMIT_S:g} s after SIGTERM;"
                    f" 'kill -9 {cluster.pid}' ends it and its servers"
                )
        finally:
            os.close(process)


def restart_server(cluster: RunningCluster, name: str) -> RunningServer:
    """
    Ask the supervisor of a cluster to restart a server on its data and port. A server that has ended is started.

    Returns:
        The new record of the server, which is ready for clients.

    Raises:
        ServerError: The cluster has no such server, is already restarting a server, or has ended. Or the server did not
            start; then the text has the end of the server's log.
    """
    before = cluster.server(name)
    request = _clusters_folder() / f"{cluster.name}{_REQUEST}"
    try:
        with request.open("x", encoding="utf-8") as file:
            file.write(name)
    except FileExistsError as error:
        raise ServerError(
            f"cluster {cluster.name!r} is restarting a server already; wait until that has ended"
        ) from error
    while request.exists() and cluster.is_alive:
        time.sleep(_POLL_S)
    now = find_cluster(cluster.name)
    if now is None or not cluster.is_alive:
        raise ServerError(f"cluster {cluster.name!r} has ended before {name} was restarted")
    after = now.server(name)
    if after.pid == before.pid or not after.is_alive:
        raise ServerError(f"{name} did not start again; its log ends:\n{log_tail(Path(after.log))}")
    return after


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, or None if the process has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The first field after the name is number 3 (see proc(5)); the start time is number 22.
    return None if state in "ZX" else int(rest[22 - 3 - 1])


#: The interval at which the supervisor checks its servers and looks for a request, and the interval at which a command
#: checks whether its request is done, in seconds.
_WATCH_INTERVAL_S, _POLL_S = 0.5, 0.1

#: The ending of the file that names the server to restart. The supervisor deletes it when that is done.
_REQUEST = ".restart"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The name of a cluster, and arguments of ``Cluster``. ``data`` is an absolute path as text, or None."""

    name: str
    kafka: str = DEFAULT_KAFKA
    zookeeper: str | None = None
    brokers: int = 1
    zookeepers: int = 1
    chroot: str = ""
    zookeeper_port: int = 0
    broker_port: int = 0
    data: str | None = None
    secure: bool = False

    def cluster(self) -> Cluster:
        """Create a cluster with these settings, and do not start it. Raise ConfigError if a setting is invalid."""
        arguments = asdict(self) | {"data": Path(self.data) if self.data is not None else None}
        del arguments["name"]
        return Cluster(**arguments)


async def supervise(
    settings: ClusterSettings, ready: Callable[[RunningCluster], object], died: Callable[[str], None]
) -> None:
    """
    Run a cluster until SIGINT or SIGTERM arrives, then stop it. Restart servers that ``restart_server`` names.

    The signal kills a server that is starting at that time. Further signals have no effect.

    Args:
        settings: The cluster to run.
        ready: Called with the cluster's record when all servers are ready.
        died: Called with a sentence for each server that ends unexpectedly. All other servers keep running.

    Raises:
        ConfigError: The settings are invalid.
        ServerError: A cluster of this name runs, starts or stops, or a server did not start.
        asyncio.CancelledError: The signal arrived before the cluster was ready.
    """
    task = asyncio.current_task()
    assert task is not None

    def end() -> None:
        # A second cancellation would interrupt the stop of the servers.
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end)
    cluster = settings.cluster()
    with _claimed(settings.name) as record:
        async with cluster:
            record.with_suffix(_REQUEST).unlink(missing_ok=True)  # A supervisor that was killed has left it.
            running = RunningCluster.of(cluster, settings)
            _publish(running, record)
            ready(running)
            with suppress(asyncio.CancelledError):
                await _watch(cluster.servers, running, record, died)


def _publish(running: RunningCluster, record: Path) -> None:
    written = record.with_suffix(".new")
    written.write_text(json.dumps(running.to_json()), encoding="utf-8")
    written.replace(record)


async def _watch(
    servers: list[Server],
    running: RunningCluster,
    record: Path,
    died: Callable[[str], None],
) -> None:
    """Until the caller is cancelled, report servers that end, and restart servers that ``restart_server`` names."""
    alive, request = list(servers), record.with_suffix(_REQUEST)
    while True:
        with suppress(FileNotFoundError):
            if named := [server for server in servers if server.name == request.read_text("utf-8")]:
                alive = [*(server for server in alive if server not in named), *named]
                running = await _restarted(running, named[0])
                _publish(running, record)
                request.unlink()
        for server in [server for server in alive if not server.is_running]:
            alive.remove(server)
            died(f"{server.name} at {server.address} has ended; its log is {server.log}")
        await asyncio.sleep(_WATCH_INTERVAL_S)


async def _restarted(running: RunningCluster, server: Server) -> RunningCluster:
    """Restart a server. Return the record with its new process id, or the same record if the server does not start."""
    try:
        await server.restart()
    except ServerError:
        return running
    servers = (replace(each, pid=server.pid) if each.name == server.name else each for each in running.servers)
    return replace(running, servers=tuple(servers))


def detach(settings: ClusterSettings) -> RunningCluster:
    """
    Start a cluster in a background process that outlives this process. Return the record when the cluster is ready.

    Raises:
        ConfigError, ServerError: As in ``supervise``.
        KeyboardInterrupt: Ctrl-C was pressed before the cluster was ready. The cluster has been stopped.
    """
    settings.cluster()  # Raises ConfigError for invalid settings, before a process is started.
    log = _clusters_folder() / f"{settings.name}.log"
    reading, writing = os.pipe()
    command = [sys.executable, "-m", __name__, json.dumps(asdict(settings)), str(writing)]
    with open(reading, "rb") as pipe, log.open("wb") as output:
        try:
            supervisor = subprocess.Popen(  # nosec B603 # the command is this package's own, without a shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[writing],
            )
        finally:
            os.close(writing)
        try:
            report = pipe.read()
        except KeyboardInterrupt:
            supervisor.terminate()
            supervisor.wait()
            raise
    return _parse_report(report, log)


def _parse_report(report: bytes, log: Path) -> RunningCluster:
    if not report:
        raise ServerError(f"the supervisor of the cluster ended at its start; its log ends:\n{log_tail(log)}")
    fields = json.loads(report)
    if "error" in fields:
        raise (ConfigError if fields["wrong"] else ServerError)(fields["error"])
    return RunningCluster.parse(report.decode())


def _main(settings: ClusterSettings, pipe: int) -> int:
    """
    Run a cluster as its background process, and return the exit status.

    Write one report to the pipe, for the process that started this process and waits: the record or an error.
    """
    starter = open(pipe, "wb")  # noqa: SIM115

    def report(fields: dict[str, Any]) -> None:
        with starter:
            starter.write(json.dumps(fields).encode())

    try:
        asyncio.run(supervise(settings, lambda cluster: report(cluster.to_json()), _log))
    except KielGroupsError as error:
        if starter.closed:
            _log(str(error))
        else:
            report({"error": str(error), "wrong": isinstance(error, ConfigError)})
        return 1
    except asyncio.CancelledError:
        return 1
    return 0


def _log(text: str) -> None:
    sys.stderr.write(f"error: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(_main(ClusterSettings(**json.loads(sys.argv[1])), int(sys.argv[2])))
