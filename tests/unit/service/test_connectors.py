"""Requests about connectors are forwarded to workers, whatever workers answer, or whether they answer at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kiel_groups.errors import KielGroupsError, RebalanceError
from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus
from kiel_groups.ops.actions.cluster_address import BROKERS, ZOOKEEPER, ClusterAddress
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.rest.calls import Answer, RestCall, Route
from kiel_groups.rest.server import RestServer
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service import served_cluster
from kiel_groups.service.api import Api
from kiel_groups.service.cluster_state import ClusterState, GroupStatus
from kiel_groups.service.connectors import Work, list_work
from kiel_groups.service.served_cluster import ServedCluster
from kiel_groups.workers.values import TaskId
from tests.helpers.described_answers import ask_described as ask
from tests.helpers.fake_workers import FakeGroup, FakeWorker, serving
from tests.helpers.rest_requests import Got

pytestmark = pytest.mark.unit

TOKEN = "t0ken-of-all-workers"
CONFIG = {"connector.class": "FileStreamSource", "name": "a/b", "tasks.max": "2", "password": "x"}
SHOWN = {**CONFIG, "password": "[hidden]"}
FAILED = WorkStatus(
    WorkState.FAILED, "10.0.0.1:8083", f"Traceback (most recent call last):\n  File\nError: {'x' * 400}"
)

#: A group whose members are workers, and a group of consumers.
WORKERS = GroupView("g", (), (), "connect", is_of_consumers=False)
CONSUMERS = GroupView("g", (), ())

#: Nothing listens at this port.
DEAD = "http://127.0.0.1:1"


def workers(count: int = 1) -> list[FakeWorker]:
    """Return the workers of a group with a connector whose second task has failed."""
    group = FakeGroup()
    group.add("a/b", CONFIG)
    group.states[TaskId("a/b", 1)] = FAILED
    return [FakeWorker(group) for _ in range(count)]


@asynccontextmanager
async def service(
    urls: Sequence[str],
    *,
    token: str = "",
    view: GroupView = WORKERS,
    kind: str = ZOOKEEPER,
    zookeeper: str = "",
    **state: Any,
) -> AsyncIterator[tuple[str, ServedCluster]]:
    """Serve a service that knows workers at these URLs. Yield the URL of connectors and the cluster."""
    cluster = ServedCluster("main", ClusterAddress(kind, DEAD, 1.0, zookeeper), 60.0, lambda *_: None, token)
    groups = {"g": GroupStatus(replace(view, worker_urls=tuple(urls)), ())}
    cluster.state = ClusterState(groups=groups, **{"loaded_ms": 1, **state})
    server = RestServer(RestSettings(port=0))
    server.start(Api({"main": cluster}).routes())
    yield f"{server.url}/v1/clusters/main/groups/g/connectors", cluster
    await server.close()
    cluster.stop()


@asynccontextmanager
async def stranger(document: object, *, delay_s: float = 0.0) -> AsyncIterator[str]:
    """Serve a program that is not a worker, and yield its URL. It answers with a document after a delay."""

    async def answer(call: RestCall) -> Answer:
        await asyncio.sleep(delay_s)
        return Answer(document)

    server = RestServer(RestSettings(port=0))
    server.start([Route("/connectors", {"GET": answer})])
    yield server.url
    await server.close()


async def test_connectors_are_shown_as_a_worker_shows_them() -> None:
    """The documents are the worker's, without secrets. The page has one line of an error, and problems come first."""
    (worker,) = workers()
    worker.group.add("a", CONFIG)
    async with serving(worker, token=TOKEN), service([worker.url], token=TOKEN) as (url, cluster):
        found = (await ask(url)).document["a/b"]
        assert found["info"] == (await ask(f"{url}/a%2Fb")).document
        assert found["status"] == (await ask(f"{url}/a%2Fb/status")).document
        rows = await list_work(cluster, cluster.state.groups["g"])
    assert found["info"]["config"] == SHOWN
    assert rows == [
        Work("a/b", None, "source", "RUNNING", "10.0.0.1:8083", "", SHOWN),
        Work("a/b", 0, "task", "RUNNING", "10.0.0.1:8083", ""),
        Work("a/b", 1, "task", "FAILED", "10.0.0.1:8083", f"Error: {'x' * 293}"),
        Work("a", None, "source", "RUNNING", "10.0.0.1:8083", "", SHOWN),
        Work("a", 0, "task", "RUNNING", "10.0.0.1:8083", ""),
        Work("a", 1, "task", "RUNNING", "10.0.0.1:8083", ""),
    ]


