"""Workers that are processes: killed, frozen, stopped and added, while every task runs, and never twice at a time."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from kiel_groups import SingleConsumer
from kiel_groups.embedded import Cluster
from tests.helpers.commands import Running
from tests.helpers.journal_connector import JOURNAL_SOURCE, Entry, check_journal, read_journal
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

SESSION_MS = 4_000
CONNECTORS, TASKS = 5, 2


class Workers:
    """The processes of a group of workers, and the journal of their tasks."""

    def __init__(self, cluster: Cluster, group: str, folder: Path) -> None:
        self._cluster = cluster
        self._group = group
        self.journal = folder / "journal.txt"
        self._stack = ExitStack()
        self.running: list[Running] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.process.send_signal(signal.SIGCONT)
        self._stack.close()

    async def add(self) -> Running:
        """Start a worker, and wait until its REST interface answers."""
        words = ["-m", "kiel_groups", "workers", "run", "--group", self._group, "--port", "0"]
        words += ["--zookeeper", self._cluster.zk_hosts, "--brokers", ",".join(self._cluster.brokers)]
        process = self._stack.enter_context(Running([*words, "--session-timeout-ms", str(SESSION_MS)]))
        await eventually(lambda: self.url(process), "the worker serves its REST interface", 60.0)
        self.running.append(process)
        return process

    @staticmethod
    def url(process: Running) -> str | None:
        found = re.search(r"REST interface of this worker is at (\S+)", "\n".join(process.errors))
        return found[1].rstrip("/") if found else None

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the first worker; try again during a rebalance."""
        request = HTTPRequest(
            f"{self.url(self.running[0])}{path}",
            method,
            headers={"Content-Type": "application/json"},
            body=None if body is None else json.dumps(body),
            allow_nonstandard_methods=True,
        )

        async def answer() -> Any:
            try:
                return await AsyncHTTPClient().fetch(request)
            except HTTPClientError as error:
                if error.code not in (409, 503):
                    raise
                return None

        return json.loads((await eventually(answer, f"{method} {path}", 60.0)).body or b"null")

    def entries(self) -> list[Entry]:
        return read_journal(self.journal)

    async def all_run(self, *pids: int) -> None:
        """Wait until every task is polled anew, by processes with these ids."""
        begin = len(self.entries())

        def polled() -> bool:
            newest = {entry.task: entry.pid for entry in self.entries()[begin:] if entry.what == "poll"}
            return len(newest) == CONNECTORS * TASKS and set(newest.values()) <= set(pids)

        await eventually(polled, f"all tasks run in {pids}", 60.0)
        check_journal(self.entries())


async def test_every_task_runs_once_whatever_happens_to_its_worker(
    cluster_39: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """
    One of three workers is killed, one frozen past its session and continued, one stopped, one added.

    Each time, all tasks run on the others soon. No task is ever polled beside a newer run. Each record is in its topic.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    with Workers(cluster_39, unique("workers"), tmp_path) as workers:
        first, second, third = [await workers.add() for _ in range(3)]
        pids = [process.process.pid for process in (first, second, third)]
        for number in range(CONNECTORS):
            config = {"connector.class": JOURNAL_SOURCE, "tasks.max": str(TASKS), "topic": topic}
            config["journal"] = str(workers.journal)
            await workers.ask("POST", "/connectors", {"name": f"c{number}", "config": config})
        await workers.all_run(*pids)
        os.kill(pids[2], signal.SIGKILL)
        await workers.all_run(*pids[:2])
        os.kill(pids[1], signal.SIGSTOP)
        await workers.all_run(pids[0])
        os.kill(pids[1], signal.SIGCONT)
        await workers.all_run(*pids[:2])
        fourth = await workers.add()
        await workers.all_run(*pids[:2], fourth.process.pid)
        assert await asyncio.to_thread(second.end, signal.SIGTERM) == 143
        await workers.all_run(pids[0], fourth.process.pid)
        for process in (first, fourth):
            await asyncio.to_thread(process.end, signal.SIGTERM)
        entries = workers.entries()
    check_journal(entries)
    assert {entry.pid for entry in entries} == {*pids, fourth.process.pid}
    await _check_numbers(cluster_39, topic, {f"c{c}-{task}" for c in range(CONNECTORS) for task in range(TASKS)})


async def _check_numbers(cluster: Cluster, topic: str, tasks: set[str]) -> None:
    """Check that each task has written all of its numbers, some of them perhaps twice."""
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    async with SingleConsumer(cluster.brokers, deserializer=bytes.decode) as consumer:
        values = await consumer.consume(topic, SingleConsumer.BEGINNING)
        while values:
            for value in values:
                task, number = value.split()
                numbers[task].add(int(number))
            values = await consumer.consume(topic)
    assert numbers.keys() == tasks
    for found in numbers.values():
        assert found == set(range(max(found) + 1))
