"""``kiel-groups workers describe`` on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.processes import ReservedPort
from kiel_groups.group.znodes.worker_contents import WorkerInfo
from kiel_groups.workers.session import WorkerRole, WorkerSession
from tests.helpers.commands import Running, kiel_groups_here
from tests.helpers.contexts import process_context
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import ask, until_state, worker_on

pytestmark = pytest.mark.integration

URL = "http://127.0.0.1:8083"


async def test_a_group_of_workers_is_described(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """The live worker, the connector and its tasks are shown, without secrets. Work without an owner is a problem."""
    group = unique("group")
    process = process_context(GroupConfig(group=group), ZooKeeperConfig.parse(cluster_39.zk_hosts))
    opened: list[WorkerRole] = []
    worker = WorkerSession(process, WorkerInfo(url=URL), opened.append, lambda role: None, lambda error: None)
    await worker.start()
    try:
        (role,) = opened
        store = role.config
        await store.put_connector("a/b", {"connector.class": "x:Y", "db.password": "hunter2"})
        await store.put_task_configs("a/b", [{"n": "1"}, {"n": "2"}])
        words = ["workers", "describe", group, "--zookeeper", cluster_39.zk_hosts]
        table, checked = kiel_groups_here(*words), kiel_groups_here(*words, "--json", "--check")
        worker_id = role.worker_id
    finally:
        await worker.close()
    assert (table.returncode, table.stderr) == (0, "")
    assert f"group {group}: 1 worker, 1 connector, 2 tasks, configuration offset 2" in table.stdout
    assert "problem: task a/b-1 does not run: it has no worker at the moment" in table.stdout
    document = json.loads(checked.stdout)
    assert (checked.returncode, document["workers"]) == (1, [{"worker": worker_id, "url": URL}])
    assert [(work["connector"], work["task"]) for work in document["work"]] == [("a/b", None), ("a/b", 0), ("a/b", 1)]
    assert [change["what"] for change in document["history"]] == ["created", "tasks"]
    assert "hunter2" not in table.stdout + checked.stdout


def test_an_unknown_group_is_refused(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """The error names the group and the place, with exit status 2."""
    done = kiel_groups_here("workers", "describe", group := unique("group"), "--zookeeper", cluster_39.zk_hosts)
    text = f"error: there are no workers of group {group!r} in ZooKeeper at {cluster_39.zk_hosts}"
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (2, "", text)


@pytest.fixture
def unused() -> Iterator[ReservedPort]:
    """Provide a port at which nothing listens."""
    port = ReservedPort()
    yield port
    port.release()


def test_a_worker_without_zookeeper_says_what_it_tries(unused: ReservedPort) -> None:
    """Long before it gives up, a warning names the servers and for how long it tries them."""
    place = f"127.0.0.1:{unused.number}"
    words = ["workers", "run", "--group", "g", "--zookeeper", place, "--brokers", place, "--port", "0", "--quiet"]
    with Running(["-m", "kiel_groups", *words]) as worker:
        worker.wait_for_error("", 12)
        assert worker.process.poll() is None
        line = worker.errors[0]
    assert f"warning: group g: no ZooKeeper server at {place} has answered for 3 s; trying for 12 s more" in line


async def test_a_worker_with_wrong_brokers_says_so(
    cluster_39: Cluster,
    unique: Callable[[str], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    unused: ReservedPort,
) -> None:
    """It warns once when it starts. A sink that waits for brokers is a problem of the worker that has claimed it."""
    caplog.set_level("WARNING", "kiel_groups.workers")
    place, group, name = f"127.0.0.1:{unused.number}", unique("workers"), unique("sink")
    config = {"connector.class": "FileStreamSink", "file": str(tmp_path / "f"), "topics": "t"}
    async with worker_on(cluster_39, group, brokers=place) as worker:
        warning = f"group {group}: no broker answered: {place}: "
        await eventually(lambda: warning in caplog.text, "the worker warns")
        assert "is it a broker that runs there?; tasks wait until one answers" in caplog.text
        await ask(worker.url, "POST", "/connectors", {"name": name, "config": config})
        await until_state(worker.url, name, "RUNNING", "UNASSIGNED")
        await eventually(lambda: f"task {name}-0: no broker answered" in caplog.text, "the task waits for brokers")
        async with asyncio.timeout(30):
            await until_problem(worker.url, name)
        words = ["workers", "describe", group, "--zookeeper", cluster_39.zk_hosts, "--check"]
        described = await asyncio.to_thread(kiel_groups_here, *words)
        assert described.returncode == 1
        address = worker.url.split("/")[2]
        (problem,) = [line for line in described.stdout.splitlines() if "problem" in line]
        start = f"problem: task {name}-0 is not running yet on {address}: no broker answered: {place}: "
        assert problem.startswith(start)
    assert caplog.text.count(warning) == 1


async def until_problem(url: str, connector: str) -> str:
    """Wait until the first task of a connector has a problem, and return that."""
    while True:
        found = await ask(url, "GET", f"/connectors/{connector}/tasks/0/status")
        if problem := found.get("problem"):
            return str(problem)
        await asyncio.sleep(0.05)


async def test_a_sink_whose_topic_is_missing_has_a_problem(
    cluster_39: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A warning comes when it is created, and checks name the topic until it exists."""
    group, topic, name = unique("workers"), unique("missing"), unique("sink")
    file = tmp_path / "sink.json"
    config = {"name": name, "connector.class": "FileStreamSink", "file": str(tmp_path / "f"), "topics": topic}
    file.write_text(json.dumps(config))
    async with worker_on(cluster_39, group) as worker:
        created = await asyncio.to_thread(kiel_groups_here, "connectors", "create", str(file), "--url", worker.url)
        assert (created.returncode, created.stderr.splitlines()[0]) == (
            0,
            f"warning: topics: no broker knows the topic {topic}",
        )
        await until_state(worker.url, name, "RUNNING", "RUNNING")
        async with asyncio.timeout(30):
            assert await until_problem(worker.url, name) == f"no broker knows the topic {topic}"
        problem = f"{name}-0 reports: no broker knows the topic {topic}"
        status = await asyncio.to_thread(kiel_groups_here, "connectors", "status", name, "--check", "--url", worker.url)
        assert (status.returncode, status.stdout.splitlines()[0]) == (1, f"problem: {problem}")
        words = ["workers", "describe", group, "--zookeeper", cluster_39.zk_hosts, "--check"]
        described = await asyncio.to_thread(kiel_groups_here, *words)
        assert (described.returncode, described.stdout.splitlines()[1]) == (1, f"problem: task {problem}")
