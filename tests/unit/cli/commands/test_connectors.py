"""``kiel-groups connectors`` and ``connector-plugins``, against workers that serve REST over HTTP on loopback."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kiel_groups.cli.app import run
from kiel_groups.cli.commands.connectors import _short_names
from kiel_groups.errors import KielGroupsError, RebalanceError
from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus
from kiel_groups.workers.values import ConnectorId, TaskId
from tests.helpers.fake_workers import PLUGIN, FakeGroup, FakeWorker, serving_on_thread

pytestmark = pytest.mark.unit

TOKEN = "t0ken-of-all-workers"
CONFIG = {"connector.class": "FileStreamSource", "tasks.max": "2", "db.password": "hunter2", "name": "logs"}


class Printed(NamedTuple):
    """The exit status of a command, and its lines on both outputs."""

    status: int
    out: list[str]
    err: list[str]


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    """Return a worker with one connector."""
    group = FakeGroup()
    group.add("logs", CONFIG)
    made = FakeWorker(group)
    with serving_on_thread(made):
        yield made


@pytest.fixture
def command(
    worker: FakeWorker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Printed]:
    """Return a function that runs ``kiel-groups`` with the worker's URL in the environment."""
    monkeypatch.setenv("KIEL_GROUPS_WORKER_URL", worker.url)

    def run_command(*words: str) -> Printed:
        status = run(list(words))
        out, err = capsys.readouterr()
        return Printed(status, out.splitlines(), err.splitlines())

    return run_command