@pytest.mark.parametrize(
    ("path", "body", "works", "done"),
    [
        ("pause", {}, ["a/b RUNNING PAUSED", "a/b-0 RUNNING PAUSED"], ["pause a/b"]),
        ("resume", {}, [], ["resume a/b"]),
        ("restart", {}, ["a/b RUNNING RUNNING"], ["restart a/b"]),
        ("restart", {"task": 1}, ["a/b-1 FAILED RUNNING"], ["restart a/b-1"]),
        ("restart", {"include_tasks": True, "only_failed": True}, ["a/b-1 FAILED RUNNING"], ["restart a/b-1"]),
    ],
)
async def test_a_change_is_forwarded_and_logged(
    caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any], works: list[str], done: list[str]
) -> None:
    """A dry run changes nothing. The change is made by a worker, and the log has its client and the states before."""
    caplog.set_level(logging.INFO, "kiel_groups.service")
    (worker,) = workers()
    async with serving(worker), service([worker.url]) as (url, _):
        dry = await ask(f"{url}/a%2Fb/{path}", "POST", {**body, "dry_run": True})
        assert not [*worker.group.done, *caplog.messages]
        made = await ask(f"{url}/a%2Fb/{path}", "POST", body)
    assert [" ".join(each.values()) for each in dry.document["changes"]] == works
    assert made.document == {**dry.document, "dry_run": False}
    assert [what for _, what in worker.group.done] == done
    (line,) = caplog.messages
    assert line.startswith(f"POST /v1/clusters/main/groups/g/connectors/a%2Fb/{path} by 127.0.0.1 took ")
    assert all(f'"before": "{each.split()[1]}"' in line for each in works)


SECRETS = ("s3cret", "0ther", "pa55")


async def test_a_connector_is_created_changed_and_deleted(caplog: pytest.LogCaptureFixture) -> None:
    """A dry run changes nothing. Neither answers nor the log have secrets, declared or not."""
    caplog.set_level(logging.INFO, "kiel_groups.service")
    (worker,) = workers()
    config = {
        "connector.class": "FileStreamSource",
        "file": "http://u:pa55@h/x",
        "password": "s3cret",
        "extra.token": "0ther",
        "tasks.max": 1,
        "topic": None,
    }
    async with serving(worker), service([worker.url]) as (url, _):
        dry = await ask(f"{url}/new", "PUT", {"config": config, "dry_run": True})
        by_reference = {**config, "password": "${file:db:word}", "extra.token": "${env:TOKEN}"}
        referring = await ask(f"{url}/new", "PUT", {"config": by_reference, "dry_run": True})
        assert not [*worker.group.done, *caplog.messages]
        made = await ask(f"{url}/new", "PUT", {"config": config})
        assert worker.group.configs["new"]["password"] == "s3cret"
        kept = {"connector.class": "FileStreamSource", "password": "[hidden]", "extra.token": "s3cret", "flie": "f"}
        changed = await ask(f"{url}/new", "PUT", {"config": kept})
        gone = await ask(f"{url}/new?dry_run=true", "DELETE")
        assert "new" in worker.group.configs
        deleted = await ask(f"{url}/new", "DELETE")
    assert (dry.document["is_new"], changed.document["is_new"]) == (True, False)
    assert made.document == {**dry.document, "dry_run": False}
    assert [(each["setting"], each["before"], each["after"]) for each in made.document["changes"]] == [
        ("connector.class", None, "FileStreamSource"),
        ("extra.token", None, "[hidden]"),
        ("file", None, "http://[hidden]@h/x"),
        ("password", None, "[hidden]"),
        ("tasks.max", None, "1"),
    ]
    # A reference is no secret.
    after = {each["setting"]: each["after"] for each in referring.document["changes"]}
    assert (after["password"], after["extra.token"]) == ("${file:db:word}", "${env:TOKEN}")
    assert made.document["notes"] == ["extra.token: there is no such setting"]
    assert [(each["setting"], each["after"], each["note"]) for each in changed.document["changes"]] == [
        ("extra.token", "[hidden]", "another value"),
        ("file", None, ""),
        ("flie", "f", ""),
        ("tasks.max", None, ""),
    ]
    assert changed.document["notes"] == [
        "These settings replace those of connector new, which exists.",
        "extra.token: there is no such setting",
        "flie: there is no such setting; did you mean 'file'?",
    ]
    assert deleted.document == {**gone.document, "dry_run": False}
    assert [" ".join(map(str, each.values())) for each in gone.document["changes"]] == [
        "new RUNNING None",
        "new-0 RUNNING None",
    ]
    assert [what for _, what in worker.group.done] == ["put new", "put new", "delete new"]
    lines = [line.partition(" by 127.0.0.1 took ")[0] for line in caplog.messages]
    assert lines == [f"{method} /v1/clusters/main/groups/g/connectors/new" for method in ("PUT", "PUT", "DELETE")]
    told = [*caplog.messages, *(str(each.document) for each in (dry, made, changed, gone, deleted))]
    assert not [text for text in told if any(secret in text for secret in SECRETS)]


