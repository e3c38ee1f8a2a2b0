"""``kiel-groups workers``: a worker runs until a signal, and a group is described from its znodes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kiel_groups.cli.app import run
from kiel_groups.cli.commands import workers as commands
from kiel_groups.group.znodes.worker_contents import ConfigChange, WorkerInfo, WorkState, WorkStatus
from kiel_groups.metrics import Metrics
from kiel_groups.workers.execution.worker_settings import WorkerSettings
from kiel_groups.workers.stores import worker_group_view
from kiel_groups.workers.stores.worker_group_view import WorkerGroup
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, ConnectorId, TaskId, Work
from tests.helpers.commands import logging_of_a_command

pytestmark = pytest.mark.unit

RUN = ["workers", "run", "--group", "loaders", "--zookeeper", "z:2181/kafka", "--brokers", "k1:9092"]
RUNNING = WorkStatus(WorkState.RUNNING, "10.0.0.1:8083", generation=3)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """
    Replace the worker by one that signals its own process when it runs, and notes its settings and its end.

    The logging that the command sets up ends with the test.
    """
    noted: list[Any] = []
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    class Worker:
        def __init__(self, settings: WorkerSettings, on_stuck: object) -> None:
            noted.append(settings)
            self.metrics = Metrics()

        async def run(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                await asyncio.Event().wait()
            finally:
                noted.append("ended")

    module = ModuleType("kiel_groups.workers.execution.worker")
    module.Worker = Worker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with logging_of_a_command():
        yield noted
    # After the first signal, a second one kills the process.
    for each, handler in handlers.items():
        signal.signal(each, handler)


def test_a_worker_runs_until_a_signal(started: list[Any], tmp_path: Path) -> None:
    """SIGTERM ends the worker in order, and the exit status says so. The options are the worker's settings."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("t0ken-of-all-workers\n")
    options = "--host 0.0.0.0 --port 0 --advertised-host w1 --allocator sticky --session-timeout-ms 6000"
    options += " --debounce-ms 20 --debounce-bound-ms 40 --initial-delay-ms 60"
    assert run([*RUN, *options.split(), "--token-file", str(token)]) == 143
    settings, end = started
    assert end == "ended"
    assert (settings.group, settings.zookeeper, settings.brokers) == ("loaders", "z:2181/kafka", "k1:9092")
    assert (settings.coordination, settings.allocator, settings.session_timeout_ms) == ("zookeeper", "sticky", 6000)
    debounce = settings.debounce_quiet_ms, settings.debounce_bound_ms, settings.debounce_initial_delay_ms
    assert debounce == (20, 40, 60)
    assert (settings.rest.token, settings.rest.url(7)) == ("t0ken-of-all-workers", "http://w1:7")


