"""Workers that die, freeze or lose their servers, and tasks that fail, hang or return garbage."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.embedded import Cluster, ZooKeeperServer
from kiel_groups.workers.execution import worker as worker_module
from kiel_groups.workers.execution.worker import Worker
from kiel_groups.workers.session import WorkerSession
from kiel_groups.zookeeper.tasks import ProcessContext
from tests.helpers.journal_connector import BLOCKING_SOURCE, JOURNAL_SOURCE, check_order, journal_source
from tests.helpers.waiting import eventually, throughout
from tests.helpers.worker_groups import WorkerPrograms, ask, until_state, worker_on
from tests.helpers.worker_journals import RECOVERY_S, Journal, journal_on
from tests.proxies.fault_proxy import FaultProxy

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]

SESSION_TIMEOUT_MS = 4_000


async def test_workers_are_killed_frozen_stopped_and_added(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """
    All tasks of a killed or frozen worker run on others after its session timeout, those of a stopped one at once. A
    frozen worker that continues delivers and commits nothing for its former tasks. No task runs twice at a time; no
    line between file and topic and file is lost, and some may be repeated.
    """
    journal = await journal_on(cluster_39, unique, tmp_path)
    lines, read, written = unique("lines"), tmp_path / "read.txt", tmp_path / "written.txt"
    await cluster_39.create_topic(lines, 1)
    expected: list[str] = []

    async def copied(step: str) -> None:
        added = [f"{step} {number}" for number in range(200)]
        expected.extend(added)
        with read.open("a") as file:
            file.writelines(f"{line}\n" for line in added)
        await eventually(lambda: set(expected) <= set(written.read_text().splitlines()), f"{step}: all lines", 60.0)

    with WorkerPrograms(cluster_39, unique("workers"), SESSION_TIMEOUT_MS) as workers:
        first, second, third = await workers.add(3)
        pids = [process.process.pid for process in (first, second, third)]
        for name, tasks in {"c1": 3, "c2": 3, "c3": 2}.items():
            await journal.create(workers.url, name, tasks)
        source = {"connector.class": "FileStreamSource", "file": str(read), "topic": lines}
        sink = {"connector.class": "FileStreamSink", "file": str(written), "topics": lines}
        for name, config in {"source": source, "sink": sink}.items():
            await ask(workers.url, "POST", "/connectors", {"name": name, "config": config})
        await eventually(written.exists, "the sink has started", RECOVERY_S)
        await journal.all_run(*pids)
        await copied("before")
        os.kill(pids[2], signal.SIGKILL)
        await journal.all_run(*pids[:2])
        await copied("killed")
        os.kill(pids[1], signal.SIGSTOP)
        journal.frozen.add(pids[1])
        await journal.all_run(pids[0])
        await copied("frozen")
        os.kill(pids[1], signal.SIGCONT)
        await journal.all_run(*pids[:2])
        (fourth,) = await workers.add()
        await journal.all_run(*pids[:2], fourth.process.pid)
        await copied("added")
        assert await asyncio.to_thread(second.end, signal.SIGTERM) == 143
        await journal.all_run(pids[0], fourth.process.pid)
        await copied("stopped")
        for process in (first, fourth):
            assert await asyncio.to_thread(process.end, signal.SIGTERM) == 143
    await journal.check()
    arrived = list(dict.fromkeys(written.read_text().splitlines()))
    assert arrived == expected, "each line arrives, the first time in its order"


async def test_the_configuration_changes_during_a_rebalance(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """Connectors are created, changed and deleted while a worker joins and one leaves: the last configuration runs."""
    journal, group = await journal_on(cluster_39, unique, tmp_path), unique("workers")
    second = worker_on(cluster_39, group)
    async with worker_on(cluster_39, group) as first:
        await journal.create(first.url, "c1", 2)
        await ask(first.url, "POST", "/connectors", {"name": "gone", "config": journal_source(tmp_path / "g", "g", 1)})
        await journal.all_run()
        joining = asyncio.ensure_future(second.start())
        await journal.create(first.url, "c2", 2)
        await ask(first.url, "PUT", "/connectors/c1/config", journal.config("c1", 4))
        await ask(first.url, "DELETE", "/connectors/gone")
        await joining
        await journal.all_run()
        leaving = asyncio.ensure_future(second.close())
        await journal.create(first.url, "c3", 1)
        await ask(first.url, "PUT", "/connectors/c2/config", journal.config("c2", 3))
        await leaving
        await journal.all_run()
        assert await ask(first.url, "GET", "/connectors") == ["c1", "c2", "c3"]
        for name, tasks in {"c1": 4, "c2": 3, "c3": 1}.items():
            await until_state(first.url, name, *["RUNNING"] * (1 + tasks))
    check_order(journal.entries())
    await journal.check()


async def test_a_task_raises(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """
    The task is FAILED with its trace, until a user restarts it, or by ``restart.policy`` after a delay. It repeats what
    was not stored; other tasks continue.
    """
    journal = await journal_on(cluster_39, unique, tmp_path)
    async with worker_on(cluster_39, unique("workers")) as worker:
        await journal.create(worker.url, "stays")
        await journal.create(worker.url, "returns", restart_policy="backoff", restart_backoff_ms=200)
        await journal.all_run()
        journal.misbehave("raise")
        status = await until_state(worker.url, "stays", "RUNNING", "FAILED")
        assert "RuntimeError: raises as ordered" in status["tasks"][0]["trace"]
        starts = len([entry for entry in journal.entries("start") if entry.task == "stays-0"])
        await until_state(worker.url, "returns", "RUNNING", "FAILED")
        journal.misbehave("")
        await until_state(worker.url, "returns", "RUNNING", "RUNNING")
        await until_state(worker.url, "stays", "RUNNING", "FAILED")
        assert len([entry for entry in journal.entries("start") if entry.task == "stays-0"]) == starts
        await ask(worker.url, "POST", "/connectors/stays/tasks/0/restart")
        await journal.all_run()
    check_order(journal.entries())
    await journal.check()


async def test_a_connector_or_a_task_returns_garbage(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """Only the connector or the task that returned it is FAILED, with a trace that says what was expected."""
    journal = await journal_on(cluster_39, unique, tmp_path)
    async with worker_on(cluster_39, unique("workers")) as worker:
        await journal.create(worker.url, "c")
        await journal.all_run()
        await journal.create_other(worker.url, "bad", "configs")
        status = await until_state(worker.url, "bad", "FAILED")
        assert "task_configs returned settings that are not texts by name" in status["connector"]["trace"]
        await until_state(worker.url, "c", "RUNNING", "RUNNING")
        journal.misbehave("garbage")
        status = await until_state(worker.url, "c", "RUNNING", "FAILED")
        assert "poll returned a list with str; expected SourceRecord" in status["tasks"][0]["trace"]
        journal.misbehave("")
        await ask(worker.url, "POST", "/connectors/c/tasks/0/restart")
        await journal.all_run()
    await journal.check()


async def test_hundreds_of_idle_connections_to_a_worker(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """
    The REST interface takes one in four of the file descriptors that the process may have; the log says so. Then a new
    connection replaces the one that has been idle for the longest time. The session, the tasks and their statuses are
    not affected.
    """
    journal, name = await journal_on(cluster_39, unique, tmp_path), unique("source")
    session_timeout_ms = 2 * SESSION_TIMEOUT_MS
    with WorkerPrograms(cluster_39, unique("workers"), session_timeout_ms, descriptors=160) as workers:
        (worker,) = await workers.add()
        await journal.create(workers.url, name, 3)
        pid = worker.process.pid
        await journal.all_run(pid)
        host, _, port = workers.url.removeprefix("http://").partition(":")
        with ExitStack() as opened:
            # Some are accepted, 128 wait in the system's queue.
            for _ in range(165):
                connection = opened.enter_context(socket.socket())
                connection.setblocking(False)
                await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
            await eventually(lambda: any("accepts no connection" in line for line in worker.errors), "it pauses")
            began_s = _cpu_s(pid)
            # An event loop that is busy, or that has no descriptor for a new connection, would lose the session.
            await throughout(
                lambda: len(journal.entries("start")) == 3, "no task starts again", session_timeout_ms / 1000
            )
            used_s = _cpu_s(pid) - began_s
            await journal.all_run(pid)
        await until_state(workers.url, name, "RUNNING", "RUNNING", "RUNNING", "RUNNING")
    assert used_s < session_timeout_ms / 1000 / 2
    assert len(journal.entries("start")) == 3
    await journal.check()


def _cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_task_hangs_in_stop(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """
    After ``task.stop.timeout.ms`` the task is FAILED and the rebalance continues. The next owner starts the task when
    the call has returned, with a larger fencing token.
    """
    journal, group = await journal_on(cluster_39, unique, tmp_path), unique("workers")
    async with worker_on(cluster_39, group) as first, worker_on(cluster_39, group) as second:
        urls = {worker.url.split("/")[2]: worker.url for worker in (first, second)}
        await journal.create(first.url, "c", task_stop_timeout_ms=500)
        await until_state(first.url, "c", "RUNNING", "RUNNING")
        await journal.all_run()
        status = await until_state(first.url, "c", "RUNNING", "RUNNING")
        owner = status["tasks"][0]["worker_id"]
        starts = len(journal.entries("start"))
        journal.misbehave("hang")
        # One more connector, without tasks, moves the task to the other worker.
        await journal.create_other(urls[owner], "a", "none")
        await until_state(first.url, "a", "RUNNING")
        status = await until_state(first.url, "c", "RUNNING", "FAILED")
        assert status["tasks"][0]["worker_id"] == owner
        assert "did not stop within 0.5 s" in status["tasks"][0]["trace"]
        assert len(journal.entries("start")) == starts
        journal.misbehave("")
        status = await until_state(first.url, "c", "RUNNING", "RUNNING")
        assert status["tasks"][0]["worker_id"] == next(address for address in urls if address != owner)
        await journal.all_run()
    check_order(journal.entries())
    await journal.check()


async def test_a_worker_is_stopped_while_a_task_hangs(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """
    ``kiel-groups workers run`` gives everything else back, names the task, and ends without its ZooKeeper session, with
    status 1. The task runs on another worker after the session timeout, when the call cannot run any more.
    """
    journal = await journal_on(cluster_39, unique, tmp_path)
    with WorkerPrograms(cluster_39, unique("workers"), SESSION_TIMEOUT_MS) as workers:
        first, second = await workers.add(2)
        await journal.create(workers.url, "c", 3, task_stop_timeout_ms=500)
        await journal.all_run(first.process.pid, second.process.pid)
        journal.misbehave("block")
        await eventually(lambda: {entry.task for entry in journal.entries("block")} == journal.tasks, "all block")
        blocked = {entry.task for entry in journal.entries("block") if entry.pid == second.process.pid}
        assert await asyncio.to_thread(second.end, signal.SIGTERM) == 1
        (error,) = [line for line in second.errors if "this worker ends although" in line]
        assert all(task in error for task in blocked)
        journal.misbehave("")
        await journal.all_run(first.process.pid)
    await journal.check()


@pytest.mark.parametrize("source", [JOURNAL_SOURCE, BLOCKING_SOURCE], ids=["thread", "loop"])
async def test_a_worker_is_killed_by_a_second_signal(
    cluster_39: Cluster, unique: Unique, tmp_path: Path, source: str
) -> None:
    """It waits for nothing then, also not for a task that hangs, even if that blocks the event loop."""
    journal = await journal_on(cluster_39, unique, tmp_path)
    with WorkerPrograms(cluster_39, unique("workers"), SESSION_TIMEOUT_MS) as workers:
        (worker,) = await workers.add()
        await journal.create(workers.url, "c", 1, task_stop_timeout_ms=600_000, connector_class=source)
        await journal.all_run(worker.process.pid)
        journal.misbehave("block")
        await eventually(lambda: journal.entries("block"), "the task blocks")

        def interrupted() -> bool:
            worker.process.send_signal(signal.SIGINT)
            return worker.process.poll() is not None

        await eventually(interrupted, "the worker has ended")
        assert worker.wait() == -signal.SIGINT
    await journal.check()


async def test_a_worker_of_a_program_waits_for_a_task_that_hangs(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """``Worker.close`` returns when the call has returned; the other worker starts the task after that."""
    journal, group = await journal_on(cluster_39, unique, tmp_path), unique("workers")
    first, second = (worker_on(cluster_39, group, session_timeout_ms=6_000) for _ in range(2))
    async with second:
        await first.start()
        await journal.create(second.url, "c", 2, task_stop_timeout_ms=500)
        await until_state(second.url, "c", "RUNNING", "RUNNING", "RUNNING")
        await journal.all_run()
        journal.misbehave("block")
        await eventually(lambda: {entry.task for entry in journal.entries("block")} == journal.tasks, "all block")
        starts = len(journal.entries("start"))
        closing = asyncio.ensure_future(first.close())
        await eventually(lambda: first.metrics.total("work_abandoned"), "the task is abandoned")
        # The session timeout passes.
        await throughout(lambda: not closing.done() and len(journal.entries("start")) == starts, "it waits", 8.0)
        journal.misbehave("")
        await closing
        await journal.all_run()
    check_order(journal.entries())
    await journal.check()


async def test_zookeeper_of_workers_is_stopped_and_started(
    cluster_39: Cluster, start_zookeeper: Callable[..., ZooKeeperServer], unique: Unique, tmp_path: Path
) -> None:
    """Tasks deliver nothing while ZooKeeper is gone, and continue when it is back. Nothing is lost."""
    server = start_zookeeper()
    journal = await journal_on(cluster_39, unique, tmp_path)
    async with AsyncExitStack() as stack:
        settings = {"zookeeper": server.hosts, "session_timeout_ms": 6_000}
        workers = [await stack.enter_async_context(worker_on(cluster_39, "workers", **settings)) for _ in range(2)]
        await journal.create(workers[0].url, "c", 4)
        await journal.all_run()
        await server.stop()
        await eventually(lambda: all(has_lost_sessions(worker) for worker in workers), "all sessions are given up")
        starts = len(journal.entries("start"))
        await eventually(lambda: len(journal.entries("stopped")) == starts, "all tasks have stopped")
        polls = len(journal.entries("poll"))
        await throughout(lambda: len(journal.entries("poll")) == polls, "no task is polled", 0.5)
        await server.start()
        await journal.all_run()
        for worker in workers:
            await until_state(worker.url, "c", *["RUNNING"] * 5)
    await journal.check()


def has_lost_sessions(worker: Worker) -> bool:
    return worker.metrics.total("sessions_lost") > 0


@pytest.mark.parametrize("leads", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["leader", "other"])
async def test_a_worker_on_brokers_loses_zookeeper(
    shared_clusters: Callable[..., Cluster], unique: Unique, tmp_path: Path, leads: bool
) -> None:
    """
    The brokers do not notice that. A leader whose configuration is behind that of the other worker assigns nothing.
    A worker that is behind its assignment starts nothing. Either one leaves the group after six seconds; the other
    worker leads, and runs all tasks. The former one joins again when it has ZooKeeper.
    """
    cluster = shared_clusters("3.9.5", "0.9.0.1")
    settings = {"coordination": "brokers", "session_timeout_ms": 6_000}
    with FaultProxy(cluster.zk_hosts) as proxy:
        group, journal = unique("workers"), await journal_on(cluster, unique, tmp_path)
        cut_off = worker_on(cluster, group, zookeeper=proxy.address, **settings)
        await check_without_configuration(proxy, journal, cut_off, worker_on(cluster, group, **settings), leads=leads)


async def test_a_worker_loses_only_the_session_of_its_claims(
    cluster_39: Cluster, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    ZooKeeper coordinates the workers, and the membership on the worker's other session continues. The worker cannot
    read the configuration, and does the same as one on brokers: it leaves the group after six seconds.
    """
    with FaultProxy(cluster_39.zk_hosts) as proxy:
        group, journal = unique("workers"), await journal_on(cluster_39, unique, tmp_path)
        session = worker_module.WorkerSession

        def on_proxy(process: ProcessContext, *arguments: Any) -> WorkerSession:
            servers = replace(process.zookeeper, hosts=proxy.address)
            return session(replace(process, zookeeper=servers), *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(worker_module, "WorkerSession", on_proxy)
            cut_off = worker_on(cluster_39, group, session_timeout_ms=6_000)
        await check_without_configuration(proxy, journal, cut_off, worker_on(cluster_39, group), leads=True)


async def check_without_configuration(
    proxy: FaultProxy, journal: Journal, cut_off: Worker, other: Worker, *, leads: bool
) -> None:
    """Stall the ``proxy`` through which a worker has its claims and the configuration, and heal it."""
    first, second = (cut_off, other) if leads else (other, cut_off)
    async with first, second:
        await journal.create(other.url, "c", 4)
        await journal.all_run()
        await eventually(lambda: running_on(cut_off) and running_on(other), "both have tasks", RECOVERY_S)
        assert cut_off._member.leads == leads
        proxy.stall()
        await eventually(lambda: has_lost_sessions(cut_off), "its session is given up")
        # A change that was made just before, and that the worker has not read.
        await other._herder.role.config.put_connector("d", {**journal.config("d", 1), "name": "d"}, is_new=True)
        if leads:
            await eventually(lambda: other.metrics.total("config_mismatches"), "nothing is assigned")
        await eventually(lambda: cut_off.metrics.total("workers_unsynced") == 1, "it leaves", RECOVERY_S)
        await eventually(lambda: running_on(other) == 5, "the other worker has all tasks", RECOVERY_S)
        await journal.all_run()
        assert running_on(cut_off) == 0
        proxy.heal()
        await eventually(lambda: running_on(cut_off) and running_on(other), "both have tasks again", RECOVERY_S)
        await journal.all_run()
        assert cut_off.metrics.total("workers_unsynced") == 1
    await journal.check()


def running_on(worker: Worker) -> float:
    """Return the number of tasks that are assigned to a worker."""
    return worker.kafka_metrics()["connect-coordinator-metrics"]["assigned-tasks"] or 0