@pytest.mark.parametrize(
    ("config", "status", "words"),
    [
        (None, 400, "config: expected an object with the connector's settings by name, and 'connector.class'"),
        ({"file": "f"}, 400, "config: expected an object with the connector's settings by name, and"),
        ({"connector.class": "No"}, 400, "there is no connector 'No'"),
        ({"connector.class": "../../x?y"}, 400, "there is no connector '../../x?y'"),
        ({"connector.class": "FileStreamSource", "file": "!"}, 400, "file: '!' given"),
        ({"connector.class": "FileStreamSource", "password": "[hidden]"}, 400, "password: [hidden] means the st"),
        ({"connector.class": "FileStreamSource", "name": "old"}, 400, "name: 'old' given; expected 'new' or none"),
        ({"connector.class": "FileStreamSource", "file": ["f"]}, 400, "file: a list given; expected a text, a number,"),
    ],
)
async def test_settings_with_mistakes_are_not_stored(config: object, status: int, words: str) -> None:
    """The worker's errors are the answer, and nothing is stored, be it a dry run or not."""
    (worker,) = workers()
    async with serving(worker), service([worker.url]) as (url, _):
        for dry_run in (True, False):
            got = await ask(f"{url}/new", "PUT", {"config": config, "dry_run": dry_run})
            assert (got.status, words in got.document["message"]) == (status, True), got.document
        missing = await ask(f"{url}/none", "DELETE")
        unclear = [await ask(f"{url}/a%2Fb?{query}", "DELETE") for query in ("dry_run=1", "dry_run", "dryrun=true")]
    assert missing.status == 404
    assert [each.document["message"] for each in unclear] == [
        "dry_run: '1' given in the query; expected true or false",
        "dry_run: '' given in the query; expected true or false",
        "the query has 'dryrun'; expected 'dry_run' or nothing",
    ]
    assert not worker.group.done


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("none/pause", {}, 404, "connector 'none' does not exist"),
        ("a%2Fb/pause", {"task": 1}, 400, "the body has 'task'"),
        ("a%2Fb/restart", {"task": "1"}, 400, "task: '1' given; expected a whole number of at least 0"),
        ("a%2Fb/restart", {"task": 1, "only_failed": True}, 400, "task: does not go with 'include_tasks' and"),
        ("a%2Fb/restart", {"task": 7, "dry_run": True}, 404, "connector 'a/b' has no task 7"),
        ("..%2F..%2Fadmin/pause", {}, 404, "connector '../../admin' does not exist"),
    ],
)
async def test_mistakes_change_nothing(path: str, body: object, status: int, words: str) -> None:
    """The answer has the reason, and names lead to no other path of a worker."""
    (worker,) = workers()
    async with serving(worker), service([worker.url]) as (url, _):
        got = await ask(f"{url}/{path}", "POST", body)
    assert (got.status, words in got.document["message"]) == (status, True), got.document
    assert not worker.group.done


async def test_a_worker_that_does_not_answer_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next worker is asked, be the first one dead, silent, or another program. At most three workers are asked."""
    monkeypatch.setattr(served_cluster, "_WORKER_TIMEOUT_S", 1.0)
    (worker,) = workers()
    async with serving(worker), stranger({}, delay_s=5.0) as silent, service([DEAD, silent, worker.url]) as (url, _):
        assert (await ask(url)).document.keys() == {"a/b"}
    async with serving(worker), service([DEAD] * 3 + [worker.url]) as (url, _):
        got = await ask(url)
    assert (got.status, got.document["message"]) == (
        503,
        f"no worker of group 'g' answers: no worker answers at {DEAD}: connection refused",
    )


async def test_a_change_that_a_worker_may_have_received_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that deletes, and answers late, has deleted: the next one would say that there is no connector."""
    caplog.set_level(logging.INFO, "kiel_groups.service")
    monkeypatch.setattr(served_cluster, "_WORKER_TIMEOUT_S", 1.0)
    late, other = workers(2)
    ended = asyncio.Event()
    delete = late.delete

    async def delete_late(name: str) -> None:
        await delete(name)
        await ended.wait()

    monkeypatch.setattr(late, "delete", delete_late)
    async with serving(late), serving(other), service([DEAD, late.url, other.url]) as (url, cluster):
        made = await ask(f"{url}/a%2Fb/pause", "POST", {})
        cluster.answering.clear()
        got = await ask(f"{url}/a%2Fb", "DELETE")
        ended.set()
    assert made.status == 200
    assert (got.status, got.document["message"].partition(": ")[0]) == (
        504,
        "the change was sent, but not confirmed, so it may still follow",
    )
    assert [what for _, what in late.group.done] == ["pause a/b", "delete a/b"]
    assert ["no worker has confirmed the change" in line for line in caplog.messages if " took " in line] == [
        False,
        True,
    ]


