"""
Check the servers of a cluster and the znodes of its groups, and whether all servers belong to the cluster.

The functions block, and change nothing. A server that does not answer in time becomes a finding, not an error.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.serialization import CloseInstance, Connect

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import KAFKA_PORT, ZOOKEEPER_PORT, BrokerConfig, HostPort, ZooKeeperConfig, parse_hosts
from kiel_groups.errors import (
    ChrootMissingError,
    ConfigError,
    CoordinationError,
    KielGroupsError,
    ProtocolError,
)
from kiel_groups.group.cluster_identity import ClusterIdentity
from kiel_groups.group.znodes.contents import Snapshot, parse_broker_version
from kiel_groups.group.znodes.layout import BROKER_IDS, CLUSTER_ID, CONSUMERS, ROOT, TOPICS, GroupLayout, topic_path
from kiel_groups.metrics import Metrics
from kiel_groups.ops.acls import group_paths, read_acls
from kiel_groups.ops.broker_reader import BrokerGroups
from kiel_groups.ops.loaded_groups import unknown_group
from kiel_groups.ops.views.checks import Finding
from kiel_groups.ops.views.cluster_checks import (
    ASKED_MS,
    BrokerAnswer,
    Check,
    ServerAnswer,
    check_broker,
    check_chroot,
    check_clock,
    check_ensemble,
    check_mixed,
    check_rights,
    check_server,
    check_shared,
    check_znodes,
    lasting,
    rights_needed,
)
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.ops.zookeeper_client import Client, zookeeper
from kiel_groups.ops.zookeeper_reader import (
    check_group,
    list_groups,
    list_topics,
    read_brokers,
    read_group,
    read_znodes,
    registered_address,
)
from kiel_groups.security_file import tls_problem
from kiel_groups.wire.versions import VersionRange, supports_early_requests
from kiel_groups.wording import counted, own_command, some
from kiel_groups.zookeeper.kazoo_client import NAME_A_FILE, speaks_tls
from kiel_groups.zookeeper.security import security_of

#: The time until a group with a finding is read again, in seconds; see ``lasting``.
_PAUSE_S = 2.0

#: The longest text of a finding about a group, in characters.
_MOST_TEXT = 1_000

#: How many paths below the root are searched for brokers, if the chroot has none.
_MOST_CHROOTS = 100


def examine(
    zookeeper_hosts: str | None, brokers: str | None, groups: Sequence[str] = (), *, timeout_s: float = 5.0
) -> Iterator[Check]:
    """
    Examine a cluster, and yield the result of each check at its end.

    If no server of ZooKeeper opens sessions, the brokers and the groups are not examined.

    Args:
        zookeeper_hosts: ZooKeeper's servers with the chroot; None to ask brokers only.
        brokers: ``host:port`` of brokers to examine. The brokers that are registered in ZooKeeper are always examined.
        groups: The groups to examine. By default, all groups are examined.
        timeout_s: The longest time that each server may take for an answer, in seconds.

    Raises:
        ConfigError: An address is not legal, or neither ZooKeeper nor brokers are given.
        UnknownGroupError: A group does not exist.
        CoordinationError: ZooKeeper failed meanwhile.
    """
    if zookeeper_hosts is None and brokers is None:
        raise ConfigError("doctor: no servers given; expected ZooKeeper's, or brokers")
    addresses = [] if brokers is None else list(parse_hosts(brokers, KAFKA_PORT, "brokers"))
    if zookeeper_hosts is None:
        yield from _examine_brokers(addresses, groups, timeout_s)
        return
    config = ZooKeeperConfig.parse(zookeeper_hosts)
    servers = config.hosts.removesuffix(config.chroot)
    tls = security_of(config).tls_context()
    answers = asyncio.run(_ask_servers(parse_hosts(servers, ZOOKEEPER_PORT, "zk_hosts"), timeout_s, tls))
    yield from map(check_server, answers)
    if len(answers) > 1:
        yield check_ensemble(answers)
    serving = ",".join(str(each.address) for each in answers if not each.problem)
    if not serving:
        return
    try:
        # A session that tries a server which does not answer would wait for it.
        with zookeeper(f"{serving}{config.chroot}", timeout_s=timeout_s) as client:
            yield from _Examination(client, servers, addresses, timeout_s).checks(groups)
    except ChrootMissingError:
        with zookeeper(serving, timeout_s=timeout_s) as client:
            yield check_chroot(servers, config.chroot, 0, _brokers_elsewhere(client), exists=False)


# ZooKeeper's servers, each asked on its own: a session would choose one of them.

#: The errors of a request to a server that does not answer, or that answers with garbage.
_UNANSWERED = (OSError, TimeoutError, asyncio.IncompleteReadError, struct.error)


async def _ask_servers(
    addresses: Sequence[HostPort], timeout_s: float, tls: ssl.SSLContext | None = None
) -> list[ServerAnswer]:
    answers = await asyncio.gather(*(_ask_server(address, timeout_s, tls) for address in addresses))
    compared = await _compared([each for each in answers if not each.problem], timeout_s, tls)
    by_address = {each.address: each for each in compared}
    return [by_address.get(each.address, each) for each in answers]


async def _ask_server(address: HostPort, timeout_s: float, tls: ssl.SSLContext | None) -> ServerAnswer:
    try:
        async with asyncio.timeout(timeout_s):
            granted, least, most = [(await _open(address, tls, asked)).time_out for asked in (ASKED_MS, 1, 2**31 - 1)]
    except _UNANSWERED as error:
        is_closed = isinstance(error, (asyncio.IncompleteReadError, ConnectionResetError))
        if tls is None and is_closed and await asyncio.to_thread(speaks_tls, address):
            return ServerAnswer(address, f"it speaks TLS; {NAME_A_FILE}")
        return ServerAnswer(address, _reason(error, timeout_s))
    fields: dict[str, str] = {}
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            fields = await _four_letters(address, tls, b"srvr")
    version = fields.get("Zookeeper version", "").partition("-")[0].partition(",")[0]
    return ServerAnswer(address, "", version[:20], fields.get("Mode", "")[:20], granted, least, most)


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, ssl.SSLError):
        return tls_problem(error)
    if isinstance(error, TimeoutError) and not error.errno:
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, asyncio.IncompleteReadError):
        return "it closes connections, as a server without a quorum does"
    number = getattr(error, "errno", None)
    # asyncio replaces the text of a refused connection by one with its own names.
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    # The text of an unknown host name has its number, too.
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


async def _compared(
    servers: Sequence[ServerAnswer], timeout_s: float, tls: ssl.SSLContext | None
) -> list[ServerAnswer]:
    """
    Mark the servers that do not know a session of the first server, because they belong to another ensemble.

    A server that no longer answers gets a problem instead. If the first server does not answer, the next replaces it.
    """
    if len(servers) < 2:
        return list(servers)
    first, *others = servers
    try:
        async with asyncio.timeout(timeout_s):
            opened = await _open(first.address, tls, ASKED_MS, leave_open=True)
    except _UNANSWERED as error:
        return [first._replace(problem=_reason(error, timeout_s)), *await _compared(others, timeout_s, tls)]
    session = opened.session_id, opened.passwd
    # When the session has expired, no server knows it any more.
    limit_s = min(timeout_s, opened.time_out / 1000)

    async def compared(server: ServerAnswer) -> ServerAnswer:
        try:
            async with asyncio.timeout(limit_s):
                answer = await _open(server.address, tls, ASKED_MS, session, leave_open=True)
        except _UNANSWERED as error:
            return server._replace(problem=_reason(error, limit_s))
        return server._replace(is_stranger=answer.time_out <= 0)

    found = await asyncio.gather(*map(compared, others))
    with suppress(*_UNANSWERED):
        async with asyncio.timeout(limit_s):
            await _open(first.address, tls, ASKED_MS, session)  # This closes the session.
    return [first, *found]


async def _open(
    address: HostPort,
    tls: ssl.SSLContext | None,
    asked_ms: int,
    session: tuple[int, bytes] = (0, bytes(16)),
    *,
    leave_open: bool = False,
) -> Any:
    """
    Open a session at a server, or continue ``session``, and close the session unless ``leave_open`` is set.

    Returns:
        Kazoo's answer. The ``time_out`` of the answer is the session's timeout in milliseconds, or 0 if the server does
        not know the session.
    """
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    try:
        request = Connect(0, 0, asked_ms, *session, False).serialize()
        writer.write(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answer, _ = Connect.deserialize(await reader.readexactly(min(max(0, size), 1024)), 0)
        if answer.time_out > 0 and not leave_open:
            closing = struct.pack(">ii", 1, CloseInstance.type)
            writer.write(struct.pack(">i", len(closing)) + closing)
            await reader.read(1024)
        return answer
    finally:
        writer.close()


async def _four_letters(address: HostPort, tls: ssl.SSLContext | None, command: bytes) -> dict[str, str]:
    """Send a four-letter command, and return the fields of the answer, or {} if the server forbids the command."""
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    try:
        writer.write(command)
        lines = (await reader.read(64 << 10)).decode(errors="replace").splitlines()
    finally:
        writer.close()
    parts = [line.partition(":") for line in lines]
    return {name.strip(): value.strip() for name, colon, value in parts if colon}


# Brokers.


#: The API keys of requests, each with the first release of Kafka that knows the request; the newest first.
_RELEASES = (
    *((75, "3.8"), (71, "3.7"), (68, "3.5"), (65, "3.0"), (60, "2.8"), (50, "2.7"), (48, "2.6"), (47, "2.4")),
    *((44, "2.3"), (43, "2.2"), (42, "1.1"), (37, "1.0"), (21, "0.11"), (19, "0.10.1")),
)


def _release_of(ranges: dict[int, VersionRange] | None, registered: int | None) -> str:
    """
    Return a text with the releases that a broker may have.

    The release follows from the requests that the broker knows, or from the version of its registration.
    """
    if ranges is None:
        return {None: "Kafka 0.8 or 0.9", 1: "Kafka 0.8"}.get(registered, "Kafka 0.9")
    if not supports_early_requests(ranges):
        return "Kafka 4.0 or later"
    return next((f"Kafka {release} or later" for key, release in _RELEASES if key in ranges), "Kafka 0.10.0")


async def _ask_broker(name: str, address: HostPort, registered_version: int | None, timeout_s: float) -> BrokerAnswer:
    limit_ms = max(1, round(timeout_s * 1000))
    config = BrokerConfig(hosts=(address,), connect_timeout_ms=limit_ms, request_timeout_ms=limit_ms)
    cluster = ClusterMetadata(config, Metrics())
    try:
        async with asyncio.timeout(timeout_s):
            identity = await cluster.identity(with_id=False)
        ranges, release = None, ""
        # Without an answer, the release is not known, and the broker works all the same.
        with suppress(KielGroupsError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                if registered_version != 1:
                    found = await cluster.ask_versions(lambda: address, "versions")
                    ranges = None if found.ranges is None else dict(found.ranges)
                release = _release_of(ranges, registered_version)
                if ranges is not None:
                    identity = await cluster.identity(with_id=True)
        is_too_new = ranges is not None and not supports_early_requests(ranges)
        return BrokerAnswer(name, "", release, is_too_new, identity)
    except TimeoutError:
        return BrokerAnswer(name, f"no answer within {timeout_s:g} s")
    except KielGroupsError as error:
        reason = str(error).removeprefix("no broker answered: ").removeprefix(f"{address}: ")
        return BrokerAnswer(name, reason)
    finally:
        cluster.close()


def _examine_brokers(addresses: Sequence[HostPort], groups: Sequence[str], timeout_s: float) -> Iterator[Check]:
    """
    Examine brokers and their groups without ZooKeeper.

    Each broker must belong to the cluster of the first broker that names the brokers of its cluster.

    Raises:
        ConfigError: ``groups`` are given, and the brokers coordinate no groups.
        UnknownGroupError: One of ``groups`` does not exist.
    """

    async def ask() -> list[BrokerAnswer]:
        asked = (_ask_broker(f"broker at {each}", each, None, timeout_s) for each in addresses)
        return await asyncio.gather(*asked)

    answers = asyncio.run(ask())
    identities = [each.identity for each in answers if each.identity is not None]
    # A broker of 0.8 names no broker while its cluster has no topic.
    first = next((each for each in identities if each.brokers), ClusterIdentity({}))
    yield from (check_broker(answer, first, "the first broker") for answer in answers)
    if not identities:
        return
    try:
        found = BrokerGroups(",".join(map(str, addresses)), timeout_s=timeout_s).load_all(with_lag=False)
    except ConfigError:
        if groups:
            raise
        yield Check("groups", "these brokers coordinate none (Kafka 0.8); '--zookeeper' shows those in ZooKeeper")
        return
    views = {view.group: view for view in found.groups}
    for group in groups:
        if group not in views:
            raise unknown_group(group, f"at brokers {', '.join(map(str, addresses))}", list(views))
    now_ms = _now_ms()
    shown = [views[group] for group in groups] if groups else list(views.values())
    findings = [finding for view in shown for finding in _named(view.group, check_znodes(view, {}, now_ms))]
    problems = [
        Finding("coordinators", problem, "start the brokers that lead __consumer_offsets") for problem in found.problems
    ]
    yield Check(_of_groups(shown), "what their coordinators know", (*problems, *findings))


def _of_groups(views: Sequence[GroupView]) -> str:
    return f"{counted(views, 'group')}, {counted(sum(view.size for view in views), 'member')}"


def _named(group: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings of a group with the group's name in front. Texts are cut to ``_MOST_TEXT`` characters."""
    for each in findings:
        # Names of znodes may be long.
        text = f"group {group}: {each.text}"[:_MOST_TEXT]
        yield replace(each, text=text, remedy=each.remedy[:_MOST_TEXT])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# ZooKeeper's znodes.


