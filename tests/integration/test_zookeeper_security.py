"""Members and tools at a ZooKeeper with digest, with SASL, and with TLS and client certificates."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_acl, make_digest_acl_credential

from kiel_groups.allocators import round_robin
from kiel_groups.clients import GroupedConsumer
from kiel_groups.config import SECURITY_VARIABLE, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.security import USER, Authority
from kiel_groups.errors import CoordinationError, CredentialsError, NoZooKeeperError
from kiel_groups.group.znodes.transactions import Create, Done
from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
from kiel_groups.metrics import Metrics
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.service import Service
from kiel_groups.spark import offsets
from kiel_groups.spark.options import ReadOptions
from kiel_groups.workers.execution import worker
from kiel_groups.workers.execution.worker_settings import WorkerSettings
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Session, SessionEvent
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import kiel_groups, kiel_groups_here
from tests.helpers.contexts import process_context
from tests.helpers.described_answers import ask_described
from tests.helpers.generic_program import NumberProgram
from tests.helpers.members import Member
from tests.helpers.secret_scan import SecretScan
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

DIGEST_PASSWORD = "digest-word-5512"
KEY_PASSWORD = "key-word-3307"
RECORDS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(secure=True) as started:
        yield started


def written(path: Path, *lines: str) -> Path:
    """Write a file for one ZooKeeper, and return its path."""
    path.write_text("\n".join(["[zookeeper]", *lines]), encoding="utf-8")
    path.chmod(0o600)
    return path


def of_sasl(cluster: Cluster) -> list[str]:
    return [f'sasl-user = "{USER}"', f'sasl-password = "{cluster.security.password}"']


def of_tls(cluster: Cluster) -> list[str]:
    folder = cluster.security.folder
    return [f'tls-ca = "{folder}/ca.pem"', f'tls-certificate = "{folder}/client.pem"']


def test_doctor_asks_servers_with_tls(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names the file. With a wrong file, or without it, doctor says what it misses."""
    monkeypatch.setenv(SECURITY_VARIABLE, str(written(tmp_path / "tls.toml", *of_tls(cluster))))
    healthy = kiel_groups_here("doctor", "--zookeeper", cluster.tls_hosts)
    assert (healthy.returncode, healthy.stderr) == (0, "info: nothing is wrong: 6 checks\n")
    assert "3.9.5" in healthy.stdout
    monkeypatch.setenv(SECURITY_VARIABLE, str(written(tmp_path / "other.toml", "tls = true")))
    refused = kiel_groups_here("doctor", "--zookeeper", cluster.tls_hosts)
    assert refused.returncode == 1
    assert "its certificate is refused: unable to get local issuer certificate" in " ".join(refused.stdout.split())
    monkeypatch.delenv(SECURITY_VARIABLE)
    plain = kiel_groups_here("doctor", "--zookeeper", cluster.tls_hosts)
    assert "it speaks TLS; name a file" in " ".join(plain.stdout.split())


