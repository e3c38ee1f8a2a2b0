"""The REST interface of workers on real servers: secrets, names, tokens, odd classes, and a leader that dies."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
from kafka_connect import KafkaConnect
from requests import HTTPError

from kiel_groups.embedded import Cluster
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.members.programs.generic_member import GenericMember
from kiel_groups.model import CONNECT_TYPE
from kiel_groups.rest.settings import RestSettings
from kiel_groups.wire.connect_protocol import DEFAULT_PROTOCOL, NO_OFFSET, ConnectMetadata
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.workers.membership import parse_assignment
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey
from kiel_groups.workers.plugins.interfaces import SourceConnector
from kiel_groups.workers.shipped.file_stream_source import FileStreamSourceConnector
from kiel_groups.workers.values import ConnectorId, Work
from tests.helpers.commands import kiel_groups_here
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import WorkerPrograms, ask, until_state, worker_on
from tests.helpers.worker_journals import journal_on

pytestmark = pytest.mark.integration

SECRET = "S3CRET"


class Got(NamedTuple):
    """The status, the text and ``Retry-After`` of an answer."""

    status: int
    text: str
    retry_after: str | None


async def request(url: str, method: str, path: str, document: object = None) -> Got:
    """Send a request, again during a rebalance, and return the answer, whatever its status."""
    body = None if document is None else json.dumps(document).encode()
    sent = urllib.request.Request(
        url.rstrip("/") + path, body, {"Content-Type": "application/json"} if body else {}, method=method
    )

    def send() -> Got:
        try:
            with urllib.request.urlopen(sent, timeout=60) as answer:
                return Got(answer.status, answer.read().decode(), answer.headers["Retry-After"])
        except urllib.error.HTTPError as error:
            return Got(error.code, error.read().decode(), error.headers["Retry-After"])

    async def answer() -> Got | None:
        got = await asyncio.to_thread(send)
        return None if got.status == 409 and got.retry_after else got

    return await eventually(answer, f"{method} {path} is answered", 60.0)


async def test_no_answer_has_a_secret(
    cluster_39: Cluster, unique: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Configurations, tasks, checks, refusals and logs show none, and what they show may be written back."""
    caplog.set_level("DEBUG", "kiel_groups.workers")
    name = unique("sink")
    config = {
        "connector.class": "HttpSink",
        "topics": unique("topic"),
        "url": f"http://127.0.0.1:1/in?token={SECRET}",
        "headers": f"X-Api-Key: {SECRET}H",
        "authorization": f"Bearer {SECRET}",
        "sasl.jaas.config": f'Module required username="u" password="{SECRET}";',
        "aws.access.key.id": SECRET,
        "proxy": f"http://u:{SECRET}@proxy:3128",
    }
    async with worker_on(cluster_39, unique("workers")) as worker:
        await ask(worker.url, "POST", "/connectors", {"name": name, "config": config})
        path = f"/connectors/{name}"
        await eventually(lambda: _has_task(worker.url, path), "the connector has a task")
        read = ("", "/config", "/tasks", "/status")
        texts = [(await request(worker.url, "GET", f"{path}{more}")).text for more in read]
        texts.append((await request(worker.url, "GET", "/connectors?expand=info&expand=status")).text)
        check = "/connector-plugins/HttpSink/config/validate"
        texts.append((await request(worker.url, "PUT", check, config)).text)
        listed = await asyncio.to_thread(kiel_groups_here, "connectors", "list", "--json", "--url", worker.url)
        texts.append(listed.stdout)
        assert all("[hidden]" in text for text in [*texts[:3], *texts[4:]])
        for wrong in ({"url": f"http://u:{SECRET}@x"}, {"headers": SECRET}, {"tasks.max": f"http://u:{SECRET}@x"}):
            refused = await request(worker.url, "PUT", f"{path}/config", config | wrong)
            checked = await request(worker.url, "PUT", check, config | wrong)
            assert (refused.status, checked.status) == (400, 200)
            assert "[hidden]" in refused.text
            texts += [refused.text, checked.text]
        shown = json.loads(texts[1])
        assert shown["url"] == "http://127.0.0.1:1/in?token=[hidden]"
        await ask(worker.url, "PUT", f"{path}/config", shown | {"tasks.max": "2"})
        assert await worker_config(worker, name) == config | {"name": name, "tasks.max": "2"}
        moved = await request(worker.url, "PUT", f"{path}/config", shown | {"url": "http://other/?token=[hidden]"})
        assert (moved.status, "url: [hidden] given within a changed text" in moved.text) == (400, True)
        await ask(worker.url, "DELETE", path)
        created = await request(worker.url, "POST", "/connectors", {"name": name, "config": shown})
        assert (created.status, "[hidden] given, which means the stored value" in created.text) == (400, True)
    assert not [text for text in [*texts, moved.text, caplog.text] if SECRET in text]


