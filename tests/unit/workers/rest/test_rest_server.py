"""The REST interface of a worker over HTTP on loopback: every route, with the documents and statuses of Connect."""

from __future__ import annotations

import asyncio
import json

import pytest

from kiel_groups import __version__
from kiel_groups.errors import (
    ConfigError,
    KielGroupsError,
    NoZooKeeperError,
    RebalanceError,
    UnknownTopicError,
)
from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus
from kiel_groups.metrics import Metrics
from kiel_groups.rest import server as route_handler
from kiel_groups.rest.settings import RestSettings
from kiel_groups.workers.rest.operations import WorkerServer
from kiel_groups.workers.values import ConnectorId, TaskId
from tests.helpers.fake_workers import PLUGIN, FakeGroup, FakeWorker, serving
from tests.helpers.rest_requests import JSON, ask

pytestmark = pytest.mark.unit

CLASS = "FileStreamSource"
CONFIG = {"connector.class": CLASS, "tasks.max": "2", "db.password": "hunter2", "name": "a/b c"}
HIDDEN = CONFIG | {"db.password": "[hidden]"}
TASKS = [{"connector": "a/b c", "task": 0}, {"connector": "a/b c", "task": 1}]
INFO = {"name": "a/b c", "config": HIDDEN, "tasks": TASKS, "type": "source"}
RUNNING = {"state": "RUNNING", "worker_id": "10.0.0.1:8083"}
FAILED = {"state": "FAILED", "worker_id": "10.0.0.2:8083", "trace": "ValueError: no"}
STATUS = {
    "name": "a/b c",
    "connector": RUNNING,
    "tasks": [{"id": 0, **RUNNING}, {"id": 1, **FAILED}],
    "type": "source",
}
PATH = "/connectors/a%2Fb%20c"


def group() -> FakeGroup:
    """Return a group with one connector, whose second task has failed."""
    made = FakeGroup()
    made.add("a/b c", CONFIG)
    made.states[TaskId("a/b c", 1)] = WorkStatus(WorkState.FAILED, "10.0.0.2:8083", "ValueError: no")
    return made


async def test_a_problem_of_work_that_runs_is_answered() -> None:
    """The field is there in addition, and only if there is a problem."""
    worker = FakeWorker(group())
    worker.group.states[TaskId("a/b c", 0)] = WorkStatus(WorkState.RUNNING, "10.0.0.1:8083", problem="no topic")
    async with serving(worker):
        answer = await ask(f"{worker.url}{PATH}/tasks/0/status")
    assert answer.document == {"id": 0, **RUNNING, "problem": "no topic"}


@pytest.mark.parametrize(
    ("method", "path", "status", "document"),
    [
        ("GET", "/", 200, {"version": "1.2.3", "commit": "unknown", "kafka_cluster_id": None}),
        ("GET", "/connectors", 200, ["a/b c"]),
        ("GET", "/connectors/", 200, ["a/b c"]),
        ("GET", "/connectors?expand=status", 200, {"a/b c": {"status": STATUS}}),
        ("GET", "/connectors?expand=info", 200, {"a/b c": {"info": INFO}}),
        ("GET", "/connectors?expand=info&expand=status", 200, {"a/b c": {"status": STATUS, "info": INFO}}),
        ("GET", "/connectors?expand=colour", 200, ["a/b c"]),
        ("GET", PATH, 200, INFO),
        ("GET", f"{PATH}/", 200, INFO),
        ("GET", f"{PATH}/config", 200, HIDDEN),
        ("GET", f"{PATH}/status", 200, STATUS),
        ("GET", f"{PATH}/tasks", 200, [{"id": TASKS[n], "config": HIDDEN | {"task": str(n)}} for n in (0, 1)]),
        ("GET", f"{PATH}/tasks/1/status", 200, {"id": 1, **FAILED}),
        ("GET", "/connector-plugins", 200, [{"class": PLUGIN, "type": "source", "version": "1.0"}]),
        ("POST", f"{PATH}/restart", 204, None),
        ("POST", f"{PATH}/restart?includeTasks=False&onlyFailed=False", 204, None),
        ("POST", f"{PATH}/tasks/1/restart", 204, None),
        ("PUT", f"{PATH}/pause", 202, None),
        ("PUT", f"{PATH}/resume", 202, None),
        ("DELETE", PATH, 204, None),
    ],
)
async def test_a_route_answers_as_kafka_connect(method: str, path: str, status: int, document: object) -> None:
    """Each route has Connect's status and document, secrets are hidden, and a slash at the end does no harm."""
    worker = FakeWorker(group())
    async with serving(worker):
        got = await ask(worker.url + path, method)
    assert (got.status, got.document) == (status, document)
    assert got.headers.get("Content-Type") == (None if document is None else "application/json")


