"""``kiel-groups mirror``: options, mistakes before anything is written, and the report."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from kiel_groups.cli.app import run
from kiel_groups.cli.parameters.mirror_clusters import MirrorClusters
from kiel_groups.cli.terminal import mirror_run
from kiel_groups.cli.terminal.mirror_report import MirrorProgress, mirror_problems
from kiel_groups.errors import (
    ConfigError,
    ConnectorExistsError,
    KielGroupsError,
    NoBrokersError,
    UnknownConnectorError,
)
from kiel_groups.group.znodes.worker_contents import TargetState, WorkState, WorkStatus
from kiel_groups.mirror import mirror_view
from kiel_groups.mirror.connector import MirrorConnector
from kiel_groups.mirror.mirror_view import MirrorView, PartitionProgress
from kiel_groups.mirror.settings import parse_properties
from kiel_groups.model import TopicPartition
from kiel_groups.ops import loaded_groups
from kiel_groups.ops.loaded_groups import Logs
from kiel_groups.workers.plugins.config_definition import Password
from kiel_groups.workers.plugins.connector_checks import run_settings
from kiel_groups.workers.stores.worker_group_view import WorkerGroup
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, ConnectorId, TaskId, Work

pytestmark = pytest.mark.unit

START = ("mirror", "start", "--from", "z:2181", "--to", "new:9092", "--topics", "a*")
CONFIG = {
    "connector.class": "Mirror",
    "name": "mirror",
    "tasks.max": "2",
    "topics": "a*",
    "source.zookeeper": "z:2181",
    "source.bootstrap.servers": "old:9092",
    "target.bootstrap.servers": "new:9092",
}
#: The method that a fixture replaces.
RUN = mirror_run.MirrorRun.run
RUNNING = WorkStatus(WorkState.RUNNING, "h:1")
FAILED = WorkStatus(WorkState.FAILED, "h:1", "Traceback\n  x\nkiel_groups.errors.KielGroupsError: it is broken")


def mirror(
    config: Mapping[str, str] | None = CONFIG, statuses: Mapping[Work, WorkStatus] = {}, workers: int = 0
) -> MirrorView:
    """Return a mirror with two partitions in one task. With None, there is no connector."""
    works: list[Work] = [ConnectorId("mirror"), TaskId("mirror", 0)]
    connectors = {} if config is None else {"mirror": ConnectorEntry(config, tasks=({},))}
    ids = {f"w{number}": b'{"url": "http://127.0.0.1:1", "host": "mover"}' for number in range(workers)}
    found = dict.fromkeys(works, RUNNING) | dict(statuses)
    group = WorkerGroup(ids, ConfigSnapshot(1, connectors), dict.fromkeys(works, "w0"), found, ())
    task = TaskId("mirror", 0)
    first = PartitionProgress(TopicPartition("a", 0), "copy.a", task, False, 7, 0, 9, 7, 70, 1)
    second = PartitionProgress(TopicPartition("b", 0), "copy.b", task, is_back=True, left=5)
    return MirrorView("mirror", group, (first, second), seen_ms=3_001)


class Printed(NamedTuple):
    """The exit status of a command, and its lines on both outputs."""

    status: int
    out: list[str]
    err: list[str]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[mirror_run.MirrorRun]:
    """Replace the servers and the run of a mirror, and return the runs."""
    made: list[mirror_run.MirrorRun] = []

    async def logs(*_: object) -> Logs:
        return Logs({}, {TopicPartition("a", 0): 9}, "")

    monkeypatch.setattr(MirrorClusters, "source_brokers", lambda _: "old:9092")
    monkeypatch.setattr(MirrorConnector, "checked_topics", lambda *_, **__: {"a": 1})
    monkeypatch.setattr(loaded_groups, "find_logs", logs)
    monkeypatch.setattr(mirror_view, "read_mirror", lambda *_, **__: mirror(None))
    monkeypatch.setattr(mirror_view, "with_checkpoints", lambda view, *_, **__: view)
    monkeypatch.setattr(mirror_run.MirrorRun, "run", lambda self: made.append(self))
    return made


@pytest.fixture
def command(runs: list[object], capsys: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    """Return a function that runs ``kiel-groups``."""

    def run_command(*words: str) -> Printed:
        status = run(list(words))
        out, err = capsys.readouterr()
        return Printed(status, out.splitlines(), err.splitlines())

    return run_command


def test_options_become_settings(
    command: Callable[..., Printed], runs: list[mirror_run.MirrorRun], tmp_path: Path
) -> None:
    """An option that is not given leaves its setting to the connector. Secrets come from a file."""
    assert command(*START) == (0, [], [])
    assert (runs[0].config, runs[0].logs, runs[0].worker.group) == (CONFIG, None, "mirror")
    file = tmp_path / "target.properties"
    file.touch(0o600)
    file.write_text("# Secret.\n\nsasl.password = a=b\n")
    more = ["--name", "m", "--exactly-once", "--headers", "--topic-format", "old.${topic}", "--compression", "zstd"]
    more += ["--timestamp-field", "at", "--dead-letter-topic", "dead", "--set", "batch.records=5", "--until-caught-up"]
    assert command(*START, *more, "--target-properties", str(file)) == (0, [], [])
    assert runs[1].logs == Logs({}, {TopicPartition("a", 0): 9}, "")
    assert runs[1].config == CONFIG | {
        "name": "m",
        "exactly.once": "true",
        "headers.source": "true",
        "target.topic.format": "old.${topic}",
        "target.compression.type": "zstd",
        "target.properties": "${file:target.properties}",
        "timestamp.field": "at",
        "dead.letter.topic": "dead",
        "batch.records": "5",
    }
    # Tasks read the file again when they start. What is stored only names it.
    file.write_text('{"sasl.password": "renewed"}')
    found = run_settings(MirrorConnector, runs[1].config, None, runs[1].worker.secrets)
    assert found.settings["target.properties"] == Password('{"sasl.password": "renewed"}')
    assert "renewed" not in repr(runs[1].worker)
    file.write_text("bootstrap.servers=elsewhere:9092")
    status, _, (line,) = command(*START, "--target-properties", str(file))
    assert (status, "has bootstrap.servers; expected other settings, because --to names" in line) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--to a:b", "Invalid value for '--to': 'a:b' is not an address; expected 'host' or 'host:port'"),
        ("--from z:x", "Invalid value for '--from': "),
        ("--name a/b", "--name: 'a/b' is not a legal name"),
        ("--set batch.recrods=5", "--set: there is no setting 'batch.recrods'; did you mean 'batch.records'?"),
        ("--set batch.records", "--set: 'batch.records' given; expected NAME=VALUE"),
        ("--set topics=b", "--set: topics has an option of its own, --topics"),
        ("--set batch.records=x", "batch.records: 'x' given; expected a whole number"),
        ("--topic-format copy", "--topic-format: 'copy' given; expected a text with ${topic}"),
        ("--dead-letter-topic a/b", "--dead-letter-topic: 'a/b' given; expected the name of a topic"),
        ("--topics ,", "--topics: ',' given; expected names of topics, separated by commas"),
        (
            "--target-properties nowhere",
            "Invalid value for '--target-properties': nowhere cannot be read",
        ),
    ],
)
def test_a_wrong_option_is_refused(
    command: Callable[..., Printed], runs: list[object], options: str, message: str
) -> None:
    """The error is one line with exit status 2, and names the option."""
    status, out, (line,) = command(*START, *options.split())
    assert (status, out, runs) == (2, [], [])
    assert line.startswith(f"error: {message}")


def test_an_unknown_topic_is_refused(
    command: Callable[..., Printed], runs: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the connector names the option."""

    def checked(*_: object, **__: object) -> None:
        raise ConfigError("topics: the source has no topic 'a*'")

    monkeypatch.setattr(MirrorConnector, "checked_topics", checked)
    assert command(*START) == (2, [], ["error: --topics: the source has no topic 'a*'"])
    assert runs == []


