"""Clients and tools at brokers with TLS, with client certificates, and with SASL PLAIN and SCRAM."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kiel_groups import Producer, SingleConsumer
from kiel_groups.clients import GroupedConsumer
from kiel_groups.clients.net.broker_access import connection_problem, open_socket
from kiel_groups.config import SECURITY_VARIABLE, BrokerConfig, HostPort
from kiel_groups.errors import NoBrokersError, ProtocolError
from kiel_groups.spark.worker_connections import find_leaders
from kiel_groups.wire import sasl
from tests.helpers.cluster_data import produce
from tests.helpers.commands import kiel_groups_here
from tests.helpers.members import Member
from tests.helpers.secured_brokers import PASSWORD, USER, SecuredBrokers
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("secured brokers")]

RECORDS = 20

#: The keys of a table, and the same as arguments.
USER_KEYS = [f'sasl-user = "{USER}"', f'sasl-password = "{PASSWORD}"']
USER_ARGUMENTS = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBrokers]:
    with SecuredBrokers(tmp_path_factory.mktemp("certificates")) as started:
        yield started


def written(path: Path, *lines: str) -> Path:
    """Write a file for the brokers of one cluster, and return its path."""
    path.write_text("\n".join(["[kafka]", *lines]), encoding="utf-8")
    path.chmod(0o600)
    return path


KINDS = {
    "SSL": ("SSL", ['tls-ca = "{folder}/ca.pem"', 'tls-certificate = "{folder}/client.pem"']),
    "PLAIN": ("SASL_PLAINTEXT", ['sasl-mechanism = "PLAIN"', *USER_KEYS]),
    "SCRAM-SHA-256": ("SASL_PLAINTEXT", ['sasl-mechanism = "SCRAM-SHA-256"', *USER_KEYS]),
    "SCRAM-SHA-512 with TLS": (
        "SASL_SSL",
        ['sasl-mechanism = "SCRAM-SHA-512"', *USER_KEYS, 'tls-ca = "{folder}/ca.pem"'],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_clients_and_tools_use_the_file(
    kind: str,
    cluster: SecuredBrokers,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    A producer, a member of a group that the brokers coordinate, with heartbeats and commits, a command, and a worker
    of Spark. Nothing shows the password.
    """
    caplog.set_level(logging.DEBUG)
    listener, lines = KINDS[kind]
    brokers, topic, group = cluster.at(listener), unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    file = written(tmp_path / "brokers.toml", *(each.format(folder=cluster.certificates) for each in lines))
    monkeypatch.setenv(SECURITY_VARIABLE, str(file))
    producer = Producer(brokers)
    await producer.connect()
    values = [b"x" * 100_000 + str(number).encode() for number in range(RECORDS)]
    await asyncio.gather(*(producer.produce(topic, value) for value in values))
    await producer.close()
    member = await Member(cluster, group, [topic], brokers=brokers, zk_hosts=None, coordination="brokers").start()
    await eventually(lambda: len(member.records) == RECORDS, "all records are delivered")
    assert sorted(member.values) == sorted(values)
    place = ("--coordination", "brokers", "--brokers", brokers)
    described = await asyncio.to_thread(kiel_groups_here, "describe", group, *place)
    assert (described.returncode, described.stderr) == (0, "")
    assert "2" in described.stdout
    await member.stop()
    address = HostPort(*_address(brokers))
    leaders = await asyncio.to_thread(find_leaders, [address], BrokerConfig(hosts=(address,)), [topic])
    assert set(leaders.values()) == {address}
    assert PASSWORD not in caplog.text + described.stdout + repr(member.consumer)


def _address(brokers: str) -> tuple[str, int]:
    host, port = brokers.split(":")
    return host, int(port)