def test_the_classes_of_a_worker_come_from_all_sources_of_options(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has a list or a text; the environment comes before it, and the command line before both."""
    file = tmp_path / "config.toml"
    file.write_text('[workers.run]\nplugin-classes = ["installed", "acme"]\n')
    assert run(["--config", str(file), *RUN]) == 143
    monkeypatch.setenv("KIEL_GROUPS_WORKERS_RUN_PLUGIN_CLASSES", "HttpSink, acme")
    assert run(["--config", str(file), *RUN]) == 143
    assert run(["--config", str(file), *RUN, "--plugin-classes", "installed"]) == 143
    assert [settings.plugin_classes for settings in started[::2]] == [
        ["installed", "acme"],
        ["HttpSink", "acme"],
        ["installed"],
    ]


def test_the_defaults_of_a_worker(started: list[Any]) -> None:
    """By default, a worker listens on loopback, on Kafka Connect's port."""
    assert run([*RUN, "--coordination", "brokers"]) == 143
    assert (started[0].coordination, started[0].rest.url(started[0].rest.port)) == ("brokers", "http://127.0.0.1:8083")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--host 0.0.0.0", "error: --host: other machines can connect to 0.0.0.0, and no token is given"),
        ("--debounce-ms 1001", "error: --debounce-ms: 1001 given; expected at most --debounce-bound-ms, which is 1000"),
        ("--port 70000", "error: Invalid value for '--port': 70000 is not in the range 0<=x<=65535."),
        ("--allocator stick", "error: --allocator: there is no allocator of work 'stick'"),
        ("--group a/b", "error: --group: 'a/b' is not a legal name"),
    ],
)
def test_wrong_options_are_refused(
    started: list[Any], capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    """The error is one line with exit status 2, before the worker starts."""
    assert run([*RUN, *options.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)
    assert started == []


def described(monkeypatch: pytest.MonkeyPatch, found: WorkerGroup) -> None:
    """Have the command find this group in ZooKeeper."""

    @contextmanager
    def session(hosts: str, **settings: float) -> Any:
        yield None

    monkeypatch.setattr("kiel_groups.ops.zookeeper_client.zookeeper", session)
    monkeypatch.setattr(worker_group_view, "describe_workers", lambda client, group: found)
    monkeypatch.setattr(commands, "SERVER_WAIT_S", 0.0)


def group(
    statuses: Mapping[Work, WorkStatus], workers: tuple[str, ...] = ("w1", "w2"), problem: str = ""
) -> WorkerGroup:
    """Return a group with one connector of two tasks, whose work the first worker has."""
    entry = ConnectorEntry({"db.password": "hunter2"}, tasks=({}, {}), problem=problem)
    works: list[Work] = [ConnectorId("logs"), TaskId("logs", 0), TaskId("logs", 1)]
    return WorkerGroup(
        workers={worker: b'{"url": "http://10.0.0.1:8083"}' if worker == "w1" else b"garbage" for worker in workers},
        configuration=ConfigSnapshot(7, {"logs": entry}),
        owners=dict.fromkeys(works, "w1") if workers else {},
        statuses=dict.fromkeys(works, RUNNING) | dict(statuses),
        history=(ConfigChange(offset=7, what="tasks", connector="logs", worker="w1", at_ms=5, keys=("a",), uid="u"),),
    )


def test_a_group_is_described(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The tables have workers, also idle ones, and all work with its owner."""
    found = group({})
    # A worker whose own znode is gone is shown by its id.
    described(monkeypatch, replace(found, owners={**found.owners, TaskId("logs", 1): "w3"}))
    assert run(["workers", "describe", "loaders", "--zookeeper", "z:2181", "--check"]) == 0
    out = capsys.readouterr().out
    assert "\n\n\n" not in out
    lines = [line.split() for line in out.splitlines() if line.strip(" ─")]
    assert lines == [
        ["group", "loaders:", "2", "workers,", "1", "connector,", "2", "tasks,", "configuration", "offset", "7"],
        ["worker", "connectors", "tasks", "znode"],
        ["10.0.0.1:8083", "1", "1", "w1"],
        ["-", "0", "0", "w2"],
        ["connector", "or", "task", "state", "worker"],
        ["logs", "RUNNING", "10.0.0.1:8083"],
        ["logs-0", "RUNNING", "10.0.0.1:8083"],
        ["logs-1", "RUNNING", "w3"],
    ]


def test_a_group_fits_eighty_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With host names of a usual length, no cell is folded."""
    worker = "loaders_vm-17-1795658702899-100019c1ea90006"
    works = group({}).configuration.works()
    found = replace(group({}), workers={worker: b'{"url": "http://vm-17:8083"}'}, owners=dict.fromkeys(works, worker))
    described(monkeypatch, found)
    assert run(["workers", "describe", "loaders", "--zookeeper", "z:2181"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_group_without_anything_says_how_to_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group whose connectors were deleted, and whose workers have ended, has no tables and no problem."""
    described(monkeypatch, WorkerGroup({}, ConfigSnapshot(6), {}, {}, ()))
    assert run(["workers", "describe", "loaders", "--zookeeper", "z:2181", "--check"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "group loaders: 0 workers, 0 connectors, 0 tasks, configuration offset 6",
        "no worker is alive; 'kiel-groups workers run --group loaders --zookeeper z:2181' starts one",
    ]


def test_znodes_that_an_acl_hides_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is readable is shown, and the group is not called unknown if nothing is."""
    described(monkeypatch, replace(group({}), closed=("/kiel-groups/loaders/history",)))
    assert run(["workers", "describe", "loaders", "--zookeeper", "z:2181", "--check"]) == 1
    shown = capsys.readouterr()
    assert "2 workers, 1 connector" in shown.out
    assert "warning: an ACL denies reading parts of group loaders: /kiel-groups/loaders/history" in shown.err
    described(monkeypatch, WorkerGroup({}, ConfigSnapshot(), {}, {}, (), ("/kiel-groups/loaders/workers",)))
    assert run(["workers", "describe", "loaders", "--zookeeper", "z:2181"]) == 1
    assert "group loaders: an ACL denies reading /kiel-groups/loaders/workers" in capsys.readouterr().err


def test_a_group_is_described_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The document has all that the tables have, and the history, but no settings."""
    described(monkeypatch, group({}))
    assert run(["workers", "describe", "loaders", "--zookeeper", "z:2181", "--json"]) == 0
    out = capsys.readouterr().out
    document = json.loads(out)
    assert "hunter2" not in out
    assert (document["offset"], document["problems"]) == (7, [])
    assert document["workers"] == [{"worker": "w1", "url": "http://10.0.0.1:8083"}, {"worker": "w2", "url": ""}]
    assert document["connectors"] == [{"name": "logs", "target": "STARTED", "problem": "", "tasks": 2}]
    assert document["work"][1] == {
        "connector": "logs",
        "task": 0,
        "state": "RUNNING",
        "owner": "w1",
        "rest": "10.0.0.1:8083",
        "generation": 3,
        "trace": "",
        "problem": "",
    }
    change = {"offset": 7, "what": "tasks", "connector": "logs", "worker": "w1", "at_ms": 5, "settings": ["a"]}
    assert document["history"] == [change]


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (
            group({TaskId("logs", 1): WorkStatus(WorkState.FAILED, "w", "Traceback:\nValueError: no\n")}),
            "task logs-1 has failed: ValueError: no",
        ),
        (
            replace(
                group({}),
                workers={
                    f"w{number}": WorkerInfo(url=f"http://h{number}:8083", token_digest=digest).encode()
                    for number, digest in enumerate(["", "a1b2", "a1b2", None])
                },
            ),
            "workers have different tokens, so requests that one forwards to another fail: h1:8083, h2:8083 / h0:8083",
        ),
        (
            replace(
                group({}),
                workers={
                    f"w{number}": WorkerInfo(url=f"http://h{number}:8083", coordination=coordination).encode()
                    for number, coordination in enumerate(["zookeeper", "brokers", None, "zookeeper"])
                },
            ),
            "workers have different coordinations, so neither kind knows of the other's assignments: brokers (h1:8083)"
            " / zookeeper (h0:8083, h3:8083)",
        ),
        (group({ConnectorId("logs"): WorkStatus(WorkState.FAILED, "w")}), "connector logs has failed: for an unknown"),
        (
            replace(group({TaskId("logs", 0): WorkStatus(WorkState.UNASSIGNED, "")}), owners={}),
            "task logs-0 does not run: it has no worker at the moment",
        ),
        (
            group({TaskId("logs", 0): WorkStatus(WorkState.UNASSIGNED, "")}),
            "task logs-0 is not running yet on 10.0.0.1:8083; see the log of that worker",
        ),
        (
            group({TaskId("logs", 0): WorkStatus(WorkState.UNASSIGNED, "", problem="no broker answered")}),
            "task logs-0 is not running yet on 10.0.0.1:8083: no broker answered",
        ),
        (
            group({TaskId("logs", 0): WorkStatus(WorkState.RUNNING, "", problem="no broker knows the topic t")}),
            "task logs-0 reports: no broker knows the topic t",
        ),
        (
            group({ConnectorId("logs"): WorkStatus(WorkState.RUNNING, "", problem="the source has no topic t")}),
            "connector logs reports: the source has no topic t",
        ),
        (
            replace(
                group({ConnectorId("logs"): WorkStatus(WorkState.UNASSIGNED, "")}), owners={ConnectorId("logs"): "w3"}
            ),
            "connector logs is not running yet on w3; see the log of that worker",
        ),
        (group({}, workers=()), "no worker is alive, so no connector runs"),
        (group({}, problem="field 'tasks' is missing"), "connector logs: field 'tasks' is missing"),
    ],
)
def test_problems_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: WorkerGroup, problem: str
) -> None:
    """Each problem is a line, and has ``--check`` exit with 1."""
    described(monkeypatch, found)
    assert run(["workers", "describe", "loaders", "--zookeeper", "z:2181"]) == 0
    assert f"problem: {problem}" in capsys.readouterr().out
    assert run(["workers", "describe", "loaders", "--zookeeper", "z:2181", "--check"]) == 1


def test_a_group_without_workers_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group that never had a worker is probably misspelt."""
    described(monkeypatch, WorkerGroup({}, ConfigSnapshot(), {}, {}, ()))
    assert run(["workers", "describe", "loader", "--zookeeper", "z:2181"]) == 2
    assert capsys.readouterr().err == (
        "info: no worker of group loader is alive; looking again for 0 s\n"
        "error: there are no workers of group 'loader' in ZooKeeper at z:2181\n"
    )


def test_a_worker_that_was_just_started_is_awaited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes some seconds until a process has registered; a shell that has started it goes on at once."""
    loads = [replace(group({}), workers={}), replace(group({}), workers={}), group({})]
    described(monkeypatch, group({}))
    monkeypatch.setattr(worker_group_view, "describe_workers", lambda client, group: loads.pop(0))
    monkeypatch.setattr(commands, "SERVER_WAIT_S", 60.0)
    monkeypatch.setattr(commands, "_POLL_S", 0.0)
    assert run(["workers", "describe", "loaders", "--zookeeper", "z:2181"]) == 0
    assert capsys.readouterr().out.startswith("group loaders: 2 workers")
    assert loads == []
