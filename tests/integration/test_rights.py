"""No rights at each znode in turn: what members, allocator processes, programs, workers and tools say and do."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from kiel_groups.allocators import round_robin
from kiel_groups.config import SECURITY_VARIABLE, GroupConfig, ZooKeeperConfig
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import MemberInfo
from kiel_groups.group.znodes.layout import CONSUMERS, ROOT, GroupLayout, WorkerLayout
from kiel_groups.group.znodes.worker_contents import WorkState
from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.service import Service
from tests.helpers.cluster_data import produce
from tests.helpers.commands import kiel_groups_here
from tests.helpers.contexts import process_context
from tests.helpers.denied_rights import (
    ADMIN,
    AUDIT_MS,
    RIGHTS,
    DeniedRights,
    Need,
    acl_without,
    needs_of,
    persistent,
    security_file,
)
from tests.helpers.described_answers import ask_described
from tests.helpers.generic_program import NUMBERS, NumberProgram
from tests.helpers.members import LASTING, Member
from tests.helpers.rest_requests import JSON, Got
from tests.helpers.servers import plays_all_variants
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import ask, until_state, worker_on

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]
Refused = Callable[[], bool]

#: The rows that are played of large tables: every fifth one, unless the slower variants are asked for.
ROWS = slice(None) if plays_all_variants() else slice(0, None, 5)

TOKEN = "t0ken-of-a-service"
_TIMES: dict[str, Any] = {**LASTING, "retry_backoff_ms": 20}


@pytest.fixture
def admin(cluster_39: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster_39.zk_hosts, auth_data=[("digest", f"{ADMIN}:{ADMIN}")])
    client.start()
    yield client
    # Other tests on these servers read all groups.
    for path in (f"{root}/{name}" for root in (ROOT, CONSUMERS) for name in client.get_children(root)):
        if client.get_acls(path)[0] != OPEN_ACL_UNSAFE:
            client.delete(path, recursive=True)
    client.stop()
    client.close()


class Consumer:
    """A member of a group that leads itself, and commits the ``end()`` of its partition."""

    def __init__(
        self, cluster: Cluster, topic: str, file: Path, admin: KazooClient, end: Callable[[], int], group: str
    ) -> None:
        self.group = group
        self._admin = admin
        self._end = end
        self._offset = GroupLayout(group).offset(TopicPartition(topic, 0))
        settings = {**_TIMES, "instance_id": "one", "auto_commit_interval_ms": 50}
        settings["reconcile_interval_ms"] = AUDIT_MS
        self.member = Member(cluster, group, [topic], security=file, **settings)

    @property
    def _is_committed(self) -> bool:
        return self._admin.get(self._offset)[0] == b"%d" % self._end()

    async def start(self) -> None:
        await self.member.start()
        await eventually(lambda: self.member.held, "the partition is owned")
        await eventually(lambda: self._is_committed, "the offset is committed")

    async def act(self, is_refused: Refused) -> None:
        await eventually(lambda: is_refused() or self._is_committed, "the next offset is committed")
        if not is_refused():
            self.member.consumer._lifecycle.connected.member._member_session.session.abandon("is ended by a test")
            opened = partial(self.member.consumer.metrics.total, "sessions_opened")
            await eventually(lambda: is_refused() or (opened() >= 2 and self.works), "it works on another session")

    @property
    def works(self) -> bool:
        return bool(self.member.held) and self._is_committed

    async def close(self) -> None:
        await self.member.stop()


async def test_a_member(
    cluster_39: Cluster, unique: Unique, admin: KazooClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A consumer, which leads its group, commits an offset, and joins on another session. If it lacks a right for that, it
    loses its partition, logs one line, and consumes again when it has the right.
    """
    topic, file = unique("topic"), security_file(tmp_path)
    await cluster_39.create_topic(topic, 1)
    sent = await produce(cluster_39, topic, 1)

    async def produce_another() -> None:
        sent.extend(await produce(cluster_39, topic, 1, len(sent)))

    def consumer(group: str) -> Consumer:
        return Consumer(cluster_39, topic, file, admin, lambda: len(sent), group)

    table = DeniedRights(admin, consumer, unique, caplog)
    table.before_acting = produce_another
    await table.check(ROWS)
    own = f"/consumers/*/owners/{topic}", f"/consumers/*/offsets/{topic}/0"
    assert {Need("create", own[0]), Need("write", own[1])} <= table.needs
    assert Need("delete", f"/consumers/*/owners/{topic}") in table.needs_to_close