def rows(lines: list[str]) -> list[list[str]]:
    """Return the cells of a table, which are separated by two blanks or more."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines if line.strip(" ─")]


def test_connectors_are_listed(worker: FakeWorker, command: Callable[..., Printed]) -> None:
    """The table counts the tasks by their states; JSON is what REST answers."""
    worker.group.states[TaskId("logs", 1)] = WorkStatus(WorkState.FAILED, "w:1", "no")
    status, out, err = command("connectors", "list")
    assert (status, err) == (0, [])
    assert rows(out) == [
        ["connector", "type", "state", "tasks", "class"],
        ["logs", "source", "RUNNING", "1 running, 1 failed", "FileStreamSource"],
    ]
    found = json.loads("\n".join(command("connectors", "list", "--json").out))
    assert found["logs"]["info"]["config"]["db.password"] == "[hidden]"
    worker.group.configs.clear()
    assert command("connectors", "list").out == ["there is no connector; 'kiel-groups connectors create' creates one"]


@pytest.mark.parametrize("nested", [True, False])
def test_a_connector_is_created_from_a_file(
    worker: FakeWorker, command: Callable[..., Printed], tmp_path: Path, nested: bool
) -> None:
    """The file has the settings, or the body that Kafka Connect takes."""
    config = {"connector.class": "FileStreamSource", "tasks.max": 3}
    file = tmp_path / "new.json"
    file.write_text(json.dumps({"name": "new", "config": config} if nested else {"name": "new", **config}))
    status, out, err = command("connectors", "create", str(file))
    assert (status, out) == (0, [])
    assert err == ["info: connector new created; 'kiel-groups connectors status new' shows what it does"]
    assert worker.group.configs["new"] == {"connector.class": "FileStreamSource", "tasks.max": "3", "name": "new"}
    status, out, err = command("connectors", "create", str(file), "--name", "other", "--json")
    assert (status, json.loads("\n".join(out))["name"], err) == (0, "other", [])
    assert worker.group.configs["other"]["name"] == "other"


def test_a_new_connector_is_warned_of_unknown_settings(
    worker: FakeWorker, command: Callable[..., Printed], tmp_path: Path
) -> None:
    """A setting that its class does not declare is stored; a class that the worker cannot check has no warnings."""
    file = tmp_path / "new.json"
    file.write_text('{"connector.class": "FileStreamSource", "extra.a": "1", "extra.b": "2"}')
    status, out, err = command("connectors", "create", str(file), "--name", "new", "--json")
    assert (status, json.loads("\n".join(out))["name"]) == (0, "new")
    assert err == [f"warning: extra.{name}: there is no such setting" for name in "ab"]
    status, _, err = command("connectors", "config", "new", "connector.class=other.module:Class")
    assert (status, err) == (0, ["info: connector new has 4 settings now; changed: connector.class"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "FILE is not JSON: "),
        ("name=c\n", "FILE is not JSON: Expecting value: line 1 column 1 (char 0); expected an object"),
        ("[]", "FILE has no JSON object; expected the settings of a connector by name"),
        ("{}", "the connector has no name; give one by 'name' in the file, or by --name"),
        ('{"name": "new"}', "connector.class: required, but not given"),
        ('{"name": "logs", "connector.class": "x"}', "connector 'logs' already exists"),
    ],
)
def test_a_wrong_file_is_refused(
    worker: FakeWorker, command: Callable[..., Printed], tmp_path: Path, content: str, message: str
) -> None:
    """The error is one line, with exit status 2: the caller can correct the file."""
    file = tmp_path / "new.json"
    file.write_text(content)
    status, out, err = command("connectors", "create", str(file))
    assert (status, out, len(err)) == (2, [], 1)
    assert err[0].startswith(f"error: {message.replace('FILE', str(file))}")
    assert worker.group.done == []


def test_settings_are_shown_and_changed(worker: FakeWorker, command: Callable[..., Printed], tmp_path: Path) -> None:
    """Single settings are sent alone, and the others stay; a file replaces all."""
    assert ["db.password", "[hidden]"] in rows(command("connectors", "config", "logs").out)
    status, out, err = command("connectors", "config", "logs", "tasks.max=5", "extra=a=b")
    assert (status, out) == (0, [])
    assert err == [
        "warning: extra: there is no such setting",
        "info: connector logs has 5 settings now; added: extra; changed: tasks.max",
    ]
    assert worker.group.configs["logs"] == CONFIG | {"tasks.max": "5", "extra": "a=b"}
    file = tmp_path / "all.json"
    file.write_text('{"connector.class": "FileStreamSource"}')
    new_secret = command("connectors", "config", "logs", "db.password=new")
    assert new_secret.err[-1] == "info: connector logs has 5 settings now; changed: db.password"
    status, out, err = command("connectors", "config", "logs", "--file", str(file), "--json")
    assert (status, json.loads("\n".join(out))) == (0, {"connector.class": "FileStreamSource", "name": "logs"})
    assert err == ["info: connector logs has 2 settings now; removed: db.password, extra, tasks.max"]
    assert command("connectors", "config", "logs", "name=logs").err[-1].endswith("; nothing has changed")
    assert command("connectors", "config", "logs", "tasks.max").status == 2
    assert command("connectors", "config", "logs", "a=b", "--file", str(file)).status == 2
    assert command("connectors", "config", "absent", "a=b").err == ["error: connector 'absent' does not exist"]


TRACE = 'Traceback (most recent call last):\n  File "task.py", line 1, in put\n    raise\nValueError: no\nmore of it\n'


def test_the_status_has_problems_states_and_traces(worker: FakeWorker, command: Callable[..., Printed]) -> None:
    """It begins with the cause of each failure in one line; the trace is shown if it is asked for."""
    worker.group.states[TaskId("logs", 1)] = WorkStatus(WorkState.FAILED, "w:1", TRACE)
    status, out, err = command("connectors", "status", "logs")
    shown = [
        ["problem: logs-1 has failed: ValueError: no"],
        ["connector or task", "state", "worker"],
        ["logs", "RUNNING", "10.0.0.1:8083"],
        ["logs-0", "RUNNING", "10.0.0.1:8083"],
        ["logs-1", "FAILED", "w:1"],
    ]
    assert (status, rows(out), err) == (0, shown, [])
    out = command("connectors", "status", "logs", "--trace").out
    assert rows(out)[5:7] == [["logs-1:"], ["Traceback (most recent call last):"]]
    assert out[-1] == "more of it"
    assert out.count("") == 2, "one empty line separates the problems, the table and the trace"


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (WorkStatus(WorkState.RUNNING, "w:1"), ""),
        (WorkStatus(WorkState.PAUSED, "w:1"), ""),
        (WorkStatus(WorkState.FAILED, "w:1", TRACE), "has failed: ValueError: no"),
        (WorkStatus(WorkState.FAILED, "w:1", "one line"), "has failed: one line"),
        (
            WorkStatus(WorkState.FAILED, "w:1", "  calls\nkiel_groups.errors.ConfigError: x"),
            "has failed: ConfigError: x",
        ),
        (WorkStatus(WorkState.FAILED, "w:1"), "has failed: for an unknown reason"),
        (WorkStatus(WorkState.UNASSIGNED, ""), "does not run: it has no worker at the moment"),
        (WorkStatus(WorkState.UNASSIGNED, "w:1", problem="no broker answered"), "does not run yet: no broker answered"),
        (WorkStatus(WorkState.RUNNING, "w:1", problem="no topic"), "reports: no topic"),
    ],
)
def test_a_check_names_what_is_wrong(
    worker: FakeWorker, command: Callable[..., Printed], found: WorkStatus, problem: str
) -> None:
    """``--check`` fails if work has failed, has no worker or makes no progress, and its first line says why."""
    worker.group.states[TaskId("logs", 1)] = found
    status, out, _ = command("connectors", "status", "logs", "--check")
    assert status == (1 if problem else 0)
    assert [line for line in out if "problem" in line] == ([f"problem: logs-1 {problem}"] if problem else [])
    document = json.loads("\n".join(command("connectors", "status", "logs", "--json").out))
    assert document["tasks"][1].get("problem", "") == found.problem
    tasks = rows(command("connectors", "list").out)[1][3]
    assert ("without progress" in tasks) is bool(found.problem)


def test_a_misspelt_setting_is_refused(worker: FakeWorker, command: Callable[..., Printed], tmp_path: Path) -> None:
    """A new setting that nearly has the name of another one is not stored, unless that is forced."""
    file = tmp_path / "new.json"
    file.write_text(json.dumps({"name": "new", "connector.class": "FileStreamSource", "flie": "f"}))
    refusal = (
        "error: flie: there is no such setting; did you mean 'file'? Nothing is stored; --force stores such a setting"
        " all the same"
    )
    assert command("connectors", "create", str(file)) == (2, [], [refusal])
    assert command("connectors", "config", "logs", "flie=f") == (2, [], [refusal])
    assert worker.group.done == []
    assert command("connectors", "create", str(file), "--force").status == 0
    assert command("connectors", "config", "new", "file=g").status == 0, "what is stored already is not refused"
    assert worker.group.configs["new"]["flie"] == "f"


def test_single_settings_are_removed(worker: FakeWorker, command: Callable[..., Printed]) -> None:
    """The other settings stay, also secrets; a setting that is not there is named."""
    command("connectors", "config", "logs", "a=1", "b=2", "c=3")
    status, out, err = command("connectors", "config", "logs", "--remove", "a", "--remove", "b", "c=4")
    assert (status, out) == (0, [])
    assert err == ["info: connector logs has 5 settings now; changed: c; removed: a, b"]
    assert worker.group.configs["logs"] == CONFIG | {"c": "4"}
    status, _, err = command("connectors", "config", "logs", "--remove", "task.max")
    expected = "error: --remove: the connector has no setting 'task.max'; did you mean 'tasks.max'?"
    assert (status, err) == (2, [expected])


@pytest.mark.parametrize(
    ("words", "done", "said"),
    [
        ("pause logs", ["pause logs"], "connector logs pauses"),
        ("resume logs", ["resume logs"], "connector logs resumes"),
        ("delete logs", ["delete logs"], "connector logs deleted"),
        ("restart logs", ["restart logs"], "connector logs restarts"),
        ("restart logs --task 1", ["restart logs-1"], "task logs-1 restarts"),
        (
            "restart logs --with-tasks",
            ["restart logs", "restart logs-0", "restart logs-1"],
            "connector logs restarts",
        ),
        ("restart logs --with-tasks --only-failed", [], "connector logs restarts where it has failed"),
    ],
)
def test_a_connector_is_changed(
    worker: FakeWorker, command: Callable[..., Printed], words: str, done: list[str], said: str
) -> None:
    """Each command does what it says, and says what follows on standard error."""
    assert command("connectors", *words.split()) == (0, [], [f"info: {said}"])
    assert [what for _, what in worker.group.done] == done


def test_a_connector_with_an_odd_name_is_found(worker: FakeWorker, command: Callable[..., Printed]) -> None:
    """Names are encoded in paths."""
    worker.group.add("a/b c?ü", CONFIG | {"name": "a/b c?ü"})
    assert command("connectors", "pause", "a/b c?ü").status == 0
    assert worker.group.done == [(worker.url, "pause a/b c?ü")]


def test_plugins_are_listed(command: Callable[..., Printed]) -> None:
    """The table and JSON have what is installed."""
    status, out, err = command("connector-plugins")
    assert (status, rows(out), err) == (
        0,
        [["connector", "type", "version"], ["FileStreamSource", "source", "1.0"]],
        [],
    )
    found = json.loads("\n".join(command("connector-plugins", "--json").out))
    assert found == [{"class": PLUGIN, "type": "source", "version": "1.0"}]


def test_a_name_that_two_plugins_have_is_shown_in_full() -> None:
    """Each name in the table is one that connector.class takes: no two classes have the same one."""
    assert _short_names(["a.SinkConnector", "b.SinkConnector", "b.Source"]) == {
        "a.SinkConnector": "a.SinkConnector",
        "b.SinkConnector": "b.SinkConnector",
        "b.Source": "Source",
    }


def test_a_worker_without_connectors_says_what_to_give(worker: FakeWorker, command: Callable[..., Printed]) -> None:
    """No table without rows is printed: the reader could take it for a failure."""
    worker.group.has_plugins = False
    text = f"no connectors are installed at {worker.url}; connector.class takes 'module:Class'"
    assert command("connector-plugins") == (0, [text], [])
    assert command("connector-plugins", "--json").out == ["[]"]


@pytest.mark.parametrize("words", ["status", "pause", "resume", "restart", "restart --task 1", "delete", "config"])
def test_an_unknown_connector_is_named(command: Callable[..., Printed], words: str) -> None:
    """The error is one line, with exit status 2."""
    name, *options = words.split()
    assert command("connectors", name, "absent", *options) == (2, [], ["error: connector 'absent' does not exist"])


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (KielGroupsError("the disk is full"), 1, "error: the disk is full"),
        (ZeroDivisionError("by zero"), 1, "error: ZeroDivisionError: by zero"),
    ],
)
def test_a_failure_of_the_worker_is_reported(
    worker: FakeWorker, command: Callable[..., Printed], error: Exception, status: int, text: str
) -> None:
    """The exit status is 1: the caller cannot correct this."""
    worker.error = error
    printed = command("connectors", "list")
    # The worker of this test is in the same process, and its own log may go to the same place.
    assert (printed.status, printed.out, printed.err[-1]) == (status, [], text)


def test_a_command_waits_for_the_end_of_a_rebalance(
    worker: FakeWorker, command: Callable[..., Printed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that a rebalance has refused is sent again; after a time the error is reported."""
    monkeypatch.setattr("kiel_groups.workers.rest.client._PAUSE_S", 0.01)
    worker.rebalancing = True
    refused: list[bool] = []

    def is_rebalancing() -> bool:
        refused.append(True)
        return len(refused) < 3

    monkeypatch.setattr(worker, "is_rebalancing", is_rebalancing)
    assert command("connectors", "delete", "logs").status == 0
    assert len(refused) == 3
    monkeypatch.setattr("kiel_groups.workers.rest.client._PAUSE_S", 60)
    worker.error = RebalanceError("not now")
    assert command("connectors", "list") == (1, [], ["error: not now"])


