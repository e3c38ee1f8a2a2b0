"""
A cluster with a name, in this process until a signal ends it, or in one of its own.

``python -m kiel_groups.embedded.clusters.supervisor`` is the latter: its arguments are its settings as JSON and the
number of a pipe, to which it writes one line when the cluster serves, or cannot.
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
    """What to run by which name; the rest as in ``Cluster``. ``data`` is an absolute path, or None."""

    name: str
    kafka: str = DEFAULT_KAFKA
    zookeeper: str = "3.9.5"
    brokers: int = 1
    zookeepers: int = 1
    chroot: str = ""
    zookeeper_port: int = 0
    broker_port: int = 0
    data: str | None = None

    def cluster(self) -> Cluster:
        """Not started yet; raises ConfigError for what cannot work."""
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
    Run a cluster until SIGINT or SIGTERM comes, then end it.

    Args:
        settings: Which.
        ready: Called when it serves.
        died: Called with a sentence for each server that ends by itself; the others go on.

    Raises:
        ConfigError: Settings that cannot work.
        ServerError: A cluster of this name runs, or a server did not start.
        asyncio.CancelledError: The signal came before it served.
    """
    task, enough = asyncio.current_task(), asyncio.Event()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    cluster = settings.cluster()
    with claim_name(settings.name) as claim:
        async with cluster:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, enough.set)
            ready(claim.publish(cluster, Path(settings.data) if settings.data is not None else None))
            await _watch(cluster.servers, enough, died)


async def _watch(servers: list[Server], enough: asyncio.Event, died: Callable[[str], None]) -> None:
    alive = list(servers)
    while not enough.is_set():
        for server in [server for server in alive if not server.is_running]:
            alive.remove(server)
            died(f"{server.name} at {server.address} has ended; its log is {server.log}")
        try:
            async with asyncio.timeout(_WATCH_INTERVAL_S):
                await enough.wait()
        except TimeoutError:
            continue


def detach(settings: ClusterSettings) -> RunningCluster:
    """
    Run a cluster in a process of its own, which outlives this one; returns when it serves.

    Raises:
        ConfigError, ServerError: As of ``supervise``.
        KeyboardInterrupt: Ctrl-C came before it served; it was ended.
    """
    settings.cluster()  # What cannot work is told before a process is made for it.
    log = clusters_folder() / f"{settings.name}.log"
    reading, writing = os.pipe()
    command = [sys.executable, "-m", __name__, json.dumps(asdict(settings)), str(writing)]
    with open(reading, "rb") as answer, log.open("wb") as output:
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
            said = answer.read()
        except KeyboardInterrupt:
            supervisor.terminate()
            supervisor.wait()
            raise
    return _understood(said, log)


def _understood(said: bytes, log: Path) -> RunningCluster:
    if not said:
        raise ServerError(f"the supervisor of the cluster ended at its start; its log ends:\n{log_tail(log)}")
    answer = json.loads(said)
    if "error" in answer:
        raise (ConfigError if answer["wrong"] else ServerError)(answer["error"])
    return RunningCluster.parse(said.decode())


class _Starter:
    """Who waits at the other end of the pipe; told once."""

    def __init__(self, pipe: int) -> None:
        self._pipe: int | None = pipe

    def tell(self, answer: dict[str, object]) -> bool:
        """Whether anybody was still waiting."""
        if self._pipe is None:
            return False
        with open(self._pipe, "wb") as pipe:
            self._pipe = None
            pipe.write(json.dumps(answer).encode())
        return True


def _main(settings: ClusterSettings, pipe: int) -> int:
    starter = _Starter(pipe)
    try:
        asyncio.run(supervise(settings, lambda cluster: starter.tell(cluster.to_json()), _log))
    except KielGroupsError as error:
        if not starter.tell({"error": str(error), "wrong": isinstance(error, ConfigError)}):
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
