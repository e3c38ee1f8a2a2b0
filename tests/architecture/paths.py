"""
Count the modules and functions of this package that four everyday operations pass.

    python -m tests.architecture.paths [--functions]

- ``record``: from the socket's data to ``__anext__`` returning a member's record, which is the first of its answer.
- ``commit``: from the call of ``commit()`` to the write of its frame to ZooKeeper, on whichever thread.
- ``hops``: the functions of a commit that wait for each other when its request is passed to kazoo.
- ``pause``: from the request ``PUT /connectors/NAME/pause`` to its answer, in the worker that leads.
- ``describe``: the modules that ``kiel-groups describe GROUP`` loads.

A function counts once, however often it is called or resumed. Compiled functions do not count.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import click
from tornado.httpclient import AsyncHTTPClient, HTTPRequest

import kiel_groups
from kiel_groups import GroupedConsumer, Producer
from kiel_groups.embedded import Cluster
from kiel_groups.rest.settings import RestSettings
from kiel_groups.workers.execution.worker import Worker
from kiel_groups.workers.execution.worker_settings import WorkerSettings

PACKAGE = str(Path(kiel_groups.__file__).parent)

DESCRIBE = """
import sys
from kiel_groups.cli import main
try:
    main()
finally:
    print(sum(name.partition(".")[0] == "kiel_groups" for name in sys.modules), file=sys.stderr)
"""


class Call(NamedTuple):
    file: str
    function: str

    @property
    def is_ours(self) -> bool:
        return self.file.startswith(PACKAGE)


class Trace:
    """The calls of Python functions on all threads that start after ``install``, in their order, while it records."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._records = False
        #: The callers of the first ``_call``, kazoo's method for a request, outermost last.
        self.hops: list[Call] = []

    def install(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def start(self) -> None:
        self._calls.clear()
        self.hops.clear()
        self._records = True

    def stop(self) -> list[Call]:
        self._records = False
        return list(self._calls)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self._records and event == "call":
            self._calls.append(_call_of(frame))
            if frame.f_code.co_name == "_call" and not self.hops:
                self.hops = [_call_of(caller) for caller, _ in traceback.walk_stack(frame.f_back)]


def _call_of(frame: FrameType) -> Call:
    return Call(frame.f_code.co_filename, frame.f_code.co_qualname)


def last(calls: list[Call], function: str) -> int:
    """Return the index of a function's last call."""
    return max(index for index, call in enumerate(calls) if call.function == function)


def first(calls: list[Call], function: str) -> int:
    """Return the index of a function's first call."""
    return next(index for index, call in enumerate(calls) if call.function == function)


async def record_and_commit(cluster: Cluster, trace: Trace) -> dict[str, list[Call]]:
    """Return the calls of a record's delivery and of its commit, by a member that has read its topic to its end."""
    async with (
        Producer(cluster.brokers) as producer,
        GroupedConsumer(cluster.brokers, "paths", [cluster.zk_hosts], autocommit=False) as consumer,
    ):
        await consumer.subscribe(["topic"])
        await producer.produce("topic", b"value")
        records = aiter(consumer)
        await anext(records)
        waiting = asyncio.ensure_future(anext(records))
        await asyncio.sleep(1)
        trace.start()
        await producer.produce("topic", b"value")
        await waiting
        record = trace.stop()
        trace.start()
        await consumer.commit()
        commit = trace.stop()
        hops = [call for call in trace.hops if call.is_ours and not call.file.endswith("paths.py")]
    # The answer to the producer may come later than the one with its record.
    kept = last(record, "AnswerReader._keep_runs")
    begin = last(record[:kept], "AnswerStream.buffer_updated")
    written = first(commit, "ConnectionHandler._write")
    return {"record": record[begin:], "commit": commit[:written], "hops": hops[::-1]}


async def pause(cluster: Cluster, trace: Trace) -> list[Call]:
    """Return the calls of a worker that is asked to pause a connector, without those of its tasks."""
    settings = WorkerSettings(
        group="paths-workers", zookeeper=cluster.zk_hosts, brokers=",".join(cluster.brokers), rest=RestSettings(port=0)
    )
    config = {"connector.class": "FileStreamSource", "file": "/dev/null", "topic": "topic"}
    async with Worker(settings) as worker:
        await _ask(worker.url, "PUT", "/connectors/paths/config", config)
        trace.start()
        await _ask(worker.url, "PUT", "/connectors/paths/pause")
        calls = trace.stop()
    return calls[first(calls, "RequestHandler.__init__") : first(calls, "RequestHandler.finish")]


async def _ask(url: str, method: str, path: str, body: object = None) -> None:
    import json

    await AsyncHTTPClient().fetch(
        HTTPRequest(
            url.rstrip("/") + path,
            method,
            headers={"Content-Type": "application/json"},
            body=None if body is None else json.dumps(body),
            allow_nonstandard_methods=True,
        )
    )


def described(cluster: Cluster) -> int:
    """Return the number of modules of this package that ``kiel-groups describe`` loads."""
    words = ["describe", "paths", "--zookeeper", cluster.zk_hosts]
    ended = subprocess.run([sys.executable, "-c", DESCRIBE, *words], capture_output=True, text=True, check=False)
    return int(ended.stderr.split()[-1])


async def measure(cluster: Cluster) -> dict[str, list[Call]]:
    trace = Trace()
    trace.install()
    await cluster.create_topic("topic", 1)
    found = await record_and_commit(cluster, trace)
    found["pause"] = await pause(cluster, trace)
    return found


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--functions", is_flag=True, help="Print the functions, in the order of their first calls.")
def main(functions: bool) -> None:
    with Cluster() as cluster:
        found = asyncio.run(measure(cluster))
        modules = described(cluster)
    for name, calls in found.items():
        passed = list(dict.fromkeys(call for call in calls if call.is_ours))
        click.echo(f"{name:<10} {len({call.file for call in passed}):>4} modules {len(passed):>5} functions")
        if functions:
            for call in passed:
                click.echo(f"    {Path(call.file).relative_to(PACKAGE)}: {call.function}")
    click.echo(f"{'describe':<10} {modules:>4} modules loaded")


if __name__ == "__main__":
    main()