@pytest.mark.parametrize(
    ("method", "path", "done"),
    [
        ("POST", f"{PATH}/restart", "restart a/b c"),
        ("POST", f"{PATH}/tasks/1/restart", "restart a/b c-1"),
        ("PUT", f"{PATH}/pause", "pause a/b c"),
        ("PUT", f"{PATH}/resume", "resume a/b c"),
        ("DELETE", PATH, "delete a/b c"),
    ],
)
async def test_a_request_without_body_does_what_it_says(method: str, path: str, done: str) -> None:
    """The worker does what the path names; clients send such requests with or without a type."""
    for headers in (JSON, {}):
        worker = FakeWorker(group())
        async with serving(worker):
            await ask(worker.url + path, method, headers=headers)
        assert worker.group.done == [(worker.url, done)]


async def test_a_connector_is_created() -> None:
    """The answer is 201 with the place of the new connector. Settings that are numbers or booleans become texts."""
    worker = FakeWorker(FakeGroup())
    config = {"connector.class": CLASS, "tasks.max": 2, "ratio": 1.50, "quiet": True, "none": None}
    async with serving(worker):
        got = await ask(f"{worker.url}/connectors", "POST", {"name": " a/b c ", "config": config})
        read = await ask(worker.url + got.headers["Location"])
    texts = {"connector.class": CLASS, "tasks.max": "2", "ratio": "1.5", "quiet": "true", "name": "a/b c"}
    assert (got.status, got.headers["Location"]) == (201, PATH)
    assert got.document == read.document == INFO | {"config": texts}


async def test_some_settings_are_changed() -> None:
    """The others stay, null removes one, and the answer is 200 with all of them."""
    worker = FakeWorker(group())
    async with serving(worker):
        got = await ask(f"{worker.url}{PATH}/config", "PATCH", {"tasks.max": 3, "db.password": None, "x": "y"})
        others = await ask(f"{worker.url}{PATH}/config", "PATCH", {"name": "b"})
        unknown = await ask(f"{worker.url}/connectors/b/config", "PATCH", {"x": "y"})
        undeclared = await ask(f"{worker.url}{PATH}/config", "PATCH", {"x": "z"}, {"Content-Type": "text/plain"})
    expected = {"connector.class": CLASS, "tasks.max": "3", "name": "a/b c", "x": "y"}
    assert (got.status, got.document["config"], len(got.document["tasks"])) == (200, expected, 3)
    assert [each.status for each in (others, unknown, undeclared)] == [400, 404, 415]
    assert worker.group.configs == {"a/b c": expected}


async def test_the_name_of_a_new_connector_may_be_among_its_settings() -> None:
    """A body without ``name`` takes it from the settings."""
    worker = FakeWorker(FakeGroup())
    async with serving(worker):
        got = await ask(f"{worker.url}/connectors", "POST", {"config": CONFIG})
    assert (got.status, got.document["name"]) == (201, "a/b c")


async def test_settings_are_changed_or_create_a_connector() -> None:
    """The answer is 200 for an existing connector, and 201 with its place for a new one."""
    worker = FakeWorker(group())
    async with serving(worker):
        changed = await ask(f"{worker.url}{PATH}/config", "PUT", CONFIG | {"tasks.max": "1"})
        created = await ask(f"{worker.url}/connectors/new/config", "PUT", {"connector.class": CLASS})
    assert (changed.status, changed.document["tasks"], "Location" in changed.headers) == (200, TASKS[:1], False)
    assert (created.status, created.headers["Location"]) == (201, "/connectors/new")
    assert created.document["config"] == {"connector.class": CLASS, "name": "new"}


@pytest.mark.parametrize("given", [CLASS, PLUGIN, None, "files:FileStreamSourceConnector"])
async def test_settings_are_validated(given: str | None) -> None:
    """The settings may name the class of the path in another form, or not at all."""
    worker = FakeWorker(FakeGroup())
    config = {"a": 1} | ({} if given is None else {"connector.class": given})
    async with serving(worker):
        got = await ask(f"{worker.url}/connector-plugins/{CLASS}/config/validate", "PUT", config)
    assert (got.status, got.document["error_count"]) == (200, 0)
    configs = {each["value"]["name"]: each["value"]["value"] for each in got.document["configs"]}
    assert configs == {"a": "1", "connector.class": given or CLASS}