class Allocator:
    """An allocator process that leads a group with a member, and plans again for a second one."""

    def __init__(self, cluster: Cluster, topic: str, file: Path, admin: KazooClient, group: str) -> None:
        self.group = group
        self._admin = admin
        self._layout = GroupLayout(group)
        self._topic = topic
        config = GroupConfig(group=group, retry_backoff_ms=20, reconcile_interval_ms=AUDIT_MS)
        zookeeper = ZooKeeperConfig.parse(cluster.zk_hosts, **LASTING, security=file)
        self._context = process_context(config, zookeeper)
        self._process = AllocatorProcess(self._context, round_robin, lambda error: pytest.fail(str(error)))
        self._members = 0

    def _add_member(self) -> None:
        self._members += 1
        name = f"m{self._members}"
        data = MemberInfo(
            member_id=name, session_timeout_ms=10_000, subscription=(self._topic,), instance_id=name
        ).encode()
        path = self._layout.member(name)
        self._admin.create(path, data, acl_without(), ephemeral=True)

    async def start(self) -> None:
        await self._process.start()
        self._add_member()
        await eventually(lambda: self._published == 1, "a plan is published")

    @property
    def _published(self) -> float:
        return self._context.metrics.total("generations_published")

    async def act(self, is_refused: Refused) -> None:
        self._add_member()
        await eventually(lambda: is_refused() or self._published >= 2, "another plan is published")
        if not is_refused():
            assert self._process.current is not None
            self._process.current.session.abandon("is ended by a test")
            await eventually(
                lambda: self._context.metrics.total("sessions_opened") >= 2 or is_refused(), "another session is open"
            )
            self._add_member()
            await eventually(lambda: is_refused() or self.works, "it leads on another session")

    @property
    def works(self) -> bool:
        return self._process.leads and self._published >= self._members

    async def close(self) -> None:
        await self._process.close()


