"""Admit a process to a group: check the group's settings, or write them first, and register a member."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import GroupConfig
from kiel_groups.errors import (
    ConfigError,
    CoordinationError,
    ForeignMemberError,
    GroupConfigError,
    KielGroupsError,
    ProtocolError,
    SessionLostError,
)
from kiel_groups.group.cluster_identity import ClusterIdentity
from kiel_groups.group.subscription import Subscription
from kiel_groups.group.znodes.contents import GroupSettings, MemberInfo, encode_consumer_id, whole_number
from kiel_groups.group.znodes.layout import BROKER_IDS, CLUSTER_ID, TOPICS, GroupLayout, WorkerLayout, topic_path
from kiel_groups.group.znodes.round_contents import RoundSettings, program_type, refusal_by_programs
from kiel_groups.group.znodes.transactions import (
    LARGEST_BYTES,
    Answer,
    Check,
    Create,
    Delete,
    Done,
    Failure,
    Operation,
    Refused,
    Unknown,
    size_of,
)
from kiel_groups.members.zookeeper.monitors import find_foreign_members
from kiel_groups.model import CONNECT_TYPE
from kiel_groups.wording import own_command, some
from kiel_groups.zookeeper.session import Node, Session
from kiel_groups.zookeeper.tasks import SessionContext

log = logging.getLogger(__name__)

#: The most topics whose existence is asked for one by one. For more, the names of all topics are read at once.
MOST_ASKED_FOR = 20


# The checks before a process takes part in a group: it fits the group's members, settings agree, no member is foreign.
#
# A process that is refused has written nothing. The settings tell the type of the members. The first member writes the
# settings. So if two processes create a group at the same time with different settings, one process is refused.


async def check_admission(session: Session, layout: GroupLayout, config: GroupConfig) -> None:
    """
    Check that this consumer may join its group, and write the group's settings if the group has none.

    Raises:
        GroupConfigError: The members are programs, or the group's settings differ from this member's or cannot be read.
        ForeignMemberError: Java, pykafka or kiel consumers are alive in the group.
    """
    await _check_foreign(session, layout)
    mine = GroupSettings(store=config.store, mode=config.mode, auto_offset_reset=config.auto_offset_reset)
    node = await session.get(layout.config)
    await refuse_programs(session, layout, node)
    node = await _founded(session, layout, node, mine.encode())
    try:
        group = GroupSettings.parse(node.data, layout.config)
    except ProtocolError as error:
        # The first program of a group may have written its settings meanwhile.
        await refuse_programs(session, layout, node)
        raise GroupConfigError(
            f"the settings of group {layout.group} cannot be read: {error};"
            f" {own_command('config', 'set', layout.group, '--replace')} replaces them"
        ) from error
    if differences := mine.differences(group):
        details = "; ".join(f"{each.setting} is {each.other!r} there and {each.own!r} here" for each in differences)
        raise GroupConfigError(
            f"this member disagrees with its group {layout.group}: {details}. Give this member the group's setting,"
            f" or stop all members and change the znode {layout.config}"
        )


async def check_cluster(session: Session, cluster: ClusterMetadata) -> None:
    """
    Check that the brokers do not belong to another cluster than ZooKeeper does.

    If offsets of one cluster were used in the logs of another cluster, records would be lost. Only proof of another
    cluster is an error. If it is unknown whether the clusters are the same, log a warning.

    Raises:
        ConfigError: The brokers belong to another cluster; see ``ClusterIdentity.difference``.
        SessionLostError: The session is over.
    """
    try:
        theirs = cluster.known_identity
        brokers = await _registrations(session, theirs.brokers)
        if theirs.addresses & ClusterIdentity.registered(brokers).addresses:
            return
        numbers = map(whole_number, await session.children(BROKER_IDS) or [])
        brokers = await _registrations(session, [number for number in numbers if number is not None])
        if not ClusterIdentity.registered(brokers).may_differ(theirs):
            return
        cluster_id = await session.get(CLUSTER_ID)
        theirs = await cluster.identity(with_id=True)
        topics: dict[str, bytes | None] = dict.fromkeys(await session.children(TOPICS) or [])
        compared = theirs.to_compare(topics)
        read = await session.get_many([topic_path(topic) for topic in compared])
        topics |= {topic: node and node.data for topic, node in zip(compared, read, strict=True)}
        ours = ClusterIdentity.registered(brokers, topics, cluster_id and cluster_id.data, has_no_id=cluster_id is None)
    except SessionLostError:
        raise
    except KielGroupsError as error:
        log.info("not known whether brokers and ZooKeeper are of one cluster: %s", error)
        return
    if doubt := ours.doubt(theirs):
        log.warning("not known whether brokers and ZooKeeper are of one cluster, so compare their addresses: %s", doubt)
    if difference := ours.difference(theirs):
        raise ConfigError(
            f"the brokers are of another cluster than ZooKeeper's: they name {some(sorted(theirs.addresses))}, and"
            f" ZooKeeper registers {some(sorted(ours.addresses))}; {difference}. Give the brokers and the ZooKeeper of"
            " one cluster"
        )


async def _registrations(session: Session, ids: Collection[int]) -> dict[int, bytes | None]:
    """Return the data of the znodes of these brokers."""
    nodes = await session.get_many([f"{BROKER_IDS}/{node_id}" for node_id in ids])
    return {node_id: node and node.data for node_id, node in zip(ids, nodes, strict=True)}


async def refuse_programs(session: Session, layout: GroupLayout, settings: Node | None) -> None:
    """
    Check that the members of a group are not programs. A group of unknown type passes the check.

    Args:
        session: The session to read with.
        layout: The group.
        settings: The group's ``config``, as it was read.

    Raises:
        GroupConfigError: The members are programs. Programs would not understand a plan of partitions.
    """
    if (found := await _program_type(session, layout, settings)) is not None:
        raise refusal_by_programs(layout.group, found)


async def admit_program(session: Session, layout: GroupLayout, protocol_type: str) -> None:
    """
    Check that a group's members are programs of this type, and write the group's settings if the group has none.

    Refuse a name that consumers of any client use, too: a group of programs would hide the offsets of these consumers
    from tools.

    Raises:
        GroupConfigError: The group's members are of another type, or its settings cannot be read.
    """
    mine = RoundSettings(protocol_type)
    node = await session.get(layout.config)
    found = await _program_type(session, layout, node)
    if node is None and found is None and await _has_consumers(session, layout):
        raise _refusal_by_consumers(layout)
    if found in (None, protocol_type):
        node = await _founded(session, layout, node, mine.encode())
        found = _parsed(node.data, layout).protocol_type
    if found != protocol_type:
        theirs = "workers" if found == CONNECT_TYPE else f"of the type {found!r}"
        own = "a worker" if protocol_type == CONNECT_TYPE else f"of the type {protocol_type!r}"
        raise GroupConfigError(
            f"group {layout.group}: its members are {theirs}, and this one is {own}; choose another group"
        )


async def _program_type(session: Session, layout: GroupLayout, settings: Node | None) -> str | None:
    """Return the type of the members if they are programs; see ``program_type``."""
    if settings is not None:
        return program_type(settings.data, None, has_workers=False)
    workers = WorkerLayout(layout.group)
    configuration = await session.get(workers.config)
    has_workers = bool(await session.children(workers.workers))
    return program_type(None, None if configuration is None else configuration.data, has_workers=has_workers)


async def _has_consumers(session: Session, layout: GroupLayout) -> bool:
    """Return whether consumers of any client use the group's name: ids, owners, offsets or kiel members exist."""
    return any(await session.children_many([layout.ids, layout.owners, layout.offsets, layout.kiel_members]))