@pytest.mark.parametrize("kind", ["digest", "sasl", "tls"])
async def test_a_member_and_a_command_need_the_credentials(
    kind: str, cluster: Cluster, unique: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the right file, they work. With a wrong one, each of them has one clear error, and shows no password."""
    topic, group = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    await produce(cluster, topic, RECORDS)
    hosts = cluster.tls_hosts if kind == "tls" else cluster.zk_hosts
    right, wrong, error, error_type = {
        "digest": (
            ['digest-user = "u"', f'digest-password = "{DIGEST_PASSWORD}"', 'acl = "creator-all"'],
            ['digest-user = "u"', 'digest-password = "wrong"', 'acl = "creator-all"'],
            "ACL",
            CoordinationError,
        ),
        "sasl": (
            of_sasl(cluster),
            [of_sasl(cluster)[0], 'sasl-password = "wrong"'],
            "the user or the password of SASL is refused",
            CredentialsError,
        ),
        "tls": (
            of_tls(cluster),
            of_tls(cluster)[:1],
            "it refuses this client: bad certificate; is 'tls-certificate' set, and valid there?",
            NoZooKeeperError,
        ),
    }[kind]
    caplog.set_level(logging.DEBUG, "kiel_groups.kazoo")
    files = written(tmp_path / "right.toml", *right), written(tmp_path / "wrong.toml", *wrong)
    member = await Member(cluster, group, [topic], zk_hosts=hosts, security=files[0]).start()
    await eventually(lambda: len(member.records) == RECORDS, "all records are delivered")
    address = ("--zookeeper", hosts, "--security")
    described = await asyncio.to_thread(kiel_groups_here, "describe", group, "--check", *address, str(files[0]))
    assert (described.returncode, described.stderr) == (0, "")
    assert member.consumer.member_id is not None
    assert member.consumer.member_id in described.stdout
    if kind != "tls":  # A command waits for 5 s, for any certificate.
        refused = await asyncio.to_thread(kiel_groups_here, "describe", group, "--check", *address, str(files[1]))
        assert refused.returncode == 1
        # Without rights, describe shows what it can read.
        assert error in (refused.stdout if kind == "digest" else refused.stderr)
        assert len(refused.stderr.splitlines()) == (0 if kind == "digest" else 1), refused.stderr
    intruder = GroupedConsumer(cluster.brokers, group, hosts, security=files[1], zk_timeout_ms=3_000)
    with pytest.raises(error_type, match=error):
        await intruder.connect()
    await member.stop()
    scan = scan_of(cluster)
    scan.look_at("the log and the answer", caplog.text + described.stdout)
    assert scan.found == []
    # kazoo logs its request.
    assert ("[hidden]" in caplog.text) == (kind == "digest")


async def test_a_running_group_gets_acls_step_by_step(
    cluster: Cluster, unique: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    First all members get credentials, then the file asks for ACLs, then a command sets those of older znodes. No
    partition is lost. An ACL that ZooKeeper does not accept is not used. At the end, only the creator can change the
    group's znodes, or read those of this package. Everyone can read those of Kafka. The parents that all groups share
    stay open.
    """
    topic, group = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, RECORDS)
    credentials = ['digest-user = "u"', f'digest-password = "{DIGEST_PASSWORD}"']
    file = written(tmp_path / "digest.toml", *credentials)
    first = await Member(cluster, group, [topic], security=file).start()
    await eventually(lambda: len(first.records) == RECORDS, "all records are delivered")
    session = first.consumer._lifecycle.connected.member._member_session.session  # type: ignore[union-attr]
    # ZooKeeper knows no address of this form.
    written(file, *credentials, 'acl = ["creator-all", "ip:nowhere:r"]')
    with zookeeper(cluster) as client:
        before = client.get_children("/kiel-groups")
        for _ in range(2):
            await session.follow_acls()
        assert not session.client.security.acl
        written(file, *credentials, 'acl = "creator-all"')
        await session.follow_acls()
        assert session.client.security.acl == tuple(CREATOR_ALL_ACL)
        assert client.get_children("/kiel-groups") == before
    refused = (
        f"refuses acl, acl-consumers, acl-offsets of {file}, so new znodes get the former ACLs: it does not accept"
    )
    assert caplog.text.count(refused) == 1
    second = await Member(cluster, group, [topic], security=file).start()
    await first.stop()
    place = ("--zookeeper", cluster.zk_hosts, "--security", str(file))
    found = await asyncio.to_thread(kiel_groups_here, "doctor", group, *place)
    assert "differ from those that the file with the credentials asks for: /consumers/" in " ".join(
        found.stdout.split()
    )
    applied = await asyncio.to_thread(kiel_groups_here, "acl", "apply", group, "--yes", *place)
    assert (applied.returncode, applied.stderr.splitlines()[1:]) == (0, [])
    shown = await asyncio.to_thread(kiel_groups_here, "acl", "show", group, "--json", *place)
    assert {each["acl"]: each["differs"] for each in json.loads(shown.stdout)["acls"]} == {
        "digest:u:...:cdrwa": False,
        "digest:u:...:cdrwa world:anyone:r": False,
    }
    await produce(cluster, topic, RECORDS, RECORDS)
    await eventually(lambda: len(second.records) == RECORDS, "all records are delivered")
    # ZooKeeper hides the digest from everyone but the user.
    own, everyone = make_acl("digest", "u:x", all=True), make_acl("world", "anyone", read=True)
    owner = f"/consumers/{group}/owners/{topic}/0"
    with zookeeper(cluster) as client:
        assert client.get_acls(owner)[0] == client.get_acls(f"/consumers/{group}")[0] == [own, everyone]
        assert client.get(owner)[0]
        with pytest.raises(NoAuthError):
            client.delete(owner)
        assert client.get_acls("/kiel-groups")[0] == client.get_acls("/consumers")[0] == OPEN_ACL_UNSAFE
        with pytest.raises(NoAuthError):
            client.get_children(f"/kiel-groups/{group}/members")
    await second.stop()
    assert (first.lost_partitions, second.lost_partitions) == ([], [])
    offset = ("--topic", topic, "--to-offset", "7")
    changed = await asyncio.to_thread(
        kiel_groups_here, "offsets", "reset", group, *offset, "--yes", *place, folder=tmp_path
    )
    assert changed.returncode == 0, changed.stderr
    with zookeeper(cluster) as client:
        assert client.get(f"/consumers/{group}/offsets/{topic}/0")[0] == b"7"


