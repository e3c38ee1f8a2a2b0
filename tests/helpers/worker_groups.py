"""Groups of workers on real servers: in this process or as processes, with what their users ask of them."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Self, TypeVar

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from kiel_groups import SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.rest.settings import RestSettings
from kiel_groups.workers.execution.worker import Worker
from kiel_groups.workers.execution.worker_settings import WorkerSettings
from tests.helpers.commands import Running
from tests.helpers.servers import LASTING_MS
from tests.helpers.waiting import eventually

__all__ = ["WorkerPrograms", "ask", "numbers_in", "until_state", "worker_on"]

T = TypeVar("T")

#: Error codes of a worker that rebalances, and of one without ZooKeeper.
_TRY_AGAIN = (409, 503)


def worker_on(cluster: Cluster, group: str, **settings: Any) -> Worker:
    """
    Return a worker of a group, which has not started, with a port of the system's choice.

    A worker that is not scheduled for half of its session timeout loses its claims, and its tasks repeat records. The
    default is the longest one that shared servers grant.
    """
    if "zookeeper" not in settings:
        settings["zookeeper"] = cluster.zk_hosts
    defaults = {"brokers": ",".join(cluster.brokers), "rest": RestSettings(port=0), "session_timeout_ms": LASTING_MS}
    return Worker(WorkerSettings(group=group, **(defaults | settings)))


async def ask(url: str, method: str, path: str, body: object = None) -> Any:
    """Send a request to a worker's REST interface, and return its answer; try again during a rebalance."""
    request = HTTPRequest(
        url.rstrip("/") + path,
        method,
        headers={"Content-Type": "application/json"},
        body=None if body is None else json.dumps(body),
        allow_nonstandard_methods=True,
    )

    async def answer() -> list[bytes]:
        try:
            return [(await AsyncHTTPClient().fetch(request)).body]
        except HTTPClientError as error:
            if error.code not in _TRY_AGAIN:
                raise AssertionError(f"{method} {path}: {error.response and error.response.body!r}") from error
            return []

    (found,) = await _eventually(answer, f"{method} {path} is answered")
    return json.loads(found) if found else None


async def _eventually(condition: Callable[[], Awaitable[T]], what: str) -> T:
    # A type checker infers the type of the condition's result here.
    return await eventually(condition, what, 60.0)


async def until_state(url: str, connector: str, *states: str) -> dict[str, Any]:
    """
    Wait until a connector and each of its tasks have these states, and return its status.

    Args:
        url: The URL of any worker.
        connector: The name of the connector.
        states: The state of the connector, and that of each task.
    """

    async def status() -> dict[str, Any]:
        found: dict[str, Any] = await ask(url, "GET", f"/connectors/{connector}/status")
        present = (found["connector"]["state"], *(task["state"] for task in found["tasks"]))
        return found if present == states else {}

    return await _eventually(status, f"{connector} is {states}")


#: Runs the command line with so many file descriptors.
_WITH_LIMIT = (
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}));"
    " runpy.run_module('kiel_groups', run_name='__main__', alter_sys=True)"
)


class WorkerPrograms:
    """
    The processes of a group of workers.

    Args:
        cluster: The servers.
        group: The group's name.
        session_timeout_ms: The session timeout of the workers.
        descriptors: The file descriptors that each process may have; by default, as many as this one.
        options: Further options of the workers.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        session_timeout_ms: int,
        *,
        descriptors: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._cluster = cluster
        start = ["-m", "kiel_groups"] if descriptors is None else ["-c", _WITH_LIMIT.format(descriptors)]
        # The kernel kills the workers with this process, which may be killed itself.
        self._words = [
            "--pdeathsig",
            "KILL",
            "--",
            sys.executable,
            *start,
            "workers",
            "run",
            "--group",
            group,
            "--port",
            "0",
        ]
        self._words += ["--zookeeper", cluster.zk_hosts, "--brokers", ",".join(cluster.brokers)]
        self._words += ["--session-timeout-ms", str(session_timeout_ms), *options]
        self._stack = ExitStack()
        self.running: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.process.send_signal(signal.SIGCONT)
        self._stack.close()

    async def add(self, count: int = 1) -> list[Running]:
        """Start workers, and wait until the REST interface of each answers."""
        added = [self._stack.enter_context(Running(self._words, program="setpriv")) for _ in range(count)]
        self.running += added
        for process in added:
            await eventually(partial(_url, process), "the worker serves its REST interface", 60.0)
        return added

    @property
    def url(self) -> str:
        """The URL of the first worker."""
        return self.url_of(self.running[0])

    def url_of(self, process: Running) -> str:
        """Return the URL of a worker that ``add`` has returned."""
        return _url(process) or ""


def _url(process: Running) -> str | None:
    found = re.search(r"REST interface of this worker is at (\S+)", "\n".join(process.errors))
    return found[1] if found else None


async def numbers_in(cluster: Cluster, topic: str, tasks: Iterable[str]) -> dict[str, int]:
    """
    Return the largest number that each task has written to a topic; see ``JournalTask``.

    Fail if a number below that is missing, or if there are other tasks.
    """
    numbers: dict[str, set[int]] = {task: set() for task in tasks}
    async with SingleConsumer(cluster.brokers, deserializer=bytes.decode) as consumer:
        values = await consumer.consume(topic, SingleConsumer.BEGINNING)
        while values:
            for value in values:
                task, number = value.split()
                numbers[task].add(int(number))
            values = await consumer.consume(topic)
    for task, found in numbers.items():
        assert found == set(range(len(found))), f"{task}: numbers are missing among {sorted(found)}"
    return {task: max(found, default=-1) for task, found in numbers.items()}