@pytest.mark.parametrize(
    ("query", "done", "restarting"),
    [
        ("includeTasks=true", ["restart a/b c", "restart a/b c-0", "restart a/b c-1"], 3),
        ("includeTasks=True&onlyFailed=True", ["restart a/b c-1"], 1),
        ("onlyFailed=true", [], 0),
    ],
)
async def test_a_restart_of_several(query: str, done: list[str], restarting: int) -> None:
    """With ``includeTasks`` or ``onlyFailed``, the answer is 202, and says what restarts."""
    worker = FakeWorker(group())
    async with serving(worker):
        got = await ask(f"{worker.url}{PATH}/restart?{query}", "POST")
    assert [what for _, what in worker.group.done] == done
    states = [got.document["connector"]["state"], *(task["state"] for task in got.document["tasks"])]
    assert (got.status, states.count("RESTARTING")) == (202, restarting)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/nothing", None, 404, "HTTP 404 Not Found"),
        ("GET", "/connectors/a/b", None, 404, "HTTP 404 Not Found"),
        ("GET", f"{PATH}/topics", None, 404, "HTTP 404 Not Found"),
        ("GET", "/connectors/x/tasks/one/status", None, 404, "HTTP 404 Not Found"),
        ("PATCH", "/connectors", {}, 405, "HTTP 405 Method Not Allowed"),
        ("POST", PATH, {}, 405, "HTTP 405 Method Not Allowed"),
        ("GET", "/connectors/%ff", None, 400, "HTTP 400 Bad Request"),
        ("GET", "/connectors/x", None, 404, "connector 'x' does not exist"),
        ("GET", "/connectors/x/config", None, 404, "connector 'x' does not exist"),
        ("GET", "/connectors/x/status", None, 404, "connector 'x' does not exist"),
        ("GET", "/connectors/x/tasks", None, 404, "connector 'x' does not exist"),
        ("GET", f"{PATH}/tasks/2/status", None, 404, "connector 'a/b c' has no task 2"),
        ("POST", f"{PATH}/tasks/2/restart", None, 404, "connector 'a/b c' has no task 2; it has 2 tasks"),
        ("POST", "/connectors/x/restart", None, 404, "connector 'x' does not exist"),
        ("POST", "/connectors/x/restart?includeTasks=true", None, 404, "connector 'x' does not exist"),
        ("PUT", "/connectors/x/pause", None, 404, "connector 'x' does not exist"),
        ("DELETE", "/connectors/x", None, 404, "connector 'x' does not exist"),
        ("POST", "/connectors", {"name": "a/b c", "config": CONFIG}, 409, "connector 'a/b c' already exists"),
        ("POST", "/connectors", {"name": "x", "config": {}}, 400, "connector.class: required, but not given"),
        ("POST", "/connectors", {"name": "x"}, 400, "the body has no object 'config'"),
        ("POST", "/connectors", {"config": {}}, 400, "the body has no text 'name'"),
        ("POST", "/connectors", {"name": 7, "conf": {}}, 400, "the body has 'conf'"),
        ("POST", "/connectors", {"name": "x", "config": CONFIG}, 400, "name: 'a/b c' given for connector 'x'"),
        ("POST", "/connectors", {"name": "x", "config": {"a": [1]}}, 400, "a: a list given; expected a text"),
        ("POST", "/connectors", b"", 400, "the body is not JSON: "),
        ("POST", "/connectors", b"{", 400, "the body is not JSON: "),
        ("POST", "/connectors", b"\xff", 400, "the body is not JSON: "),
        ("POST", "/connectors", b'{"a": NaN}', 400, "the body is not JSON: NaN is no JSON"),
        ("POST", "/connectors", b'{"a": 1, "a": 2}', 400, "the body is not JSON: a name occurs twice in an object"),
        ("POST", "/connectors", b'{"a": "\\ud800"}', 400, "the body is not JSON: "),
        ("POST", "/connectors", b"[" * 5_000, 400, "the body is not JSON: "),
        ("POST", "/connectors", [], 400, "the body is JSON, but no object"),
        ("PUT", f"{PATH}/config", {"name": "y"}, 400, "name: 'y' given for connector 'a/b c'"),
        ("PUT", f"/connector-plugins/{CLASS}/config/validate", {"connector.class": "Other"}, 400, "connector.class: "),
        ("PUT", "/connector-plugins/Other/config/validate", {}, 400, "there is no connector 'Other'"),
    ],
)
async def test_a_wrong_request_is_refused(method: str, path: str, body: object, status: int, message: str) -> None:
    """Each error has a document with the status and a text, and nothing is done."""
    worker = FakeWorker(group())
    async with serving(worker):
        got = await ask(worker.url + path, method, body)
    assert got.status == got.document["error_code"] == status
    assert got.document["message"].startswith(message)
    assert got.document.keys() == {"error_code", "message"}
    assert worker.group.done == []


