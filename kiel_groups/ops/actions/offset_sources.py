"""
Read and write the offsets of one group, whether they are in znodes or in Kafka.

``ZooKeeperOffsets`` and ``BrokerOffsets`` have the same methods. The methods do not check whether live members prevent
a change: see ``ops.actions.offsets``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TypeAlias

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from kiel_groups.config import BROKER_V1, ZOOKEEPER_STORE, check_name
from kiel_groups.errors import BrokerError, ConfigError, ConflictError, CoordinationError, ProtocolError
from kiel_groups.group.znodes.contents import FirstOffsets, Snapshot, encode_offset
from kiel_groups.group.znodes.layout import GroupLayout, topic_path
from kiel_groups.group.znodes.round_contents import refusal_by_programs
from kiel_groups.group.znodes.transactions import Create, Delete, Operation, Put, chunks
from kiel_groups.members.brokers.offset_requests import NO_GENERATION, NO_MEMBER, PASSING, find_kafka_offsets
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.ops.actions.topics import check_present, partitions_of
from kiel_groups.ops.broker_reader import (
    BrokerSession,
    ask_coordinator,
    committed_offsets,
    describe_group,
    in_session,
    unknown_group,
    view_of,
)
from kiel_groups.ops.loaded_groups import find_logs
from kiel_groups.ops.views.group_reading import GroupReading
from kiel_groups.ops.views.group_view import MemberView
from kiel_groups.ops.views.offset_changes import IN_BROKERS, GroupOffsets, OffsetChange
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.ops.zookeeper_client import Client, children_of, commit, refusal_text, zookeeper
from kiel_groups.ops.zookeeper_reader import (
    broker_addresses,
    check_group,
    consumed_topics,
    doubtful_brokers,
    list_topics,
    read_brokers,
    read_summaries,
    refuse_programs,
)
from kiel_groups.wire.error_codes import NO_ERROR, ErrorCode
from kiel_groups.wire.offsets import OFFSETS_TOPIC, OffsetCommitRequestV1, OffsetDeleteRequest
from kiel_groups.wording import counted, own_command, some


class ZooKeeperOffsets:
    """
    Reads and writes the offsets of groups in a ZooKeeper.

    If a group's store is ``broker-v1``, its offsets are in Kafka, and otherwise in its znodes.

    The calls block, and raise the errors of ``zookeeper``.

    Args:
        hosts: ``host:port,host:port/chroot``.
        timeout_s: How long to wait for ZooKeeper, and then for the brokers, in seconds.
    """

    def __init__(self, hosts: str, *, timeout_s: float = 10.0) -> None:
        self._hosts = hosts
        self._timeout_s = timeout_s

    def read(
        self,
        group: str,
        topics: Collection[str] = (),
        *,
        store: str | None = None,
        must_exist: bool = True,
        topics_exist: bool = False,
        with_logs: bool = True,
    ) -> GroupOffsets:
        """
        Read the offsets of a group.

        Args:
            group: The group's name.
            topics: Topics to include, in addition to the topics that the group subscribes to or has offsets of.
            store: The store of a group without settings, such as a group of Java consumers. By default, the store that
                has offsets of the group, or ZooKeeper if no store has offsets.
            must_exist: Whether to raise an error if the group does not exist.
            topics_exist: Whether to raise an error if one of the ``topics`` does not exist.
            with_logs: Whether to ask the brokers for the starts and the ends of the logs.

        Raises:
            UnknownGroupError, UnknownTopicError: The group or a topic does not exist. The text suggests a similar name.
            ConfigError: The members are programs. Or both stores have offsets and ``store`` is None. Or the group's
                settings name another store than ``store``.
            CoordinationError: An ACL denies reading znodes of the group.
            BrokerError: The offsets are, or may be, in Kafka, and cannot be read there.
        """
        check_name(group, "group")
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            if must_exist:
                check_group(client, group, self._hosts)
            refuse_programs(client, group)
            existing = set(list_topics(client))
            if topics_exist:
                check_present(topics, existing, f"in ZooKeeper at {self._hosts}")
            registered, znodes = read_brokers(client), read_summaries(client, [group], offsets=True)[group]
            view, stored = view_group(group, znodes), GroupReading(GroupLayout(group), znodes).offsets()
            if view.closed:
                raise CoordinationError(f"an ACL denies reading {some(view.closed)}")
            wanted = {*topics, *view.subscribed, *consumed_topics(znodes)} & existing
            numbers = {topic: tuple(sorted(partitions_of(client, topic))) for topic in sorted(wanted)}
            layout = GroupLayout(group)
            gone = _begun_in(client, layout, set(children_of(client, layout.starts)) - existing)
        settled = None if view.settings is None else view.settings.store
        in_kafka: Mapping[TopicPartition, int] = {}
        if (settled or store or BROKER_V1) == BROKER_V1:
            is_known = BROKER_V1 in (settled, store)
            in_kafka = self._find_in_kafka(group, registered, numbers, existing, is_known=is_known)
        store = _store_of(group, settled, store, in_znodes=bool(stored), in_kafka=bool(in_kafka))
        read = GroupOffsets(
            group,
            store,
            in_kafka
            if store == BROKER_V1
            else {p: each.offset for p, each in stored.items() if each.offset is not None},
            numbers,
            exists=bool(stored or in_kafka or view.was_joined),
            versions={} if store == BROKER_V1 else {p: each.znode.version for p, each in stored.items()},
            members=tuple(map(_described, view.members)),
            foreign=tuple(f"{each.name} (under {each.path.rpartition('/')[0]})" for each in view.foreign_members),
            subscribed=view.subscribed,
            has_settings=view.settings is not None,
            brokers=tuple(broker_addresses(registered)),
            gone=gone if store == BROKER_V1 else frozenset(),
        )
        return asyncio.run(_with_logs(read, self._timeout_s)) if with_logs else read

    def _find_in_kafka(
        self,
        group: str,
        registered: Snapshot,
        numbers: Mapping[str, Iterable[int]],
        existing: Collection[str],
        *,
        is_known: bool,
    ) -> Mapping[TopicPartition, int]:
        """
        Return the group's offsets in Kafka. Raise BrokerError if the offsets cannot be read.

        Unless the offsets are known to be in Kafka (``is_known``), the brokers are asked only if the topic of the
        offsets exists, and no broker has release 0.8.0. Brokers of 0.8.0 and 0.8.1 have no coordinators, and the first
        request for a coordinator creates this topic.
        """
        doubtful = [] if is_known else doubtful_brokers(registered)
        if not is_known and (doubtful is None or OFFSETS_TOPIC not in existing):
            return {}
        found = asyncio.run(
            find_kafka_offsets(
                broker_addresses(registered),
                {group: _partitions(numbers)},
                doubtful=doubtful or [],
                timeout_s=self._timeout_s,
            )
        ).get(group)
        if found is None:
            return {}
        if found.problem:
            raise BrokerError(f"group {group}: {found.problem}")
        return {partition: each.offset for partition, each in found.offsets.items()}

    def write(
        self, found: GroupOffsets, changes: Sequence[OffsetChange], znodes: Mapping[str, str] | None = None
    ) -> str:
        """
        Write changes of offsets, and the missing ``znodes`` of a group without settings.

        Offset znodes are written only if they still have the versions in ``found``.

        Returns:
            A remark for people, or "".

        Raises:
            ConflictError: Another client has changed an offset, and the text has the number of written offsets.
            CoordinationError: ZooKeeper refuses an offset, and the text has that number.
            BrokerError, ConfigError: The offsets are in Kafka, and the coordinator refuses them or does not answer.
        """
        layout = GroupLayout(found.group)
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            for path, data in sorted((znodes or {}).items() if not found.has_settings else ()):
                with suppress(NodeExistsError):  # A member was faster, and has its own.
                    client.create(f"{layout.root}/{path}", data.encode("latin-1"), makepath=True)
            if not found.is_in_kafka:
                _write_znodes(client, layout, found, changes)
                return ""
            new, deleted = _divided(changes)
            if new:
                brokers = ",".join(map(str, found.brokers))
                store = partial(_store, group=found.group, new=new)
                in_session(brokers, self._timeout_s, store, of_groups=False)
                _note_starts(client, layout, new)
            return self._delete_in_kafka(client, layout, found, deleted) if deleted else ""

    def check_deletion(self, found: GroupOffsets, deleted: Collection[TopicPartition]) -> None:
        """
        Check that the store can delete these offsets.

        Raises:
            ConfigError: The offsets are in Kafka, a topic would keep other offsets of the group, and the brokers cannot
                delete single offsets.
        """
        kept = {each.topic for each in found.offsets.keys() - set(deleted)}
        left = kept & {each.topic for each in deleted}
        if found.is_in_kafka and left and not self._can_delete_in_kafka(found):
            raise ConfigError(
                "brokers delete single offsets in Kafka on request from 2.4 on, and these are older; name all"
                f" partitions of {some(sorted(left))}, so that the group no longer counts the topic as its own"
            )

    def _can_delete_in_kafka(self, found: GroupOffsets) -> bool:
        brokers = ",".join(map(str, found.brokers))
        # A session about groups refuses brokers that are too old for them. Those cannot delete offsets, either.
        with suppress(ConfigError):
            return in_session(brokers, self._timeout_s, _deletes_offsets)
        return False

    def _delete_in_kafka(
        self, client: Client, layout: GroupLayout, found: GroupOffsets, deleted: Collection[TopicPartition]
    ) -> str:
        """
        Delete offsets in Kafka if the brokers can delete offsets. Return a remark for people, or "".

        For topics without any remaining offset, also delete the group's znodes of first offsets, offsets and owners.
        Because of these znodes, tools would still count the topics among the group's topics.
        """
        topics = {each.topic for each in deleted} - {each.topic for each in found.offsets.keys() - set(deleted)}
        remark = ""
        brokers, in_kafka = ",".join(map(str, found.brokers)), found.offsets.keys() & set(deleted)
        if in_kafka and self._can_delete_in_kafka(found):
            in_session(brokers, self._timeout_s, lambda session: _delete(session, found.group, in_kafka))
        elif in_kafka:
            remark = "Kafka keeps the offsets until they expire; the group no longer counts the topic as its own"
        for topic in sorted(topics):
            # A topic with one of the other folders counts as the group's, too. A member that joins creates them again.
            for folder in (layout.topic_starts(topic), layout.topic_offsets(topic), layout.topic_owners(topic)):
                with suppress(NoNodeError, NotEmptyError):
                    client.delete(folder)
        return remark


class BrokerOffsets:
    """
    Reads and writes the offsets of groups that brokers coordinate.

    The calls block, and raise the errors of ``BrokerSession``.

    Args:
        brokers: ``host:port`` of some brokers, separated by commas.
        timeout_s: How long a broker may take for an answer, in seconds.
    """

    def __init__(self, brokers: str, *, timeout_s: float = 10.0) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s

    def read(
        self,
        group: str,
        topics: Collection[str] = (),
        *,
        store: str | None = None,
        must_exist: bool = True,
        topics_exist: bool = False,
        with_logs: bool = True,
    ) -> GroupOffsets:
        """Read the offsets of a group; see ``ZooKeeperOffsets.read``. The ``store`` is ignored."""
        if not group:
            raise ConfigError("group: '' is not the name of a group")

        async def read(session: BrokerSession) -> GroupOffsets:
            if topics_exist:
                check_present(topics, session.topics, session.place)
            found = await _read_from_brokers(session, group, topics, must_exist)
            return await _with_logs(found, self._timeout_s) if with_logs else found

        return in_session(self._brokers, self._timeout_s, read)

    def write(
        self, found: GroupOffsets, changes: Sequence[OffsetChange], znodes: Mapping[str, str] | None = None
    ) -> str:
        """
        Write changes of offsets, and return "". The ``znodes`` are ignored, because the group has no znodes.

        Raises:
            BrokerError: The coordinator refuses, for example because a member has joined, or does not answer.
        """
        new, deleted = _divided(changes)

        async def write(session: BrokerSession) -> None:
            if new:
                await _store(session, found.group, new)
            if deleted:
                await _delete(session, found.group, deleted)

        in_session(self._brokers, self._timeout_s, write)
        return ""

    def check_deletion(self, found: GroupOffsets, deleted: Collection[TopicPartition]) -> None:
        """Check that the brokers can delete offsets. Raise ConfigError if the brokers are older than Kafka 2.4."""
        if not in_session(self._brokers, self._timeout_s, _deletes_offsets):
            raise ConfigError(
                "brokers delete single offsets on request from Kafka 2.4 on, and these are older; the offsets of a"
                " group without members expire after the brokers' offsets.retention.minutes, and from 1.1 on"
                f" {own_command('groups', 'delete', found.group)} deletes all of them"
            )


OffsetSource: TypeAlias = ZooKeeperOffsets | BrokerOffsets


# What is read


def _begun_in(client: Client, layout: GroupLayout, topics: Iterable[str]) -> frozenset[TopicPartition]:
    """
    Return the partitions of ``topics`` of which the group has first offsets.

    A topic with no readable first offsets counts as having partition 0.
    """
    begun = set[TopicPartition]()
    for topic in topics:
        numbers: Iterable[int] = ()
        with suppress(NoNodeError, ProtocolError):
            numbers = FirstOffsets.parse(client.get(layout.topic_starts(topic))[0], layout.topic_starts(topic)).offsets
        begun |= {TopicPartition(topic, number) for number in numbers or (0,)}
    return frozenset(begun)


def _store_of(group: str, settled: str | None, given: str | None, *, in_znodes: bool, in_kafka: bool) -> str:
    """
    Return the store of the offsets of a group that ZooKeeper coordinates: ``settled`` by the settings, or ``given``.

    Without either, return the store that has offsets, or ZooKeeper. Raise ConfigError if ``given`` contradicts the
    settings, or if both stores have offsets.
    """
    if settled is not None:
        if given not in (None, settled):
            raise ConfigError(f"store: {given!r} given; the settings of group {group} have {settled!r}")
        return settled
    if given is None and in_znodes and in_kafka:
        raise ConfigError(
            f"store: not given, and group {group} has offsets in ZooKeeper and in Kafka, and no settings that say which"
            " of them count; expected 'zookeeper' or 'broker-v1'"
        )
    return given or (BROKER_V1 if in_kafka else ZOOKEEPER_STORE)


async def _read_from_brokers(
    session: BrokerSession, group: str, topics: Collection[str], must_exist: bool
) -> GroupOffsets:
    if not session.has_coordinators:
        if must_exist:
            raise await unknown_group(session, group)
        numbers = {name: _numbers(session, name) for name in topics if name in session.topics}
        return GroupOffsets(group, IN_BROKERS, {}, numbers, exists=False, brokers=tuple(session.brokers.values()))
    committed = await committed_offsets(session, group)
    view = view_of(session, await describe_group(session, group), committed)
    if must_exist and not view.exists:
        raise await unknown_group(session, group)
    if not view.is_of_consumers:
        raise refusal_by_programs(group, view.protocol_type)
    if committed.problem:
        raise BrokerError(f"group {group}: {committed.problem}")
    wanted = {*topics, *view.subscribed, *(each.topic for each in committed.offsets)}
    return GroupOffsets(
        group,
        IN_BROKERS,
        committed.offsets,
        {name: _numbers(session, name) for name in sorted(wanted) if name in session.topics},
        exists=view.exists,
        members=tuple(map(_described, view.members)),
        subscribed=view.subscribed,
        brokers=tuple(session.brokers.values()),
    )


def _numbers(session: BrokerSession, topic: str) -> tuple[int, ...]:
    return tuple(sorted(each.partition for each in session.topics[topic].partitions))


def _described(member: MemberView) -> str:
    host = f"host {member.host}" if member.host else ""
    pid = f"pid {member.pid}" if member.pid else ""
    aside = ", ".join(each for each in (host, pid) if each)
    return f"{member.member_id} ({aside})" if aside else member.member_id


def _partitions(numbers: Mapping[str, Iterable[int]]) -> list[TopicPartition]:
    return [TopicPartition(topic, each) for topic, listed in numbers.items() for each in listed]


async def _with_logs(found: GroupOffsets, timeout_s: float) -> GroupOffsets:
    """Return the offsets with the starts and the ends of the logs of existing topics."""
    logs = await find_logs(found.brokers, _partitions(found.topics), timeout_s=timeout_s)
    return replace(found, **logs._asdict())


# What is written


def _divided(changes: Iterable[OffsetChange]) -> tuple[dict[TopicPartition, int], tuple[TopicPartition, ...]]:
    """Return the new offsets, and the partitions whose offsets are deleted."""
    new = {each.partition: each.after for each in changes if each.after is not None}
    return new, tuple(each.partition for each in changes if each.after is None)


def _write_znodes(client: Client, layout: GroupLayout, found: GroupOffsets, changes: Sequence[OffsetChange]) -> None:
    """
    Write changes of offset znodes, in transactions of some hundred operations.

    The znodes must still have the versions in ``found``. Raise ConflictError otherwise; then earlier transactions
    stay written. If the changes only delete offsets of a topic without a subscriber, also delete the topic's empty
    parent znodes.
    """
    for topic in sorted({each.partition.topic for each in changes if each.after is not None}):
        client.ensure_path(layout.topic_offsets(topic))
    partitions, written = {layout.offset(each.partition): each.partition for each in changes}, 0
    for portion in chunks(_operation(layout.offset(p), found.versions.get(p), after) for p, _, after, _ in changes):
        if failed := commit(client, portion):
            partition, error = partitions[failed[0].path], failed[1]
            kind: type[CoordinationError] = ConflictError
            why = changed_meanwhile(layout.group, [partition])
            if not isinstance(error, (BadVersionError, NodeExistsError, NoNodeError)):
                kind = CoordinationError
                why = f"group {layout.group}: the offset of {partition} is refused: {refusal_text(error)}"
            raise kind(f"{why}; {written:,} of {len(changes):,} offsets are written; try again")
        written += len(portion)
    for topic, listed in groupby(changes, key=lambda each: each.partition.topic):
        # A live member needs the folders of the topics that it subscribes to.
        if topic not in found.subscribed and all(each.after is None for each in listed):
            with suppress(NoNodeError, NotEmptyError):  # Other partitions have offsets.
                client.delete(layout.topic_offsets(topic))
                # The topic would still count as the group's. A member that joins creates the folder again.
                client.delete(layout.topic_owners(topic))


def _operation(path: str, version: int | None, offset: int | None) -> Operation:
    if offset is None:
        return Delete(path, -1 if version is None else version)
    return Create(path, encode_offset(offset)) if version is None else Put(path, encode_offset(offset), version)


def changed_meanwhile(group: str, partitions: Sequence[TopicPartition]) -> str:
    return f"group {group}: another client has changed the offset of {some(partitions)} meanwhile"


async def _store(session: BrokerSession, group: str, new: Mapping[TopicPartition, int]) -> None:
    """Store offsets in Kafka. Raise BrokerError if the coordinator refuses, or does not answer."""
    # A member stores a note as the text of an offset. An operator's offset has no text.
    offsets = {partition: OffsetAndMetadata(offset) for partition, offset in new.items()}
    request = OffsetCommitRequestV1(group, NO_GENERATION, NO_MEMBER, offsets)
    _, answer = await ask_coordinator(session, group, request, lambda codes: codes.values(), PASSING)
    _check_codes(group, answer, new, "stored")


def _note_starts(client: Client, layout: GroupLayout, new: Mapping[TopicPartition, int]) -> None:
    """
    Record in ZooKeeper the topics in which the group has offsets in Kafka, because Kafka does not list them.

    The record of a topic is its znode of first offsets. An existing znode is kept. Otherwise, the new offsets become
    the group's first offsets in the topic.
    """
    client.ensure_path(layout.starts)
    for topic in sorted({each.topic for each in new}):
        stat = client.exists(topic_path(topic))
        if stat is None:
            continue  # Deleted meanwhile.
        offsets = {each.partition: at for each, at in new.items() if each.topic == topic}
        with suppress(NodeExistsError):
            first = FirstOffsets(stat.czxid, time.time_ns() // 1_000_000, offsets)
            client.create(layout.topic_starts(topic), first.encode())


async def _deletes_offsets(session: BrokerSession) -> bool:
    return OffsetDeleteRequest.API_KEY in session.ranges


async def _delete(session: BrokerSession, group: str, partitions: Collection[TopicPartition]) -> None:
    """Delete offsets in Kafka. Raise BrokerError if the coordinator refuses, or does not answer."""
    request = OffsetDeleteRequest(group, tuple(partitions))
    _, answer = await ask_coordinator(session, group, request, lambda found: (found.error, *found.partitions.values()))
    if answer.error != NO_ERROR:
        raise answer.error.exception(f"group {group}: the offsets were not deleted")
    _check_codes(group, answer.partitions, partitions, "deleted")


def _check_codes(
    group: str, answer: Mapping[TopicPartition, ErrorCode], partitions: Iterable[TopicPartition], done: str
) -> None:
    """Check that the coordinator's ``answer`` has no error for each of the partitions. Raise BrokerError otherwise."""
    failed = {each: answer.get(each) for each in partitions if answer.get(each) != NO_ERROR}
    if not failed:
        return
    first = min(failed)
    code, what = failed[first], f"group {group}: {counted(failed, 'offset')} not {done}, first of {first}"
    if code is None:
        raise BrokerError(f"{what}: the coordinator's answer leaves it out")
    raise code.exception(what)