async def test_a_hostile_text_does_not_halt_a_worker(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """
    Open quotes after the names of secrets in 60 KB of a setting: it is stored, quoted by an error, and shown.

    Each search for secrets in such a text took four seconds on the event loop.
    """
    file = "/absent/" + "password='x;" * 5_000
    config = {"connector.class": "FileStreamSource", "topic": unique("topic"), "file": file}
    name = unique("source")
    async with worker_on(cluster_39, unique("workers")) as worker:
        async with asyncio.timeout(60):
            await ask(worker.url, "PUT", f"/connectors/{name}/config", config)
            status = await until_state(worker.url, name, "RUNNING", "FAILED")
            shown = await ask(worker.url, "GET", f"/connectors/{name}/config")
    assert "[hidden]" in shown["file"]
    assert "/absent/password=[hidden];" in status["tasks"][0]["trace"]


async def _has_task(url: str, path: str) -> bool:
    found: dict[str, Any] = await ask(url, "GET", path)
    return bool(found["tasks"])


async def worker_config(worker: Any, name: str) -> dict[str, str]:
    """Return the settings of a connector as they are stored."""
    snapshot = await worker._herder.snapshot(current=True)
    return dict(snapshot.connectors[name].config)


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_name_that_paths_lose_is_refused(cluster_39: Cluster, unique: Callable[[str], str], name: str) -> None:
    """Clients resolve such a name in the path, and could not reach the connector."""
    config = {"connector.class": "FileStreamSource", "file": "f", "topic": "t"}
    async with worker_on(cluster_39, unique("workers")) as worker:
        got = await request(worker.url, "POST", "/connectors", {"name": name, "config": config})
    assert got.status == 400
    assert f"name: {name!r} given; expected 1 to 200 printable characters, and neither" in got.text


async def test_workers_with_different_tokens_are_reported(
    cluster_39: Cluster, unique: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """The second worker warns, ``workers describe --check`` fails, and a request that is forwarded gets 502."""
    group, token = unique("workers"), "t0ken-of-all-workers"
    words = ["workers", "describe", group, "--zookeeper", cluster_39.zk_hosts, "--check"]
    async with worker_on(cluster_39, group, rest=RestSettings(port=0, token=token)) as first:
        alone = await asyncio.to_thread(kiel_groups_here, *words)
        async with worker_on(cluster_39, group) as second:
            described = await asyncio.to_thread(kiel_groups_here, *words)
            forwarded = await request(second.url, "PUT", "/connectors/c/config", {"connector.class": "x:Y"})
        addresses = [worker.url.split("/")[2] for worker in (first, second)]
    assert (alone.returncode, described.returncode) == (0, 1)
    assert token not in described.stdout
    (problem,) = [line for line in described.stdout.splitlines() if line.startswith("problem: ")]
    assert problem.startswith("problem: workers have different tokens, so requests that one forwards to another fail: ")
    assert all(address in problem for address in addresses)
    assert f"requests between this worker and {addresses[0]} fail, because their tokens differ" in caplog.text
    assert forwarded.status == 502
    assert f"the worker at {first.url} has another token than this one" in forwarded.text


class StrangerHooks:
    """A member of the group that joins with a URL as a worker does, and is none."""

    protocol_type = CONNECT_TYPE

    def __init__(self, url: str) -> None:
        self._url = url
        self.works: list[Work] = []

    async def protocols(self) -> list[GroupProtocol]:
        return [GroupProtocol(DEFAULT_PROTOCOL, ConnectMetadata(self._url, NO_OFFSET).encode())]

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        raise AssertionError("the worker leads: it has joined first")

    async def complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        self.works = list(parse_assignment("the stranger", assignment).works)

    async def prepare(self, gate: GenerationGate) -> None:
        self.works = []

    def lost(self, gate: GenerationGate) -> None:
        self.works = []


async def test_a_stranger_in_the_group_gets_no_request_with_the_token(
    shared_clusters: Callable[..., Cluster], unique: Callable[[str], str]
) -> None:
    """Brokers let every client join: it is assigned work, but a request about that is refused and not forwarded."""
    cluster, group, token = shared_clusters("3.9.5", "0.9.0.1"), unique("workers"), "t0ken-of-all-workers"
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1 << 16))
        writer.close()

    config = {"connector.class": "FileStreamSource", "file": "no-such-file", "topic": unique("topic")}
    settings = {"coordination": "brokers", "rest": RestSettings(port=0, token=token)}
    async with (
        worker_on(cluster, group, **settings) as worker,
        await asyncio.start_server(serve, "127.0.0.1") as server,
    ):
        client = KafkaConnect(worker.url, auth=f"anyone:{token}")
        for name in ("a", "b"):
            await driven(client.create_connector, {"name": name, "config": config})
        hooks = StrangerHooks(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        brokers = ",".join(cluster.brokers)
        member = GenericMember(hooks, group, brokers=brokers, coordination="brokers", session_timeout_ms=6_000)
        await member.start()
        try:
            await eventually(lambda: hooks.works, "the stranger has work", 60.0)
            (connector,) = [work.connector for work in hooks.works if isinstance(work, ConnectorId)]
            sent = partial(requests.post, auth=("anyone", token), timeout=60)
            got = await asyncio.to_thread(sent, f"{worker.url}/connectors/{connector}/restart")
        finally:
            await member.close()
    assert (got.status_code, got.headers["Retry-After"]) == (503, "1")
    assert "no worker has registered it in ZooKeeper" in got.json()["message"]
    assert received == []


async def test_a_change_follows_when_a_dead_leader_is_replaced(
    cluster_39: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Until then, the other worker answers 503 with ``Retry-After`` or 409; the command repeats its request."""
    config = {"connector.class": "FileStreamSource", "file": str(tmp_path / "f"), "topic": unique("topic")}
    file = tmp_path / "source.json"
    file.write_text(json.dumps(config))
    # The other worker is asked before the session of the dead one has expired.
    with WorkerPrograms(cluster_39, unique("workers"), 10_000) as programs:
        (leader,) = await programs.add()
        (other,) = await programs.add()
        url = programs.url_of(other)
        await ask(url, "PUT", f"/connectors/{(before := unique('before'))}/config", config)
        await until_state(url, before, "RUNNING", "RUNNING")
        leader.process.kill()
        leader.process.wait()
        refused = await request(url, "PUT", f"/connectors/{unique('during')}/config", config)
        assert (refused.status, refused.retry_after) == (503, "1")
        assert "if that worker has died, others replace it soon" in refused.text
        done = await asyncio.to_thread(
            kiel_groups_here, "connectors", "create", str(file), "--name", unique("after"), "--url", url
        )
    assert (done.returncode, done.stdout) == (0, "")


class OddConnector(SourceConnector):
    """Declares what each test gives it, and has no tasks."""

    version = "1"
    task_class = FileStreamSourceConnector.task_class
    config = ConfigDefinition(ConfigKey("key", default="x"))

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return []


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("config", None, "has a config of the type NoneType; expected a ConfigDefinition"),
        ("version", property(lambda self: "1"), "has a version of the type property; expected a str"),
    ],
)
async def test_a_class_that_cannot_be_used_harms_no_other_connector(
    cluster_39: Cluster,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    attribute: str,
    value: object,
    reason: str,
) -> None:
    """After an update of its package, its connector is FAILED with the reason; answers about others are as before."""
    group, odd_class = unique("workers"), f"{__name__}:OddConnector"
    file = {"connector.class": "FileStreamSource", "file": "no-such-file", "topic": unique("topic")}
    odd = {"connector.class": odd_class, "key": SECRET}
    async with worker_on(cluster_39, group) as worker:
        for name, config in (("file", file), ("odd", odd)):
            await ask(worker.url, "PUT", f"/connectors/{name}/config", config)
    monkeypatch.setattr(OddConnector, attribute, value)
    async with worker_on(cluster_39, group) as worker:
        status = await until_state(worker.url, "odd", "FAILED")
        await until_state(worker.url, "file", "RUNNING", "RUNNING")
        listed = await ask(worker.url, "GET", "/connectors?expand=status&expand=info")
        shown = [
            await ask(worker.url, "GET", f"/connectors/odd{more}") for more in ("", "/config", "/status", "/tasks")
        ]
        plugins = await ask(worker.url, "GET", "/connector-plugins")
        validate = f"/connector-plugins/{odd_class}/config/validate"
        refused = [
            await request(worker.url, "PUT", "/connectors/odd/config", odd),
            await request(worker.url, "POST", "/connectors", {"name": "new", "config": odd}),
            await request(worker.url, "PUT", validate, odd),
        ]
        await ask(worker.url, "DELETE", "/connectors/odd")
    assert reason in status["connector"]["trace"]
    assert {name: detail["info"]["type"] for name, detail in listed.items()} == {"file": "source", "odd": "unknown"}
    assert listed["odd"]["status"] == status == shown[2]
    assert shown[0]["config"] == shown[1] == odd | {"name": "odd", "key": "[hidden]"}
    assert "FileStreamSource" in str(plugins)
    expected = f"connector.class: '{odd_class}' {reason}"
    assert [(got.status, expected in got.text) for got in refused] == [(400, True)] * 3


async def test_a_public_client_drives_workers(
    cluster_39: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """kafka-connect-py creates, reads, changes, pauses, resumes, restarts and deletes a connector of two workers."""
    journal, name = await journal_on(cluster_39, unique, tmp_path), unique("source")
    settings = {"group": unique("workers"), "rest": RestSettings(port=0, token="t0ken-of-all-workers")}
    async with worker_on(cluster_39, **settings), worker_on(cluster_39, **settings) as worker:
        # Its password is the token: it knows no bearers. Changes are forwarded to the leader, the first worker.
        client = KafkaConnect(worker.url, auth="anyone:t0ken-of-all-workers")

        async def until(*states: str) -> None:
            async def are_present() -> bool:
                status = await driven(client.get_connector_status, name)
                return [each["state"] for each in (status["connector"], *status["tasks"])] == list(states)

            await eventually(are_present, f"the states are {states}", 60.0)

        config = journal.config(name, 2)
        created = await driven(client.create_connector, {"name": name, "config": config})
        assert (created["name"], created["type"]) == (name, "source")
        await until("RUNNING", "RUNNING", "RUNNING")
        assert await driven(client.list_connectors) == [name]
        assert await driven(client.get_connector_config, name) == config | {"name": name}
        await driven(client.update_connector, name, journal.config(name, 3))
        await until("RUNNING", "RUNNING", "RUNNING", "RUNNING")
        await driven(client.pause_connector, name)
        await until("PAUSED", "PAUSED", "PAUSED", "PAUSED")
        await driven(client.resume_connector, name)
        await until("RUNNING", "RUNNING", "RUNNING", "RUNNING")
        await journal.all_run()
        starts = len(journal.entries("start"))
        await driven(client.restart_connector_task, name, 1)
        await eventually(lambda: len(journal.entries("start")) == starts + 1, "the task has started again")
        journal.misbehave("raise")
        await until("RUNNING", "FAILED", "FAILED", "FAILED")
        journal.misbehave("")
        await driven(client.restart_connector, name, include_tasks=True, only_failed=True)
        await until("RUNNING", "RUNNING", "RUNNING", "RUNNING")
        await journal.all_run()
        await driven(client.delete_connector, name)
        assert await driven(client.list_connectors) == []
        with pytest.raises(HTTPError, match="404"):
            await driven(client.get_connector_status, name)
    await journal.check()


async def driven(method: Callable[..., Any], *arguments: object, **settings: object) -> Any:
    """Call a method of a client that blocks, again during a rebalance, and return its result."""

    def call() -> list[Any]:
        try:
            return [method(*arguments, **settings)]
        except HTTPError as error:
            if error.response.status_code not in (409, 503):
                raise
            return []

    (found,) = await eventually(lambda: asyncio.to_thread(call), f"{method.__name__} is answered", 60.0)
    return found