@pytest.mark.slow
async def test_an_allocator_process(
    cluster_39: Cluster, unique: Unique, admin: KazooClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It leads, and plans on two sessions. If it lacks a right, it leaves, so that another candidate may lead."""
    topic, file = unique("topic"), security_file(tmp_path)
    await cluster_39.create_topic(topic, 2)
    table = DeniedRights(admin, lambda group: Allocator(cluster_39, topic, file, admin, group), unique, caplog)
    await table.check()
    assert {Need("write", "/kiel-groups/*/allocation"), Need("read", "/kiel-groups/*/members")} <= table.needs


class Program:
    """A program with a generic member, which leads its group, and joins a second round and a second session."""

    def __init__(self, cluster: Cluster, file: Path, group: str) -> None:
        self.group = group
        self.program = NumberProgram(group, {"zk_hosts": cluster.zk_hosts, "security": file, **_TIMES})
        self._sessions = 1

    async def start(self) -> None:
        await self.program.member.start()

    async def act(self, is_refused: Refused) -> None:
        member, before = self.program.member, self.program.member.generation
        member.request_rejoin()
        await eventually(lambda: is_refused() or (self._holds and member.generation > before), "there is another round")
        if not is_refused():
            self._coordinator._session.session.abandon("is ended by a test")
            await eventually(lambda: is_refused() or self.works, "it works on another session")

    @property
    def _coordinator(self) -> Any:
        assert self.program.member._member is not None
        return self.program.member._member._coordination

    @property
    def _holds(self) -> bool:
        return self.program.held == NUMBERS and not self.program.member.need_rejoin

    @property
    def works(self) -> bool:
        return bool(self._holds and self._coordinator._number >= 2)

    async def close(self) -> None:
        await self.program.member.close()


@pytest.mark.slow
async def test_a_program(
    cluster_39: Cluster, unique: Unique, admin: KazooClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A generic member loses its assignment, and joins again when it has the right. Rounds do not wait for it."""
    file = security_file(tmp_path)
    table = DeniedRights(admin, lambda group: Program(cluster_39, file, group), unique, caplog)
    await table.check()
    assert {Need("write", "/kiel-groups/*/allocation"), Need("create", "/kiel-groups/*/members")} <= table.needs


class Work:
    """A worker that runs a source, whose task copies another line and stores its offset."""

    def __init__(self, cluster: Cluster, topic: str, file: Path, admin: KazooClient, group: str) -> None:
        self.group = group
        self._admin = admin
        self._file = file
        self._folder = WorkerLayout(group).connector_offsets("lines")
        self._source = {"connector.class": "FileStreamSource", "file": str(file), "topic": topic}
        self._source["offset.flush.interval.ms"] = "100"
        self.worker = worker_on(cluster, group)
        self._sessions = 0

    @property
    def _is_stored(self) -> bool:
        size = b"%d" % self._file.stat().st_size
        with suppress(NoNodeError):
            names = self._admin.get_children(self._folder)
            return any(size in self._admin.get(f"{self._folder}/{name}")[0] for name in names)
        return False

    async def start(self) -> None:
        await self.worker.start()
        await ask(self.worker.url, "PUT", "/connectors/lines/config", self._source)
        await until_state(self.worker.url, "lines", "RUNNING", "RUNNING")
        await eventually(lambda: self._is_stored, "the offset is stored")
        self._sessions = int(self.worker.metrics.total("sessions_opened"))

    async def act(self, is_refused: Refused) -> None:
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write("line\n")
        await eventually(lambda: is_refused() or self._is_stored, "the next offset is stored")
        worker: Any = self.worker
        if not is_refused():
            worker._session._supervisor.current.session.abandon("is ended by a test")
            await eventually(lambda: is_refused() or self.works, "it works on another session")
        if not is_refused():
            worker._member._member._coordination._session.session.abandon("is ended by a test")
            await eventually(lambda: is_refused() or not self.works, "its membership is over")
            await eventually(lambda: is_refused() or self.works, "it works with another membership")

    @property
    def works(self) -> bool:
        worker: Any = self.worker
        running = worker._herder._running.values()
        states = [each.status.state for each in running if each.status is not None and not each.given_back.is_set()]
        assert not worker._failed.is_set(), worker._failure
        opened = worker.metrics.total("sessions_opened") > self._sessions
        is_member = not worker._member._member.need_rejoin
        return opened and is_member and states == [WorkState.RUNNING] * 2 and self._is_stored

    async def close(self) -> None:
        await self.worker.close()


@pytest.mark.slow
async def test_a_worker(
    cluster_39: Cluster,
    unique: Unique,
    admin: KazooClient,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its work stops, and other workers may claim it. It never stops for good. Its two sessions log one line."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    monkeypatch.setenv(SECURITY_VARIABLE, str(security_file(tmp_path)))

    def work(group: str) -> Work:
        lines = tmp_path / group
        lines.write_text("line\n", encoding="utf-8")
        return Work(cluster_39, topic, lines, admin, group)

    table = DeniedRights(admin, work, unique, caplog)
    await table.check(ROWS)
    assert {Need("read", "/kiel-groups/*/connect"), Need("create", "/kiel-groups/*/workers")} <= table.needs


#: Commands that read, and those that change something. ``GROUP``, ``TOPIC`` and ``N`` stand for these.
_READS = ("describe GROUP", "lag GROUP", "history GROUP", "acl show GROUP", "config show GROUP", "weights show GROUP")
_WRITES = (
    "offsets reset GROUP --topic TOPIC --to-offset N --yes",
    "config set GROUP debounce.quiet_ms=10N --yes",
    "weights set GROUP TOPIC:0=2N --yes",
)


@pytest.mark.slow
def test_commands(
    cluster_39: Cluster,
    unique: Unique,
    admin: KazooClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A command that needs a right and lacks it says which one, and where: a read in its output, or in one line of error.
    A command that does not need it works.
    """
    topic, group = unique("topic"), unique("group")
    file = security_file(tmp_path)
    monkeypatch.chdir(tmp_path)

    async def consume() -> None:
        await cluster_39.create_topic(topic, 1)
        await produce(cluster_39, topic, 20)
        member = await Member(cluster_39, group, [topic], security=file).start()
        await eventually(lambda: len(member.records) == 20, "all records are delivered")
        await member.stop()

    asyncio.run(consume())
    number = itertools.count(1)

    def run(words: str) -> subprocess.CompletedProcess[str]:
        words = words.replace("GROUP", group).replace("TOPIC", topic).replace("N", str(next(number) % 10))
        place = ("--zookeeper", cluster_39.zk_hosts, "--security", str(file))
        return kiel_groups_here(*words.split(), *place)

    for words in _WRITES:
        assert run(words).returncode == 0
    problems = []
    for words in (*_READS, *_WRITES):
        with needs_of(group) as needs:
            control = run(words)
        for path in persistent(admin, group):
            for right in ("create", "delete", "read", "write") if words in _WRITES else ("read",):
                admin.set_acls(path, acl_without(right))
                done = run(words)
                admin.set_acls(path, acl_without())
                problems += _command_problems(done, control, path, Need(right, path.replace(group, "*")) in needs)
    assert not problems, "\n".join(problems)
    admin.create(f"{ROOT}/{(hidden := unique('group'))}", b"", acl_without("read"))
    shown = run(f"config show {hidden}")
    assert (shown.returncode, f"an ACL denies reading parts of group {hidden}" in shown.stderr) == (0, True)


def _command_problems(
    done: subprocess.CompletedProcess[str], control: subprocess.CompletedProcess[str], path: str, is_needed: bool
) -> Iterator[str]:
    """Yield what is wrong with the result of a command that lacks a right which it needs, or does not need."""
    said = f"{done.args}: {done.returncode}\n{done.stdout}{done.stderr}"
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    if "Traceback" in said or len(errors) > 1:
        yield f"no single line: {said}"
    if not is_needed and done.returncode != control.returncode:
        yield f"nothing is missing: {said}"
    # The lag is the same without the settings, which say only where the offsets are.
    is_needed = is_needed and not (done.args[0] == "lag" and path.endswith("/config"))
    if is_needed and path not in "".join(said.split()) and done.stdout.split() != control.stdout.split():
        yield f"{path} is not named: {said}"


async def test_the_service(
    cluster_39: Cluster,
    unique: Unique,
    admin: KazooClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    It shows each group of which it cannot read a znode, and names the znode. A change that needs a right which is
    missing fails with the znode and the right. It needs no restart.
    """
    topic, original = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 20)
    file = security_file(tmp_path)
    monkeypatch.setenv(SECURITY_VARIABLE, str(file))
    member = await Member(cluster_39, original, [topic]).start()
    await eventually(lambda: len(member.records) == 20, "all records are delivered")
    await member.stop()
    groups = {}
    for path in persistent(admin, original):
        groups[path] = group = unique("group")
        for each in persistent(admin, original):
            admin.create(
                each.replace(original, group),
                admin.get(each)[0].replace(original.encode(), group.encode()),
                acl_without(),
            )
    for path, group in groups.items():
        admin.set_acls(path.replace(original, group), acl_without("read"))
    settings = RestSettings(port=0, token=TOKEN, open_reads=True)
    service = Service(settings, {"main": ClusterAddress(ZOOKEEPER, cluster_39.zk_hosts, 10.0)}, interval_s=1)
    service.start()
    try:
        url = f"{service.url}/v1/clusters/main/groups"

        async def are_shown() -> bool:
            found = (await ask_described(url)).document
            return set(groups.values()) <= {each["group"] for each in found.get("groups", [])}

        await eventually(are_shown, "all groups are shown")
        for path, group in groups.items():
            shown = await ask_described(f"{url}/{group}")
            assert shown.status == 200
            assert path.replace(original, group) in json.dumps(shown.document), path
        for path in persistent(admin, original):
            admin.set_acls(path, acl_without())
        await check_changes(f"{url}/{original}", admin, original)
    finally:
        await service.close()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


#: The requests by which the service changes something: method, path, body. ``N`` is another number in each request.
_CHANGES = (
    ("POST", "/offsets/reset", '{"topics": null, "to": {"offset": N}}'),
    ("PATCH", "/config", '{"settings": {"debounce.quiet_ms": 10N}}'),
)


async def check_changes(url: str, admin: KazooClient, group: str) -> None:
    """Make each change without each right at each znode, and check that a change fails only by name of both."""
    number = itertools.count(1)

    async def make(method: str, path: str, body: str) -> Got:
        text = json.loads(body.replace("N", str(next(number) % 10)))
        return await ask_described(f"{url}{path}", method, text, {**JSON, "Authorization": f"Bearer {TOKEN}"})

    problems, refused = [], set[str]()
    for change in _CHANGES:
        with needs_of(group) as needs:
            assert (done := await make(*change)).status == 200, done.document
        cells = [Need(right, path) for path in persistent(admin, group) for right in RIGHTS]
        # The service reads all the time, so what a change reads is not known.
        needed = {each for each in cells if each._replace(path=each.path.replace(group, "*")) in needs} - {
            each for each in cells if each.right == "read"
        }
        for need in sorted(needed | set(cells[ROWS])):
            admin.set_acls(need.path, acl_without(need.right))
            done = await make(*change)
            admin.set_acls(need.path, acl_without())
            said = json.dumps(done.document)
            words = f"denies this client the right to {need.right}", "an ACL denies reading"
            is_named = need.path in said and any(each in said for each in words[: 1 + (need.right == "read")])
            if not (need not in needed if done.status == 200 else is_named):
                problems.append(f"{change[1]} without {need}: {done.status} {said}")
            if done.status != 200:
                refused.add(change[1])
    assert not problems, "\n".join(problems)
    assert len(refused) == len(_CHANGES)