def test_without_its_library_a_mirror_does_not_start(monkeypatch: pytest.MonkeyPatch, command: Any) -> None:
    """The line says what to install, before any server is asked for the target."""
    monkeypatch.undo()
    monkeypatch.setattr(MirrorClusters, "source_brokers", lambda _: "old:9092")
    monkeypatch.setattr(MirrorConnector, "_topics", lambda _: {})
    monkeypatch.delitem(sys.modules, "kiel_groups.mirror.target", raising=False)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    status, _, (line,) = command(*START)
    assert status == 2
    assert "confluent-kafka is missing" in line


@pytest.mark.parametrize(
    ("config", "workers", "message"),
    [
        (
            CONFIG | {"topics": "b"},
            1,
            "error: the mirror 'mirror' runs in another process with other settings (topics): give the same ones",
        ),
        (CONFIG | {"connector.class": "x:FileStreamSink"}, 0, "error: --name: 'mirror' is the name of a connector of"),
        (CONFIG | {"topics": "b"}, 0, "info: the settings of the mirror 'mirror' change: topics"),
        (
            CONFIG | {"exactly.once": "true"},
            0,
            "info: the settings of the mirror 'mirror' change: exactly.once\nwarning: the mirror 'mirror' has written",
        ),
        (CONFIG | {"source.bootstrap.servers": "b", "connector.class": "Mirror"}, 1, ""),
    ],
    ids=[
        "other settings of a running mirror",
        "another connector",
        "other settings",
        "at least once",
        "another broker",
    ],
)
def test_the_stored_mirror_is_compared(
    command: Callable[..., Printed],
    runs: list[object],
    monkeypatch: pytest.MonkeyPatch,
    config: Mapping[str, str],
    workers: int,
    message: str,
) -> None:
    """A start changes the settings of a mirror only if no process runs the mirror."""
    monkeypatch.setattr(mirror_view, "read_mirror", lambda *_, **__: mirror(config, workers=workers))
    status, _, lines = command(*START)
    assert "\n".join(lines).startswith(message)
    assert (status, len(runs)) == ((2, 0) if "error" in message else (0, 1))
    status, _, lines = command(*START, "--quiet")
    assert [line for line in lines if line.startswith("info: ")] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "b": true}', {"a": 1, "b": True}),
        (" # c\n\na = b = c\n", {"a": "b = c"}),
        ("{", "is not JSON: "),
        ('{"a": []}', "has no text or number for 'a'"),
        ("a=b\nsecret", "has no setting in line 2; expected NAME=VALUE"),
    ],
)
def test_properties_are_json_or_lines(text: str, expected: Any) -> None:
    """An error does not quote the text, which may be a password."""
    if isinstance(expected, dict):
        assert parse_properties(text) == expected
        return
    with pytest.raises(ConfigError) as raised:
        parse_properties(text)
    assert str(raised.value).startswith(expected)