async def _founded(session: Session, layout: GroupLayout, node: Node | None, mine: bytes) -> Node:
    """Return the group's settings. If there are none (``node`` is None), write this member's settings first."""
    while node is None:
        # Settings are never overwritten: if two members are first at the same time, one create succeeds, and both read
        # it.
        answer = await session.transact([Create(layout.config, mine)])
        if isinstance(answer, Done):
            log.info("group %s: new group; it takes the settings of this member", layout.group)
        node = await session.get(layout.config)
        if node is None and not isinstance(answer, Unknown):
            await session.ensure(layout.parents)
    return node


def _parsed(data: bytes, layout: GroupLayout) -> RoundSettings:
    """
    Return the settings of a group of programs.

    Raises:
        GroupConfigError: The settings are those of consumers, or cannot be read.
    """
    try:
        return RoundSettings.parse(data, layout.config)
    except ProtocolError as error:
        with suppress(ProtocolError):
            GroupSettings.parse(data, layout.config)
            raise _refusal_by_consumers(layout) from None
        raise GroupConfigError(
            f"group {layout.group}: its settings cannot be read: {error}. Choose another group, or delete that znode"
            " while no member is alive"
        ) from error


def _refusal_by_consumers(layout: GroupLayout) -> GroupConfigError:
    return GroupConfigError(f"group {layout.group}: its members are consumers; choose another group")