class _Examination:
    """Examines the brokers, the shared znodes and the groups of the ZooKeeper that a session is connected to."""

    def __init__(self, client: Client, servers: str, brokers: list[HostPort], timeout_s: float) -> None:
        self._client = client
        self._servers = servers
        self._given = brokers
        self._timeout_s = timeout_s
        #: The latest time of a write to the znodes that were read, in epoch milliseconds.
        self._newest_ms = 0
        self._views: list[GroupView] = []
        self._topics: list[str] = []

    def checks(self, groups: Sequence[str]) -> Iterator[Check]:
        registered = {path: znode for path, znode in read_brokers(self._client).items() if path != BROKER_IDS}
        elsewhere = {} if registered else _brokers_elsewhere(self._client)
        chroot = check_chroot(self._servers, self._client.chroot, len(registered), elsewhere)
        yield chroot._replace(findings=(*chroot.findings, *_unreadable_brokers(registered)))
        self._newest_ms = max((znode.modified_ms for znode in registered.values()), default=0)
        asked = asyncio.run(self._ask_brokers(registered))
        identity = self._identity(registered, asked)
        yield from (check_broker(answer, identity) for answer in asked)
        names = list_groups(self._client)
        for group in groups:
            check_group(self._client, group, f"{self._servers}{self._client.chroot}")
        self._topics = list_topics(self._client)
        yield check_shared({ROOT: names, CONSUMERS: names, TOPICS: self._topics}, self._rights(("/", ROOT, CONSUMERS)))
        yield from self._groups(groups or names)
        if any(not each.release.startswith("Kafka 0.8") and each.release for each in asked):
            yield from self._mixed([each.name.rpartition(" ")[2] for each in asked if each.identity is not None])
        yield check_clock(self._newest_ms, _now_ms())

    async def _ask_brokers(self, registered: Snapshot) -> list[BrokerAnswer]:
        """Ask the registered brokers, and the brokers whose addresses the caller has given."""
        asked: dict[HostPort, tuple[str, int | None]] = {each: (f"broker at {each}", None) for each in self._given}
        for path, znode in sorted(registered.items()):
            with suppress(ProtocolError):
                address = registered_address(znode.data, path)
                name = f"broker {path.rpartition('/')[2]} at {address}"
                asked[address] = (name, parse_broker_version(znode.data, path))
        return await asyncio.gather(
            *(_ask_broker(name, address, version, self._timeout_s) for address, (name, version) in asked.items())
        )

    def _identity(self, registered: Snapshot, asked: Iterable[BrokerAnswer]) -> ClusterIdentity:
        """
        Return the identity of the cluster by its znodes.

        The identity has topics and a cluster id only if the addresses that a broker names raise a doubt.
        """
        brokers = {int(path.rpartition("/")[2]): znode.data for path, znode in registered.items()}
        identity = ClusterIdentity.registered(brokers)
        doubtful = [each.identity for each in asked if each.identity and identity.may_differ(each.identity)]
        if not doubtful:
            return identity
        topics = list_topics(self._client)
        compared = {topic_path(topic) for each in doubtful for topic in each.to_compare(topics)}
        data = {path: znode.data for path, znode in read_znodes(self._client, [CLUSTER_ID, *compared]).items()}
        by_topic = {topic: data.get(topic_path(topic)) for topic in topics}
        has_no_id = self._client.exists(CLUSTER_ID) is None
        return ClusterIdentity.registered(brokers, by_topic, data.get(CLUSTER_ID), has_no_id=has_no_id)

    def _groups(self, groups: Sequence[str]) -> Iterator[Check]:
        first = {group: found for group in groups if (found := tuple(self._examine_group(group, keep=True)))}
        findings: list[Finding] = []
        if first:
            time.sleep(_PAUSE_S)
            for group, found in first.items():
                findings += _named(group, lasting(found, self._examine_group(group)))
        yield Check(_of_groups(self._views), "their znodes and ACLs", tuple(findings))

    def _examine_group(self, group: str, *, keep: bool = False) -> Iterator[Finding]:
        if not self._client.connected:
            # A read would wait without limit for a new connection.
            raise CoordinationError(f"the connection to ZooKeeper at {self._servers} broke")
        znodes = read_group(self._client, group)
        self._newest_ms = max(self._newest_ms, *(znode.modified_ms for znode in znodes.values()), 0)
        # Without any topic, brokers are missing, and not the topics of this group.
        layout = GroupLayout(group)
        of_topics = () if self._topics else (f"{layout.offsets}/", f"{layout.starts}/")
        znodes = {path: znode for path, znode in znodes.items() if not path.startswith(of_topics)}
        view = view_group(group, znodes)
        if keep:
            self._views.append(view)
        yield from check_znodes(view, znodes, _now_ms())
        if view.is_of_consumers:
            needed = rights_needed(group, [path for path, znode in znodes.items() if not znode.closed])
            yield from check_rights(needed, self._rights(needed))
            yield from self._wrong_acls(group)

    def _wrong_acls(self, group: str) -> Iterator[Finding]:
        """Yield a finding if the file with the credentials asks for ACLs, and znodes have others."""
        if self._client.security.acl:
            wrong = [each.path for each in read_acls(self._client, group_paths(self._client, group)) if each.differs]
            if wrong:
                yield Finding(
                    "acl",
                    f"ACLs of {counted(wrong, 'znode')} differ from those that the file with the credentials asks for:"
                    f" {some(wrong)}",
                    f"see {own_command('acl', 'show', group)}, and {own_command('acl', 'apply', group)}",
                )

    def _rights(self, paths: Iterable[str]) -> dict[str, int]:
        """
        Return the rights that each znode's ACL gives to everyone, or to the user of this command's credentials.

        Missing and unreadable znodes are left out.
        """
        rights = {}
        users = [each for each in self._client.security.identities if each.id]
        schemes = {"world", *(each.scheme for each in self._client.security.identities if not each.id)}
        for path, read in [(path, self._client.get_acls_async(path)) for path in paths]:
            with suppress(NoNodeError, NoAuthError):
                acls, _ = read.get()
                anyone = [each.perms for each in acls if each.id.scheme in schemes or each.id in users]
                rights[path] = 0
                for each in anyone:
                    rights[path] |= each
        return rights

    def _mixed(self, brokers: Sequence[str]) -> Iterator[Check]:
        """Compare the groups in ZooKeeper with the groups that the brokers coordinate."""
        try:
            by_brokers = BrokerGroups(",".join(brokers), timeout_s=self._timeout_s).load_all(with_lag=False)
        except KielGroupsError as error:
            yield Check("groups that brokers coordinate", f"not known: {error}")
            return
        text = counted(by_brokers.groups, "group")
        yield Check("groups that brokers coordinate", text, tuple(check_mixed(self._views, by_brokers.groups)))


def _unreadable_brokers(registered: Snapshot) -> Iterator[Finding]:
    for path, znode in sorted(registered.items()):
        try:
            registered_address(znode.data, path)
        except ProtocolError as error:
            text = str(error)[:_MOST_TEXT]
            remedy = "restart that broker: it registers again"
            if "no listener for" in text:
                remedy = "give --security with a file that has a table [kafka] (docs/security.rst)"
            yield Finding("unreadable", text, remedy)


def _brokers_elsewhere(client: Client) -> dict[str, int]:
    """
    Return the number of registered brokers by chroot: the root ("") and the paths directly below the root.

    Chroots without brokers are left out. At most ``_MOST_CHROOTS`` paths are searched.
    """
    chroot, client.chroot = client.chroot, ""
    found: dict[str, int] = {}
    try:
        paths = ["", *(f"/{name}" for name in sorted(client.get_children("/"))[:_MOST_CHROOTS])]
        for path in paths:
            with suppress(NoNodeError, NoAuthError):
                count = len(client.get_children(f"{path}{BROKER_IDS}"))
                if count:
                    found[path] = count
    finally:
        client.chroot = chroot
    return found