#: Settings that are wrong for a listener, and what the error says.
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "wrong password, PLAIN": (
        "SASL_PLAINTEXT",
        {**USER_ARGUMENTS, "sasl_mechanism": "PLAIN", "sasl_plain_password": "wrong"},
        "it refuses the user or the password (PLAIN): Authentication failed: Invalid username or password",
    ),
    "wrong password, SCRAM": (
        "SASL_PLAINTEXT",
        {**USER_ARGUMENTS, "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_password": "wrong"},
        "it refuses the user or the password (SCRAM-SHA-256): Authentication failed during authentication due to",
    ),
    "unknown user": (
        "SASL_PLAINTEXT",
        {**USER_ARGUMENTS, "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "nobody"},
        "it refuses the user or the password (SCRAM-SHA-256): Authentication failed during authentication due to",
    ),
    "mechanism not enabled": (
        "SASL_PLAINTEXT",
        {**USER_ARGUMENTS, "sasl_mechanism": "SCRAM-SHA-512"},
        "it does not offer the SASL mechanism SCRAM-SHA-512; it offers PLAIN, SCRAM-SHA-256",
    ),
    "SASL at a port without": (
        "PLAINTEXT",
        {**USER_ARGUMENTS, "sasl_mechanism": "PLAIN"},
        "it expects no SASL at this port; leave out user and password, or use another port",
    ),
    "SASL without TLS at a port with": (
        "SASL_SSL",
        {**USER_ARGUMENTS, "sasl_mechanism": "SCRAM-SHA-512"},
        "this port is for TLS, which the settings of the client do not ask for",
    ),
    "another authority": (
        "SASL_SSL",
        {"security_protocol": "SSL"},
        "its certificate is refused: unable to get local issuer certificate",
    ),
    "expired certificate": ("EXPIRED", {"ssl_cafile": "ca.pem"}, "its certificate is refused: certificate has expired"),
    "certificate of another host": (
        "ELSEWHERE",
        {"ssl_cafile": "ca.pem"},
        "its certificate is refused: IP address mismatch, certificate is not valid for '127.0.0.1'",
    ),
    "no client certificate": (
        "SSL",
        {"ssl_cafile": "ca.pem"},
        "it refuses this client: bad certificate; is 'tls-certificate' set, and valid there?",
    ),
    "TLS at a plain port": ("PLAINTEXT", {"ssl_cafile": "ca.pem"}, "it does not speak TLS at this port, or closes"),
    "plain text at a port for TLS": ("SSL", {}, "this port is for TLS, which the settings"),
    "plain text at a port for SASL": ("SASL_PLAINTEXT", {}, "and its port for plain text (docs/security.rst)?"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_is_wrong_is_named_in_one_line(
    case: str, cluster: SecuredBrokers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop's connection and a blocking one say the same, and do not show the password."""
    listener, settings, text = WRONG[case]
    monkeypatch.chdir(cluster.certificates)
    brokers = cluster.at(listener)
    consumer = SingleConsumer(brokers, connect_timeout_ms=30_000, **settings)
    with pytest.raises(NoBrokersError) as raised:
        await consumer.connect()
    await consumer.close()
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)
    assert PASSWORD not in caplog.text + str(raised.value)
    if settings and case != "no client certificate":  # This refusal follows the handshake.
        address = HostPort(*_address(brokers))
        config = BrokerConfig(hosts=(address,), **settings)
        with pytest.raises((OSError, ProtocolError)) as blocked:
            await asyncio.to_thread(open_socket, address, config, 30.0)
        assert text in connection_problem(blocked.value)


async def test_messages_without_a_header_work_too(cluster: SecuredBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers before 1.0 know no others. Later ones still accept them, so they can stand in for those."""
    monkeypatch.setattr(sasl.SaslHandshakeRequestV1, "API_VERSION", 1_000)
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        settings: dict[str, Any] = {**USER_ARGUMENTS, "sasl_mechanism": mechanism}
        consumer = SingleConsumer(cluster.at("SASL_PLAINTEXT"), **settings)
        await consumer.connect()
        await consumer.close()
        settings["sasl_plain_password"] = "wrong"
        with pytest.raises(NoBrokersError, match=r"it refuses the user or the password \([A-Z0-9-]+\)"):
            await SingleConsumer(cluster.at("SASL_PLAINTEXT"), **settings).connect()


def test_a_command_names_a_wrong_password_once(cluster: SecuredBrokers, tmp_path: Path) -> None:
    """The password is neither on the command line nor in the answer."""
    file = written(tmp_path / "wrong.toml", 'sasl-mechanism = "PLAIN"', f'sasl-user = "{USER}"', 'sasl-password = "no"')
    place = ("--coordination", "brokers", "--brokers", cluster.at("SASL_PLAINTEXT"), "--security", str(file))
    refused: subprocess.CompletedProcess[str] = kiel_groups_here("topics", "list", *place)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "it refuses the user or the password (PLAIN): Authentication failed" in refused.stderr


async def test_revoked_credentials_are_logged_and_work_again_when_they_are_right(
    cluster: SecuredBrokers,
    unique: Callable[[str], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    The broker ends each session of this listener after three seconds, so a member connects again and again. When its
    user is gone, it cannot commit; the log names the reason. A new password in the file applies without a restart.
    """
    brokers, topic, group = cluster.at("BRIEF"), unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, RECORDS)
    keys = ['sasl-mechanism = "SCRAM-SHA-512"', f'sasl-user = "{USER}"']
    file = written(tmp_path / "brokers.toml", *keys, f'sasl-password = "{PASSWORD}"')
    settings: dict[str, Any] = {"zk_hosts": None, "coordination": "brokers", "security": file, "max_backoff_ms": 500}
    member = await Member(cluster, group, [topic], brokers=brokers, auto_commit_interval_ms=100, **settings).start()
    try:
        await eventually(lambda: len(member.records) == RECORDS, "all records are delivered")
        cluster.remove_user()
        refused = "it refuses the user or the password (SCRAM-SHA-512)"

        def warnings() -> list[str]:
            return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

        await eventually(lambda: any(refused in line for line in warnings()), "the reason is logged")
        assert len(warnings()) < 5, warnings()
        assert all(record.exc_info is None for record in caplog.records)
        cluster.set_user("another-word-1184")
        written(file, *keys, 'sasl-password = "another-word-1184"')
        await produce(cluster, topic, RECORDS, first=RECORDS)
        await eventually(lambda: len(set(member.values)) == 2 * RECORDS, "the member reads on")
        assert "another-word-1184" not in caplog.text
    finally:
        cluster.set_user()
        await member.stop()


async def test_arguments_replace_the_file(
    cluster: SecuredBrokers, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the names of kafka-python."""
    monkeypatch.setenv(SECURITY_VARIABLE, "/dev/null")
    consumer = GroupedConsumer(
        cluster.at("SASL_SSL"),
        unique("group"),
        coordination="brokers",
        security_protocol="SASL_SSL",
        ssl_cafile=cluster.certificates / "ca.pem",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username=USER,
        sasl_plain_password=PASSWORD,
    )
    assert PASSWORD not in repr(consumer.__dict__)
    await consumer.connect()
    await consumer.close()