async def test_settings_beside_a_kept_secret() -> None:
    """Their errors may be due to the text [hidden]: notes of the dry run. Numbers are stored as they are written."""
    (worker,) = workers()
    config = {"connector.class": "FileStreamSource", "password": "[hidden]", "file": "!"}
    worker.group.add("b", {**CONFIG, "file": "http://u:x@h/"})
    async with serving(worker), service([worker.url]) as (url, _):
        dry = await ask(f"{url}/a%2Fb", "PUT", {"config": config, "dry_run": True})
        changed = {**config, "file": "http://[hidden]@h/x"}
        refused = await ask(f"{url}/b", "PUT", {"config": changed, "dry_run": True})
        same = await ask(f"{url}/b", "PUT", {"config": {**config, "file": "http://[hidden]@h/"}, "dry_run": True})
        number = await ask(f"{url}/n", "PUT", b'{"config": {"connector.class": "FileStreamSource", "file": 1.10}}')
    assert dry.document["notes"][1:] == ["checked without the stored values of [hidden]: file: '!' given"]
    assert (refused.status, refused.document["message"]) == (
        400,
        "file: [hidden] given within a changed text; give the text with its secrets, or [hidden] alone to keep the"
        " stored one",
    )
    assert (same.status, number.status, worker.group.configs["n"]["file"]) == (200, 200, "1.10")


@pytest.mark.parametrize("document", [[], {"a": 1}, {"a": {"status": {"name": "a"}}}, "x", None], ids=repr)
async def test_the_answer_of_another_program_is_an_error(document: object) -> None:
    """A program that has got the address of a worker breaks no page."""
    async with stranger(document) as url, service([url]) as (_, cluster):
        with pytest.raises(KielGroupsError, match="the answer of the worker is not that of a worker: "):
            await list_work(cluster, cluster.state.groups["g"])


async def test_the_error_of_a_worker_is_passed_on() -> None:
    """Its status, its text and ``Retry-After`` are the worker's. A wrong token is an error of the service itself."""
    (worker,) = workers()
    worker.error = RebalanceError("the group of workers is rebalancing; try again later")
    async with serving(worker, token=TOKEN):
        async with service([worker.url], token=TOKEN) as (url, _):
            busy = await ask(url)
        async with service([worker.url], token=f"not-{TOKEN}") as (url, _):
            refused = await ask(url)
    assert (busy.status, busy.document["message"], busy.headers["Retry-After"]) == (409, str(worker.error), "1")
    assert (refused.status, "asks for another token; '--worker-token-file'" in refused.document["message"]) == (
        502,
        True,
    )


@pytest.mark.parametrize(
    ("settings", "status", "words"),
    [
        ({"view": CONSUMERS}, 404, "group 'g' has no connectors: its members are not workers"),
        ({"kind": BROKERS}, 409, "they register their addresses in ZooKeeper, and the service observes this cluster"),
        (
            {"kind": BROKERS, "zookeeper": "127.0.0.1:1"},
            503,
            "the addresses of the workers are not known at the moment",
        ),
        ({"error": "it is away"}, 503, "the addresses of the workers are not known at the moment: it is away"),
        ({}, 503, "no worker of group 'g' answers: none is alive; 'kiel-groups workers run --group g' starts one"),
    ],
)
async def test_a_group_without_known_workers(settings: dict[str, Any], status: int, words: str) -> None:
    """The answer says why no worker is asked."""
    got: Got
    async with service([], **settings) as (url, _):
        got = await ask(url)
    assert (got.status, words in got.document["message"]) == (status, True), got.document