def test_a_command_waits_until_a_dead_leader_is_replaced(
    worker: FakeWorker, command: Callable[..., Printed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot forward a change answers 503 with ``Retry-After``, and the command sends it again."""
    monkeypatch.setattr("kiel_groups.workers.rest.client._PAUSE_S", 0.01)
    asked: list[bool] = []
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}"

        def leader_url() -> str:
            asked.append(True)
            return dead if len(asked) < 3 else worker.url

        monkeypatch.setattr(worker, "leader_url", leader_url)
        assert command("connectors", "delete", "logs").status == 0
    assert (len(asked), worker.group.done) == (3, [(worker.url, "delete logs")])


def test_the_token_is_read_from_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right token, the error says where to give it. A file that others can read causes a warning."""
    file, worker = tmp_path / "token", FakeWorker(FakeGroup())
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    with serving_on_thread(worker, token=TOKEN):
        assert run(["connectors", "list", "--url", worker.url, "--token-file", str(file)]) == 0
        assert capsys.readouterr().err == ""
        assert run(["connectors", "list", "--url", worker.url]) == 2
        # The server is a thread of this process, so its log may be in this output, too.
        advice = "asks for a token; give the file with it by '--token-file', or by KIEL_GROUPS_TOKEN_FILE"
        assert f"\nerror: the worker at {worker.url} {advice}" in "\n" + capsys.readouterr().err
        other = tmp_path / "other"
        other.write_text(TOKEN + "!")
        other.chmod(0o600)
        assert run(["connectors", "list", "--url", worker.url, "--token-file", str(other)]) == 2
        assert f"{worker.url} has another token than the file of '--token-file'" in capsys.readouterr().err
        file.chmod(0o644)
        assert run(["connectors", "list", "--url", worker.url, "--token-file", str(file)]) == 0
        assert capsys.readouterr().err.startswith(f"warning: other users can read the secret in {file}")
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
        assert run(["connectors", "list", "--url", worker.url, "--token-file", str(file)]) == 0
        assert capsys.readouterr().err == ""
    file.write_text("short")
    file.chmod(0o600)
    assert run(["connectors", "list", "--url", worker.url, "--token-file", str(file)]) == 2
    assert "token: 5 characters given; expected 16 or more" in capsys.readouterr().err
    assert run(["connectors", "list", "--url", worker.url, "--token-file", str(tmp_path / "none")]) == 2
    assert f"{tmp_path / 'none'} cannot be read: No such file" in capsys.readouterr().err


def test_a_worker_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line with a hint, and exit status 1."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert run(["connectors", "pause", "logs", "--url", url]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    hint = "'kiel-groups workers run' starts a worker, and '--url' names another one"
    assert line == f"error: no worker answers at {url}: connection refused; {hint}"


def test_another_server_is_no_worker(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that does not speak HTTP is reported in one line, too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        import threading

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert run(["connector-plugins", "--url", url]) == 1
        thread.join()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: {url} is not the interface of a worker: its answer 200 is not JSON"


@pytest.mark.parametrize("url", ["127.0.0.1:8083", "ftp://x", "http://[::1", "http://a b"])
def test_a_wrong_url_is_refused(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """The error says what was given and what a URL looks like, or which host does not exist."""
    assert run(["connectors", "list", "--url", url]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert url in line


def test_a_failed_connector_is_checked(worker: FakeWorker, command: Callable[..., Printed]) -> None:
    """The connector itself counts, too."""
    worker.group.states[ConnectorId("logs")] = WorkStatus(WorkState.FAILED, "w:1", "no")
    assert command("connectors", "status", "logs", "--check").status == 1