async def _check_foreign(session: Session, layout: GroupLayout) -> None:
    found = await find_foreign_members(session, layout)
    if found.names:
        raise ForeignMemberError(
            f"group {layout.group} has {found}: they would read the same partitions. Stop them first, or use another"
            " group"
        )


async def create_registration(
    session: Session, group: str, creation: Sequence[Operation], restore_folders: Callable[[], Awaitable[None]]
) -> None:
    """
    Create the znodes that register a process, in one transaction. Repeat the transaction until ZooKeeper answers.

    Znodes that exist after a lost answer are this process's own, because their names contain the session id. A read
    could not confirm the creation, because the server may lag behind.

    Args:
        session: The session of the process.
        group: The group's name.
        creation: The operations. The first operation creates the znode that errors name.
        restore_folders: Creates deleted parents of the znodes again.

    Raises:
        CoordinationError: ZooKeeper refuses the transaction.
    """
    unanswered = False
    while not isinstance(answer := await session.transact(creation), Done):
        if isinstance(answer, Unknown):
            unanswered = True
        elif answer.failure is Failure.NO_NODE:
            await restore_folders()
        elif unanswered and answer.failure is Failure.NODE_EXISTS:
            break
        else:
            raise CoordinationError(
                f"group {group}: ZooKeeper refused to register {creation[0].path}: {answer.failure.name}"
            )