async def test_renewed_certificates_are_read_at_the_next_connection(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    While the certificates do not fit, a session has no connection, and one log line says why. With the right ones, it
    continues, also with more data than one record of TLS can carry.
    """
    authority = tmp_path / "ca.pem"
    authority.write_bytes((cluster.security.folder / "ca.pem").read_bytes())
    file = written(tmp_path / "tls.toml", f'tls-ca = "{authority}"', of_tls(cluster)[1])
    events: asyncio.Queue[SessionEvent] = asyncio.Queue()
    config = ZooKeeperConfig.parse(cluster.tls_hosts, security=file, session_timeout_ms=10_000)
    session = Session(config, Metrics(), events.put_nowait, Runtime())
    await session.open()
    assert isinstance(await session.transact([Create(f"/large-{number}", bytes(40_000)) for number in range(5)]), Done)
    (tmp_path / "other").mkdir()
    authority.write_bytes(Authority(tmp_path / "other").path.read_bytes())
    session.connection.leave(session.connection.current, "is left by a test")
    assert await events.get() is SessionEvent.SUSPENDED
    problem = "ZooKeeper at 127.0.0.1: its certificate is refused"
    await eventually(lambda: problem in caplog.text, "the problem is logged")
    authority.write_bytes((cluster.security.folder / "ca.pem").read_bytes())
    assert await events.get() is SessionEvent.RESUMED
    found = await session.get_many([f"/large-{number % 5}" for number in range(100)])
    assert {len(node.data) for node in found if node} == {40_000}
    await session.close()
    assert caplog.text.count(problem) == 1


async def test_credentials_that_are_revoked_and_given_again(
    cluster: Cluster, unique: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The member loses its partitions, logs the reason once, and joins again when its credentials are right."""
    topic, group = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    file = written(tmp_path / "sasl.toml", *of_sasl(cluster))
    member = await Member(cluster, group, [topic], security=file, session_timeout_ms=6_000).start()
    await eventually(lambda: member.held, "the partition is owned")
    session = member.consumer._lifecycle.connected.member._member_session.session  # type: ignore[union-attr]
    written(file, of_sasl(cluster)[0], 'sasl-password = "wrong"')
    session.client._connection.sasl_options["password"] = "wrong"
    session.connection.leave(session.connection.current, "is left by a test")
    await eventually(lambda: member.lost_partitions, "the partition is lost")
    refused = f"could not join: ZooKeeper at {cluster.zk_hosts}: the user or the password of SASL is refused; retrying"
    await eventually(lambda: refused in caplog.text, "the reason is logged")
    file.unlink()
    await eventually(lambda: f"could not join: {file} cannot be read" in caplog.text, "the new reason is logged")
    written(file, *of_sasl(cluster))
    await eventually(lambda: member.held, "the partition is owned again")
    assert caplog.text.count("could not join") == 2
    assert "is over (the user or the password of SASL is refused); joining again" in caplog.text
    await member.stop()


async def consume(hosts: str, group: str, brokers: list[HostPort]) -> None:
    async with GroupedConsumer(brokers, group, hosts, zk_timeout_ms=TIMEOUT_MS):
        pass


async def allocate(hosts: str, group: str, brokers: list[HostPort]) -> None:
    config = ZooKeeperConfig.parse(hosts, connect_timeout_ms=TIMEOUT_MS)
    process = AllocatorProcess(process_context(GroupConfig(group=group), config), round_robin, lambda error: None)
    try:
        await process.start()
    finally:
        await process.close()


async def run_program(hosts: str, group: str, brokers: list[HostPort]) -> None:
    program = NumberProgram(group, {"zk_hosts": hosts, "connect_timeout_ms": TIMEOUT_MS})
    try:
        await program.member.start()
    finally:
        await program.member.close()


async def work(hosts: str, group: str, brokers: list[HostPort]) -> None:
    settings = WorkerSettings(
        group=group, zookeeper=hosts, brokers=",".join(map(str, brokers)), rest=RestSettings(port=0)
    )
    async with worker.Worker(settings):
        pass


async def run_command(hosts: str, group: str, brokers: list[HostPort]) -> None:
    done = await asyncio.to_thread(kiel_groups, "describe", group, "--zookeeper", hosts)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    raise CoordinationError(line)


async def serve(hosts: str, group: str, brokers: list[HostPort]) -> None:
    """Its other clusters are served, so the service runs, and says what is wrong with this one."""
    address = ClusterAddress(ZOOKEEPER, hosts, TIMEOUT_MS / 1000)
    service = Service(RestSettings(port=0, open_reads=True), {"main": address}, interval_s=1)
    service.start()
    try:

        async def problem() -> str:
            (found,) = (await ask_described(f"{service.url}/v1/clusters")).document["clusters"]
            return str(found["error"] or "")

        raise CoordinationError(await eventually(problem, "the cluster has an error"))
    finally:
        await service.close()


async def start_query(hosts: str, group: str, brokers: list[HostPort]) -> None:
    """Check the group as the driver of a stream of Spark does before it reads."""
    options = {"kafka.bootstrap.servers": ",".join(map(str, brokers)), "kiel.zookeeper.connect": hosts}
    options |= {"kafka.group.id": group, "subscribe": "t"}
    await asyncio.to_thread(offsets.refuse_live_group, ReadOptions.parse(options, streaming=True))


ROLES = (consume, allocate, run_program, work, run_command, serve, start_query)
TIMEOUT_MS = 3_000

#: What is wrong with the file or the address: the ports, the lines of the file, the host, and the text of each error.
WRONG = {
    "password": (
        "plain",
        ['sasl-user = "member"', 'sasl-password = "wrong"'],
        "",
        "or the password of SASL is refused",
    ),
    "authority": ("tls", ['tls-ca = "{other}/ca.pem"'], "", "its certificate is refused: unable to get local issuer"),
    "certificate": (
        "tls",
        ['tls-ca = "{folder}/ca.pem"', 'tls-certificate = "{folder}/expired.pem"'],
        "",
        "certificate",
    ),
    "host": ("tls", ['tls-ca = "{folder}/ca.pem"'], "127.1", "its certificate is refused: Hostname mismatch"),
}


@pytest.mark.parametrize("kind", WRONG)
async def test_each_role_says_what_is_wrong_with_its_credentials(
    kind: str, cluster: Cluster, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong password, a foreign authority, an expired certificate, another host name: one line with the reason."""
    port, lines, host, text = WRONG[kind]
    hosts = cluster.tls_hosts if port == "tls" else cluster.zk_hosts
    hosts = hosts.replace("127.0.0.1", host or "127.0.0.1")
    Authority(tmp_path)
    if kind == "certificate":
        Authority(cluster.security.folder).issue("expired", days=-1)
    folders = {"other": str(tmp_path), "folder": str(cluster.security.folder)}
    written(tmp_path / "wrong.toml", *(line.format(**folders) for line in lines))
    monkeypatch.setenv(SECURITY_VARIABLE, str(tmp_path / "wrong.toml"))
    monkeypatch.setattr(
        worker, "ZooKeeperConfig", Mock(parse=partial(ZooKeeperConfig.parse, connect_timeout_ms=TIMEOUT_MS))
    )
    monkeypatch.setattr(offsets, "zookeeper", partial(offsets.zookeeper, timeout_s=TIMEOUT_MS / 1000))
    group = unique("group")
    begun = [role(hosts, group, list(cluster.brokers)) for role in ROLES]
    for role, error in zip(ROLES, await asyncio.gather(*begun, return_exceptions=True), strict=True):
        assert isinstance(error, CoordinationError), (role, error)
        assert text in str(error), role
        assert "\n" not in str(error), role


async def test_no_secret_is_shown_or_stored(
    cluster: Cluster, unique: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A member and commands use all kinds of credentials at once. No log line at level DEBUG, answer, command line or file
    of the servers has a secret. The files have all znodes, also those of the tests above.
    """
    topic, group = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    command = ["openssl", "pkey", "-in", cluster.security.folder / "client.pem", "-aes256", "-passout"]
    made = await asyncio.to_thread(subprocess.run, [*command, f"pass:{KEY_PASSWORD}"], check=True, capture_output=True)
    (tmp_path / "key.pem").write_bytes(made.stdout)
    (tmp_path / "key.pem").chmod(0o600)
    file = written(
        tmp_path / "all.toml",
        *of_tls(cluster),
        'tls-key = "key.pem"',
        f'tls-key-password = "{KEY_PASSWORD}"',
        'digest-user = "u"',
        f'digest-password = "{DIGEST_PASSWORD}"',
        *of_sasl(cluster),
        'acl = "creator-all"',
    )
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "kiel_groups.kazoo")
    scan = scan_of(cluster)
    place = ("--zookeeper", cluster.tls_hosts, "--security", str(file))
    with scan.watching_processes():
        member = await Member(cluster, group, [topic], zk_hosts=cluster.tls_hosts, security=file).start()
        await eventually(lambda: member.held, "the partition is owned")
        for words in (("acl", "show", group), ("describe", group), ("doctor", group)):
            answer = await asyncio.to_thread(kiel_groups, *words, "--json", *place)
            assert (answer.returncode, answer.stderr) == (0, "")
            assert json.loads(answer.stdout)
            scan.look_at(f"the answer of {words[0]}", answer.stdout)
        await member.stop()
    assert scan.saw_command("describe", "--security")
    assert "Sending request" in caplog.text
    scan.look_at("the log", caplog.text)
    for server in cluster.servers:
        # ZooKeeper stores the digest in ACLs.
        assert scan.look_into(server.folder, ignoring=["digest"])
    assert any(group.encode() in path.read_bytes() for path in cluster.zookeeper.folder.rglob("log.*"))
    assert scan.found == []


def scan_of(cluster: Cluster) -> SecretScan:
    """Return a scan for the secrets of these tests."""
    return SecretScan(
        sasl_password=cluster.security.password,
        digest_password=DIGEST_PASSWORD,
        digest=make_digest_acl_credential("u", DIGEST_PASSWORD).partition(":")[2],
        key_password=KEY_PASSWORD,
    )
