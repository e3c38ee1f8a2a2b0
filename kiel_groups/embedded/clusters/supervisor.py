"""
Run a named cluster in this process until a signal arrives, or in a background process.

``python -m kiel_groups.embedded.clusters.supervisor`` is the background process. Its arguments are the settings as
JSON, and the file descriptor of a pipe. When the cluster is ready or has failed to start, the process writes one JSON
object to the pipe.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from kiel_groups.embedded.clusters.embedded_cluster import Cluster
from kiel_groups.embedded.clusters.named_clusters import RunningCluster, claim_name, clusters_folder
from kiel_groups.embedded.jars.kafka_releases import DEFAULT_KAFKA
from kiel_groups.embedded.processes.child_process import log_tail
from kiel_groups.embedded.processes.server_process import Server
from kiel_groups.errors import ConfigError, KielGroupsError, ServerError

__all__ = ["ClusterSettings", "detach", "supervise"]

_WATCH_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The name of a cluster, and the arguments of ``Cluster``. ``data`` is an absolute path, or None."""

    name: str
    kafka: str = DEFAULT_KAFKA
    zookeeper: str | None = None
    brokers: int = 1
    zookeepers: int = 1
    chroot: str = ""
    zookeeper_port: int = 0
    broker_port: int = 0
    data: str | None = None

    def cluster(self) -> Cluster:
        """Create the cluster without starting it. Raise ConfigError if a setting is invalid."""
        return Cluster(
            self.brokers,
            zookeeper=self.zookeeper,
            zookeepers=self.zookeepers,
            kafka=self.kafka,
            chroot=self.chroot,
            zookeeper_port=self.zookeeper_port,
            broker_port=self.broker_port,
            data=Path(self.data) if self.data is not None else None,
        )


async def supervise(
    settings: ClusterSettings, ready: Callable[[RunningCluster], object], died: Callable[[str], None]
) -> None:
    """
    Run a cluster until SIGINT or SIGTERM arrives, then stop it.

    Args:
        settings: The cluster to run.
        ready: Called with the cluster's record when all servers are ready.
        died: Called with a sentence for each server that ends unexpectedly. All other servers keep running.

    Raises:
        ConfigError: The settings are invalid.
        ServerError: A cluster of this name runs, or a server did not start.
        asyncio.CancelledError: The signal arrived before the cluster was ready.
    """
    task, stopped = asyncio.current_task(), asyncio.Event()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    cluster = settings.cluster()
    with claim_name(settings.name) as claim:
        async with cluster:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stopped.set)
            ready(claim.publish(cluster, Path(settings.data) if settings.data is not None else None))
            await _watch(cluster.servers, stopped, died)


async def _watch(servers: list[Server], stopped: asyncio.Event, died: Callable[[str], None]) -> None:
    alive = list(servers)
    while not stopped.is_set():
        for server in [server for server in alive if not server.is_running]:
            alive.remove(server)
            died(f"{server.name} at {server.address} has ended; its log is {server.log}")
        try:
            async with asyncio.timeout(_WATCH_INTERVAL_S):
                await stopped.wait()
        except TimeoutError:
            continue


def detach(settings: ClusterSettings) -> RunningCluster:
    """
    Start a cluster in a background process, which outlives this process. Return the cluster's record when it is ready.

    Raises:
        ConfigError, ServerError: As in ``supervise``.
        KeyboardInterrupt: Ctrl-C was pressed before the cluster was ready. The cluster has been stopped.
    """
    settings.cluster()  # Raises ConfigError for invalid settings, before a process is started.
    log = clusters_folder() / f"{settings.name}.log"
    reading, writing = os.pipe()
    command = [sys.executable, "-m", __name__, json.dumps(asdict(settings)), str(writing)]
    with open(reading, "rb") as pipe, log.open("wb") as output:
        try:
            supervisor = subprocess.Popen(
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


class _Starter:
    """The process that has started this process, and that waits for one report from the pipe."""

    def __init__(self, pipe: int) -> None:
        self._pipe: int | None = pipe

    def report(self, fields: dict[str, object]) -> bool:
        """Write the report. Return False if a report was written before."""
        if self._pipe is None:
            return False
        with open(self._pipe, "wb") as pipe:
            self._pipe = None
            pipe.write(json.dumps(fields).encode())
        return True


def _main(settings: ClusterSettings, pipe: int) -> int:
    starter = _Starter(pipe)
    try:
        asyncio.run(supervise(settings, lambda cluster: starter.report(cluster.to_json()), _log))
    except KielGroupsError as error:
        if not starter.report({"error": str(error), "wrong": isinstance(error, ConfigError)}):
            _log(str(error))
        return 1
    except asyncio.CancelledError:
        return 1
    return 0


def _log(text: str) -> None:
    sys.stderr.write(f"error: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(_main(ClusterSettings(**json.loads(sys.argv[1])), int(sys.argv[2])))