class SubscriptionRegistration:
    """
    Writes the znodes that register one member on one session: the member znode, and the consumer id for Kafka's tools.

    A subscription that does not fit into a znode is refused.

    Args:
        context: The member on its open session; its member id is the name of both znodes.
        subscription: Returns the topics or the pattern that the application wants at this moment.
    """

    def __init__(self, context: SessionContext, subscription: Callable[[], Subscription]) -> None:
        self._context = context
        self._session = context.session
        self._config = context.config
        self._member_id = context.member_id
        self._started_ms = context.started_ms
        self._metrics = context.metrics
        self._subscription = subscription
        self._path = context.layout.member(context.member_id)
        self._consumer_id = context.layout.consumer_id(context.member_id)
        self._writing = asyncio.Lock()
        #: The registered subscription; None while it is not known.
        self._registered: Subscription | None = None

    @property
    def is_outdated(self) -> bool:
        """Whether the application has subscribed to other topics, or to another pattern, than is registered."""
        return self._registered != self._subscription()

    def check(self, topics: Collection[str]) -> None:
        """
        Check that these topics can be registered.

        Raises:
            ConfigError: The topics take more space than ZooKeeper allows.
        """
        self._creation(Subscription(frozenset(topics)))

    def _creation(self, wanted: Subscription) -> list[Operation]:
        topics = wanted.topics
        info = MemberInfo(
            member_id=self._member_id,
            session_timeout_ms=self._session.timeout_ms,
            subscription=tuple(sorted(topics)),
            instance_id=self._config.instance_id,
            capacity=self._config.capacity,
            rack=self._config.rack,
            host=self._context.runtime.host(),
            pid=self._context.runtime.pid(),
            client=self._config.client,
            started_at_ms=self._started_ms,
            settings=tuple(sorted(self._config.changed_settings.items())),
            pattern=wanted.pattern,
        )
        operations: list[Operation] = [
            Create(self._path, info.encode(), ephemeral=True),
            Create(self._consumer_id, self._consumer_data(wanted), ephemeral=True),
        ]
        size = sum(map(size_of, operations))
        if size > LARGEST_BYTES:
            raise ConfigError(
                f"group {self._config.group}: a subscription to {len(topics)} topics takes {size >> 10} KiB in"
                f" ZooKeeper, expected at most {LARGEST_BYTES >> 10}; have several members subscribe to some of them"
                " each"
            )
        return operations

    def _consumer_data(self, wanted: Subscription) -> bytes:
        return encode_consumer_id(wanted.topics, self._started_ms, wanted.pattern)

    async def register(self) -> None:
        """
        Create the member znode and the consumer id; see ``create_registration``.

        Raises:
            CoordinationError: ZooKeeper refuses the transaction.
            ConfigError: As :meth:`check`.
        """
        async with self._writing:
            wanted = self._registered = self._subscription()
            await create_registration(self._session, self._config.group, self._creation(wanted), self._restore_folders)
        log.info(
            "group %s: joined as %s, session timeout %d ms",
            self._config.group,
            self._member_id,
            self._session.timeout_ms,
        )

    async def _restore_folders(self) -> None:
        """
        Create the group's folders again after some of them were deleted.

        Raises:
            AuthorizationError: ZooKeeper refuses to create a folder because of an ACL.
            CoordinationError: The chroot is missing.
        """
        self._metrics.count("group_folders_restored")
        log.warning(
            "group %s: folders that %s registers in were deleted; creating them again",
            self._config.group,
            self._member_id,
        )
        await self._session.ensure(self._context.layout.parents)

    async def restore_consumer_id(self) -> None:
        """Restore a deleted consumer id. Kafka 0.8 tools and consumers see this member by its consumer id."""
        async with self._writing:
            if self._registered is None or await self._session.exists(self._consumer_id) is not None:
                return
            consumer_data = self._consumer_data(self._registered)
            operations: list[Operation] = [Check(self._path), Create(self._consumer_id, consumer_data, ephemeral=True)]
            while isinstance(answer := await self._session.transact(operations), Refused) and answer.index == 1:
                if answer.failure is not Failure.NO_NODE:
                    break
                await self._restore_folders()
            if isinstance(answer, Done):
                log.warning(
                    "group %s: %s was deleted and has been created again", self._config.group, self._consumer_id
                )

    async def follow_subscription(self) -> None:
        """
        Register a changed subscription.

        One transaction deletes and creates the member's znodes. The claims are not affected, and the leader's watch on
        the member znode fires.

        Raises:
            SessionLostError: The member znode is gone. The method has ended the session.
        """
        async with self._writing:
            while self.is_outdated:
                wanted = self._subscription()
                # Until there is an answer, either subscription may be the registered one. If the application returns to
                # the previous subscription, that must be registered again, too.
                self._registered = None
                answer = await self._register_again(wanted)
                if isinstance(answer, Done):
                    self._registered = wanted
                    await self.warn_of_missing_topics()
                elif not isinstance(answer, Unknown):
                    self._session.end("the member znode is gone")
                    raise SessionLostError(f"the member znode {self._path} is gone")

    async def withdraw(self) -> bool:
        """
        Register an empty subscription, so that the leader revokes all partitions. Return False if ZooKeeper refuses
        that.
        """
        async with self._writing:
            return not isinstance(await self._register_again(Subscription()), Refused)

    async def _register_again(self, wanted: Subscription) -> Answer:
        removal: list[Operation] = [Delete(self._path), Delete(self._consumer_id)]
        return await self._session.transact([*removal, *self._creation(wanted)])

    async def warn_of_missing_topics(self) -> None:
        """Warn of registered topics that do not exist. Such topics are allowed, but their names may be wrong."""
        topics = sorted(self._registered.topics if self._registered else ())
        if len(topics) > MOST_ASKED_FOR:
            existing = frozenset(await self._session.children(TOPICS) or ())
            missing = [topic for topic in topics if topic not in existing]
        else:
            nodes = await self._session.exists_many([topic_path(topic) for topic in topics])
            missing = [topic for topic, node in zip(topics, nodes, strict=True) if node is None]
        if missing:
            self._metrics.count("subscribed_topics_missing", len(missing))
            log.warning(
                "group %s: no such topic yet: %s; it is consumed as soon as it exists",
                self._config.group,
                ", ".join(missing),
            )