@pytest.mark.parametrize(
    ("error", "status", "message", "is_temporary"),
    [
        (RebalanceError("not now"), 409, "not now", True),
        (NoZooKeeperError("ZooKeeper is gone"), 503, "ZooKeeper is gone", True),
        (UnknownTopicError("no topic"), 400, "no topic", False),
        (ConfigError("a: 7 given"), 400, "a: 7 given", False),
        (KielGroupsError("refused"), 500, "refused", False),
        (TimeoutError(), 500, "the request timed out; a change may still follow", False),
        (ZeroDivisionError("by zero"), 500, "ZeroDivisionError: by zero", False),
    ],
)
async def test_an_error_of_the_worker_has_its_status(
    error: Exception, status: int, message: str, is_temporary: bool
) -> None:
    """Clients see by ``Retry-After`` whether a later try may succeed."""
    worker = FakeWorker(group(), error)
    async with serving(worker):
        got = await ask(f"{worker.url}/connectors")
    assert (got.status, got.document) == (status, {"error_code": status, "message": message})
    assert ("Retry-After" in got.headers) == is_temporary


async def test_a_rebalance_refuses_changes_but_no_reads() -> None:
    """Creations, changes, deletions and restarts are answered with 409. Pauses need no rebalance to end."""
    worker = FakeWorker(group())
    worker.rebalancing = True
    changes = [
        ("POST", "/connectors", {"name": "x", "config": CONFIG | {"name": "x"}}),
        ("PUT", f"{PATH}/config", CONFIG),
        ("DELETE", PATH, None),
        ("POST", f"{PATH}/restart", None),
        ("POST", f"{PATH}/restart?includeTasks=true", None),
        ("POST", f"{PATH}/tasks/0/restart", None),
    ]
    async with serving(worker):
        statuses = [(await ask(worker.url + path, method, body)).status for method, path, body in changes]
        read = await ask(f"{worker.url}{PATH}/status")
        paused = await ask(f"{worker.url}{PATH}/pause", "PUT")
    assert statuses == [409] * len(changes)
    assert (read.status, paused.status) == (200, 202)


async def test_a_slow_change_times_out() -> None:
    """A request is answered with 500 when its time is over, and the worker still serves others."""
    worker = FakeWorker(FakeGroup())
    worker.gate = asyncio.Event()
    async with serving(worker, timeout_s=0.3):
        late = await ask(f"{worker.url}/connectors/x/config", "PUT", {"connector.class": CLASS})
        listed = await ask(f"{worker.url}/connectors")
    assert (late.status, late.document["error_code"]) == (500, 500)
    assert (listed.status, listed.document) == (200, [])


async def test_head_and_options_of_every_route() -> None:
    """HEAD answers as GET without the body, and OPTIONS names the methods."""
    worker = FakeWorker(group())
    async with serving(worker):
        head = await ask(f"{worker.url}{PATH}", "HEAD")
        options = await ask(f"{worker.url}{PATH}", "OPTIONS")
        refused = await ask(f"{worker.url}{PATH}/pause", "GET")
        unknown = await ask(f"{worker.url}/x", "OPTIONS")
    assert (head.status, head.document, head.headers["Content-Type"]) == (200, None, "application/json")
    assert (options.status, options.headers["Allow"]) == (204, "DELETE, GET, HEAD, OPTIONS")
    assert (refused.status, refused.headers["Allow"]) == (405, "OPTIONS, PUT")
    assert unknown.status == 404


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/jsonp"}])
async def test_a_body_must_be_declared_as_json(headers: dict[str, str]) -> None:
    """Web pages can send other types to this worker without its consent."""
    worker = FakeWorker(FakeGroup())
    async with serving(worker):
        got = await ask(f"{worker.url}/connectors", "POST", {"name": "x", "config": CONFIG}, headers)
        fine = await ask(f"{worker.url}/connectors", "POST", b"{}", {"Content-Type": "application/json; charset=utf-8"})
    assert (got.status, fine.status) == (415, 400)


@pytest.mark.parametrize("size", [(1 << 20) + 1, 100 << 20])
async def test_a_body_is_bounded(size: int) -> None:
    """A large body is read, but not kept, so the client gets the answer; the largest legal one is parsed."""
    worker = FakeWorker(FakeGroup())
    async with serving(worker):
        got = await ask(f"{worker.url}/connectors", "POST", b"x" * size)
        legal = await ask(f"{worker.url}/connectors", "POST", b"x" * (1 << 20))
    assert (got.status, got.document["error_code"]) == (413, 413)
    assert got.document["message"] == "the body is too large; expected at most 1,048,576 bytes"
    assert legal.document["message"].startswith("the body is not JSON: ")