def test_the_status_of_a_mirror(command: Callable[..., Printed], monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is a problem with exit status 1. The report fits 80 columns."""
    monkeypatch.setattr(mirror_view, "read_mirror", lambda *_, **__: mirror(workers=1))
    status, out, _ = command("mirror", "status", "--from", "z:2181")
    assert max(map(len, out)) <= 80
    assert out[:2] == [
        "mirror mirror to new:9092, at least once, in 1 process",
        "7 records (70 bytes) of 2 topics, lag 7",
    ]
    assert [line.split() for line in out[2:] if line.strip(" ─-")] == [
        ["partition", "target", "position", "lag", "mirrored", "task"],
        ["a:0", "copy.a", "7", "2", "3", "s", "ago", "0"],
        ["b:0", "copy.b", "(back)", "-", "5", "0"],
        ["connector", "or", "task", "state", "worker"],
        ["mirror", "RUNNING", "mover", "(127.0.0.1:1)"],
        ["mirror-0", "RUNNING", "mover", "(127.0.0.1:1)"],
    ]
    assert status == 0
    failed = mirror(statuses={TaskId("mirror", 0): FAILED}, workers=1)
    monkeypatch.setattr(mirror_view, "read_mirror", lambda *_, **__: replace(failed, target_problem="no answer"))
    status, out, _ = command("mirror", "status", "--from", "z:2181")
    assert status == 1
    assert out[2:4] == [
        "problem: task mirror-0 has failed: KielGroupsError: it is broken",
        "problem: neither the checkpoints on the target nor how much is left to copy back is known: no answer",
    ]
    status, out, _ = command("mirror", "status", "--from", "z:2181", "--json")
    document = json.loads("".join(out))
    assert (status, document["lag"], document["records"]) == (1, 7, 7)
    assert [(each["direction"], each["lag"]) for each in document["partitions"]] == [("forward", 2), ("back", 5)]
    assert document["work"][1]["state"] == "FAILED"


def test_the_target_of_a_mirror_with_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is with the processes of the mirror. A command that needs the target asks for the file, too."""
    view = mirror(CONFIG | {"target.properties": "${file:target.properties}"})
    given = {"bootstrap.servers": "new:9092"}
    found = mirror_view.with_checkpoints(view, given, timeout_s=1)
    assert found.target_problem == "the mirror's workers have its target.properties; give --target-properties"
    opened: list[Mapping[str, Any]] = []

    def open_target(config: Mapping[str, Any]) -> None:
        opened.append(config)
        raise KielGroupsError("no answer")

    monkeypatch.setattr(mirror_view, "open_target", open_target)
    found = mirror_view.with_checkpoints(view, given | {"sasl.password": "x"}, timeout_s=1)
    assert (found.target_problem, opened) == ("no answer", [given | {"sasl.password": "x"}])


def test_the_status_of_no_mirror(command: Callable[..., Printed], monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the worker group and the ZooKeeper, or what an ACL hides: a mirror may then exist."""
    status, _, (line,) = command("mirror", "status", "--from", "z:2181", "--name", "x")
    assert status == 2
    assert line.startswith("error: there is no mirror 'x' in the worker group 'x' in ZooKeeper at z:2181; ")
    hidden = mirror_view.MirrorView("x", WorkerGroup({}, ConfigSnapshot(), {}, {}, (), ("/kiel-groups/x/connect",)))
    monkeypatch.setattr(mirror_view, "read_mirror", lambda *_, **__: hidden)
    status, _, (line,) = command("mirror", "status", "--from", "z:2181", "--name", "x")
    assert (status, line) == (1, "error: group x: an ACL denies reading /kiel-groups/x/connect")


def test_failures_end_the_process_that_has_them(runs: list[mirror_run.MirrorRun], command: Any, capsys: Any) -> None:
    """A run that has an end fails with any failure, because it would wait for ever. A worker may retry by itself."""
    view = mirror(statuses={TaskId("mirror", 0): FAILED}, workers=2)
    command(*START)
    command(*START, "--until-caught-up")
    command(*START, "--set", "restart.policy=backoff")
    endless, ending, retrying = runs
    for failing, address in ((endless, "h:1"), (ending, "h:2")):
        with pytest.raises(KielGroupsError, match=r"^mirror-0 failed: it is broken$"):
            failing._check(view, address, set())
    warned: set[Work] = set()
    endless._check(view, "h:2", warned)
    endless._check(view, "h:2", warned)
    retrying._check(view, "h:1", set())
    assert capsys.readouterr().err == "warning: mirror-0 failed in the process at h:1: it is broken\n"


def test_a_run_with_an_end_fails_if_a_topic_cannot_reach_it(
    runs: list[mirror_run.MirrorRun], command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It would wait for ever for a topic that is stopped or deleted, or that the connector does not copy. A cluster that
    does not answer is waited for.
    """
    monkeypatch.setattr(mirror_run, "_STILL_S", -1)
    monkeypatch.setattr(mirror_run, "_INTERVAL_S", 0)
    view = mirror()
    command(*START, "--until-caught-up")
    errors: list[Exception] = [NoBrokersError(), KielGroupsError("the topic a is stopped")]

    def checked(topic: str, *, awaited: Sequence[str]) -> Mapping[str, int]:
        assert awaited == ["a"]
        if errors:
            raise errors.pop(0)
        return {topic: 1}

    waits = WorkStatus(WorkState.RUNNING, "h:1", problem="the target refuses to add partitions")
    # A topic that has reached its end, and was turned round since, does not keep the others from theirs.
    logs = runs[0].logs
    assert logs is not None
    replace(runs[0], check=lambda **_: {"b": 1})._check_topics(logs, mirror(), ["b"])
    for text, topic in (("the topic a is stopped", "b"), ("the source has no topic a", "b"), (waits.problem, "a")):
        if topic == "a":
            view = mirror(statuses={ConnectorId("mirror"): waits})
            # While all partitions have tasks, the problem is one of another topic.
            replace(runs[0], check=lambda **_: {"a": 1})._check_topics(logs, view, ["a"])
            view = replace(view, partitions=view.partitions[1:])
        progress = MirrorProgress(mirror(), runs[0].logs)
        check = partial(checked, topic)
        worker = cast("Any", SimpleNamespace(url=""))
        following = replace(runs[0], check=check)._follow(worker, progress, str, repeat(view))
        with pytest.raises(KielGroupsError, match=f"^the mirror cannot catch up any more with a: {text}$"):
            asyncio.run(following)


def test_a_run_with_an_end_looks_once_more_whether_the_target_has_the_copies(
    runs: list[mirror_run.MirrorRun], command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic there may have been created again since it was copied. A target that does not answer is waited for."""
    monkeypatch.setattr(mirror_run, "_INTERVAL_S", 0)
    monkeypatch.setattr(mirror_run, "_PAUSE_FACTOR", 0)
    done = replace(mirror(), partitions=(mirror().partitions[0]._replace(position=9), mirror().partitions[1]))
    command(*START, "--until-caught-up")
    answers: list[Any] = [NoBrokersError(), {"a": "copy.a was created again"}, NoBrokersError(), {}]

    def lost(names: Mapping[str, str], *_: object) -> Any:
        assert names == {"a": "copy.a"}
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    target = SimpleNamespace(lost_topics=lost, last_ends=lambda _: {}, claims=dict)
    monkeypatch.setattr(MirrorClusters, "open_target", lambda _: target)

    def follow() -> None:
        progress = MirrorProgress(mirror(), runs[0].logs)
        asyncio.run(runs[0]._follow(cast("Any", SimpleNamespace(url="")), progress, str, repeat(done)))

    with pytest.raises(KielGroupsError, match=r"^the mirror is not complete: copy\.a was created again$"):
        follow()
    follow()
    assert answers == []


def test_the_last_line_of_a_run_has_what_waits(
    runs: list[mirror_run.MirrorRun], command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A partition without a task, which the target may refuse to add, is behind as well. A run that ends before it has
    stored its settings does not know what they add. One that has followed those of another process does.
    """
    command(*START)
    command(*START, "--topics", "a*,b")

    def read(*_: object, with_new: bool = False, **__: object) -> MirrorView:
        view = mirror()
        waiting = PartitionProgress(TopicPartition("a", 1), "a", None, start=0, end=5)
        return replace(view, partitions=(*view.partitions, waiting)) if with_new else view

    followed = list[MirrorView]()

    async def ended(_: object, progress: MirrorProgress, *__: object) -> int:
        for view in followed:
            progress.add(view)
        return 0

    monkeypatch.setattr(mirror_run, "read_mirror", read)
    monkeypatch.setattr(mirror_run.MirrorRun, "_run", ended)
    assert RUN(runs[0]) == 0
    assert capsys.readouterr().out.endswith("7 records behind, where the next start continues\n")
    assert RUN(runs[1]) == 0
    assert capsys.readouterr().out.endswith("; how far the mirror is behind is not known\n")
    followed.append(read())
    assert RUN(runs[1]) == 0
    assert capsys.readouterr().out.endswith("7 records behind, where the next start continues\n")


def test_a_run_says_that_its_mirror_is_paused(
    runs: list[mirror_run.MirrorRun], command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would wait without a reason. Each pause has one line, which says how the mirror continues, and its end too."""
    for name in ("_INTERVAL_S", "_PAUSE_FACTOR"):
        monkeypatch.setattr(mirror_run, name, 0)
    running, (row, back) = mirror(), mirror().partitions
    entry = ConnectorEntry(CONFIG, TargetState.PAUSED)
    paused = replace(running, group=replace(running.group, configuration=ConfigSnapshot(2, {"mirror": entry})))
    done = replace(running, partitions=(row._replace(position=9), back))
    views = iter([paused, paused, KielGroupsError("no answer"), running, paused, done])
    monkeypatch.setattr(mirror_run.MirrorRun, "_has_copies", lambda *_: True)
    command(*START, "--until-caught-up")
    progress, worker = MirrorProgress(running, runs[0].logs), cast("Any", SimpleNamespace(url="http://h:1"))
    asyncio.run(runs[0]._follow(worker, progress, str, views))
    line = (
        "warning: the mirror is paused, and copies nothing; 'kiel-groups connectors resume mirror --url http://h:1'"
        " continues it"
    )
    lines = [line, "info: the mirror continues", line, "info: the mirror continues"]
    assert (capsys.readouterr().err.splitlines(), list(views)) == (lines, [])


def test_a_lost_checkpoint_is_a_problem() -> None:
    """A checkpoint is written before the position is stored. So one before the position is not the last one."""
    view = mirror()
    lost = replace(view, partitions=tuple(each._replace(checkpoint=6) for each in view.partitions))
    assert list(mirror_problems(lost)) == [
        "the last checkpoint of a:0 on the target is at offset 6, before the stored position 7: the target has lost"
        " checkpoints"
    ]


def test_a_log_of_the_source_that_has_started_over_is_a_problem() -> None:
    """Its new records are not mirrored, so the lag is not 0, whether a process runs or not. No last line says 0."""
    view = mirror()
    restarted = replace(view, partitions=(view.partitions[0]._replace(end=5), view.partitions[1]))
    assert list(mirror_problems(restarted)) == [
        "the lag of a:0 is not known: its log on the source ends at offset 5, before the position 7: the topic was"
        " deleted and created again, or has lost records"
    ]
    progress = MirrorProgress(view, None)
    progress.add(restarted)
    assert progress.summary(2.0).endswith("; how far the mirror is behind is not known")


class RecordingRequests:
    """
    Records the changes of a connector that a run requests from its worker, which may have one already. A deletion may
    fail.
    """

    def __init__(self, stored: Mapping[str, str] | None = None, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self._stored, self._error = stored, error

    def __getattr__(self, name: str) -> Any:
        async def call(*_: object) -> Any:
            self.calls.append(name)
            if name == "delete" and self._error is not None:
                raise self._error
            if name == "create" and self._stored is not None:
                raise ConnectorExistsError("mirror")
            return self._stored

        return call


@pytest.mark.parametrize(
    ("config", "workers", "expected"),
    [
        (None, 0, ["create", "resume"]),
        (None, 1, ["create", "resume"]),
        (CONFIG, 0, ["put_config", "resume"]),
        (CONFIG | {"topics": "b"}, 0, ["delete", "create", "resume"]),
        (CONFIG, 1, ["resume"]),
    ],
    ids=["new", "new in a group with workers", "resumed", "changed", "running"],
)
def test_the_settings_are_stored_before_tasks_start(
    command: Callable[..., Printed],
    runs: list[mirror_run.MirrorRun],
    config: Mapping[str, str] | None,
    workers: int,
    expected: list[str],
) -> None:
    """Tasks with former settings are deleted before they start, because they could fail. Offsets stay."""
    command(*START)
    requests: Any = RecordingRequests()
    asyncio.run(replace(runs[0], first=mirror(config, workers=workers))._configure(requests))
    assert requests.calls == expected


def test_of_two_first_starts_with_different_settings_one_fails(command: Any, runs: list[mirror_run.MirrorRun]) -> None:
    """The settings of the first one stay. A start with the same settings shares its tasks."""
    command(*START)
    first = replace(runs[0], first=mirror(None))
    other, same = RecordingRequests(CONFIG | {"topics": "b"}), RecordingRequests(CONFIG)
    with pytest.raises(ConfigError, match=r"runs in another process with other settings \(topics\)"):
        asyncio.run(first._configure(cast("Any", other)))
    asyncio.run(first._configure(cast("Any", same)))
    assert [other.calls, same.calls] == [["create", "config"], ["create", "config", "resume"]]


def test_two_starts_may_change_the_settings_at_once(command: Any, runs: list[mirror_run.MirrorRun]) -> None:
    """The later one finds that the connector with the former settings is deleted, or that the new one is there."""
    command(*START)
    requests = RecordingRequests(CONFIG, UnknownConnectorError("gone"))
    asyncio.run(replace(runs[0], first=mirror(CONFIG | {"topics": "b"}))._configure(cast("Any", requests)))
    assert requests.calls == ["delete", "create", "config", "resume"]