@pytest.mark.parametrize("length", [str(2 << 30), "9" * 50, "9" * 4_000], ids=["2 GiB", "50 digits", "4000 digits"])
async def test_a_huge_body_is_refused_before_it_is_sent(length: str) -> None:
    """The answer is a document, too, and the connection is closed."""
    worker = FakeWorker(FakeGroup())
    async with serving(worker):
        host, _, port = worker.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /connectors HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {length}\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'{"error_code": 413, "message": "the body is too large' in answer
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [("", 200), ("Host: attacker.example\r\n", 403), ("Origin: http://attacker.example\r\n", 403)],
)
async def test_a_health_check_by_http_1_0_needs_no_host(headers: str, status: int) -> None:
    """Load balancers send such requests, but no browser does; what a web page sends is refused as ever."""
    worker = FakeWorker(FakeGroup())
    async with serving(worker):
        host, _, port = worker.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET / HTTP/1.0\r\n{headers}\r\n".encode())
        answer = await reader.read()
        writer.close()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def begin_chunked(
    worker: FakeWorker, method: str, *, closes: bool = False
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the headers of a request whose body comes in chunks."""
    host, _, port = worker.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"{method} /connectors HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection = "Connection: close\r\n" if closes else ""
    writer.write(f"{head}Transfer-Encoding: chunked\r\n{connection}\r\n".encode())
    return reader, writer


async def test_a_chunked_body_is_bounded() -> None:
    """A body without a length is read to its end, and refused if it was too large."""
    worker = FakeWorker(FakeGroup())
    async with serving(worker):
        reader, writer = await begin_chunked(worker, "POST", closes=True)
        for _ in range(20):
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"error_code": 413' in answer


@pytest.mark.parametrize("size", ["80000000", "f" * 60], ids=["2 GiB", "60 digits"])
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_huge_chunked_body_is_answered_before_its_end(
    method: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is a complete document, and the client may continue to send after it: the connection is not reset."""
    monkeypatch.setattr(route_handler, "LARGEST_READ", 2 << 20)
    worker = FakeWorker(FakeGroup())
    async with serving(worker):
        reader, writer = await begin_chunked(worker, method)
        writer.write(f"{size}\r\n".encode() + b"x" * ((2 << 20) + 1))
        answer = await reader.readuntil(b"\r\n\r\n")
        document = json.loads(await reader.readexactly(int(answer.lower().split(b"content-length: ")[1].split()[0])))
        for _ in range(64):
            writer.write(b"x" * (1 << 16))
            await writer.drain()
        assert not reader.at_eof()
        writer.close()
        legal = await ask(f"{worker.url}/connectors")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert document == {"error_code": 413, "message": "the body is too large; expected at most 1,048,576 bytes"}
    assert legal.status == 200


async def test_a_client_that_reads_after_it_has_sent_gets_the_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is one answer, and the log has no error."""
    monkeypatch.setattr(route_handler, "LARGEST_READ", 2 << 20)
    worker = FakeWorker(FakeGroup())
    async with serving(worker):
        reader, writer = await begin_chunked(worker, "POST", closes=True)
        for _ in range(64):
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1 ") == answer.count(b'{"error_code": 413') == 1
    assert not [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]


async def test_secrets_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Requests are logged with method, path and status, without their bodies, queries and tokens."""
    caplog.set_level("DEBUG")
    worker = FakeWorker(FakeGroup())
    async with serving(worker):
        await ask(f"{worker.url}/connectors?secret=1", "POST", {"name": "x", "config": CONFIG | {"name": "x"}})
    assert "POST /connectors by 127.0.0.1: 201" in caplog.text
    assert "hunter2" not in caplog.text
    assert "secret" not in caplog.text


async def test_a_failed_connector_shows_its_state() -> None:
    """The status of the connector itself has its trace, as those of tasks have."""
    made = group()
    made.states[ConnectorId("a/b c")] = WorkStatus(WorkState.FAILED, "10.0.0.2:8083", "ValueError: no")
    worker = FakeWorker(made)
    async with serving(worker):
        got = await ask(f"{worker.url}{PATH}/status")
    assert got.document["connector"] == FAILED


async def test_a_worker_reports_the_version_of_the_package() -> None:
    """Clients decide by it what they may ask."""
    server = WorkerServer(RestSettings(port=0))
    server.start(FakeWorker(FakeGroup()), Metrics())  # type: ignore[arg-type]
    got = await ask(server.url)
    await server.close()
    assert got.document["version"] == __version__
