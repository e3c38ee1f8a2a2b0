"""Move the offsets of consumer groups from the source of a mirror to the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from kiel_groups import model
from kiel_groups.errors import KielGroupsError
from kiel_groups.mirror.checkpoints import TranslatedOffset, translate
from kiel_groups.mirror.target import TargetCluster, open_client
from kiel_groups.mirror.target_errors import error_of
from kiel_groups.mirror.values import BACK, RETURNING
from kiel_groups.ops.actions.offset_sources import ZooKeeperOffsets
from kiel_groups.wording import some

T = TypeVar("T")

#: How long to wait for an answer of the target, in seconds.
_ANSWER_S = 30.0
#: The answers of brokers about a group that does not exist, and about one whose members have just joined.
_NO_GROUP = KafkaError.GROUP_ID_NOT_FOUND
_HAS_MEMBERS = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION}
)


@dataclass(frozen=True, slots=True)
class GroupTranslation:
    """
    The offsets of a group on the source, and those to continue from on the target.

    Args:
        group: The name of the group on both sides.
        offsets: The offsets of each partition on both sides.
        before: The offsets that the group has on the target, by partition of the target.
        members: The live members on the source, described for people.
        target_members: The live members on the target. If there are any, the target refuses offsets.
    """

    group: str
    offsets: Sequence[TranslatedOffset]
    before: Mapping[model.TopicPartition, int]
    members: Sequence[str] = ()
    target_members: Sequence[str] = ()

    def present(self, offset: TranslatedOffset) -> int | None:
        """Return the offset that the group has on the target now, or None."""
        return self.before.get(offset.copy)

    def is_ahead(self, offset: TranslatedOffset) -> bool:
        """Return whether the group has read further on the target already. Its offset stays there."""
        present = self.present(offset)
        return offset.target is not None and present is not None and present > offset.target

    @property
    def changes(self) -> dict[model.TopicPartition, int]:
        """The offsets to write, by partition of the target."""
        return {
            each.copy: each.target
            for each in self.offsets
            if each.target is not None and each.target != self.present(each) and not self.is_ahead(each)
        }

    @property
    def left_out(self) -> list[TranslatedOffset]:
        """The offsets that are not moved, because they cannot be translated, or the group is ahead on the target."""
        return [each for each in self.offsets if each.refusal or self.is_ahead(each)]

    @property
    def again(self) -> int:
        """The most records that the group reads again, as far as their number is known."""
        return sum(each.again or 0 for each in self.offsets if not self.is_ahead(each))


class GroupMover:
    """
    Translates the offsets of groups in ZooKeeper, Java's and ours, and writes them to the target of a mirror.

    The calls block.

    Args:
        source: The servers of the source's ZooKeeper, with its chroot.
        target: The target of the mirror.
        mirror: The name of the mirror's connector.
        store: The store of groups of other clients that have offsets in ZooKeeper and in Kafka.
        timeout_s: How long to wait for ZooKeeper's first answer, in seconds.
    """

    def __init__(
        self, source: str, target: TargetCluster, mirror: str, *, store: str | None = None, timeout_s: float = 10.0
    ) -> None:
        self._source = ZooKeeperOffsets(source, timeout_s=timeout_s)
        self._target = target
        self._mirror = mirror
        self._store = store
        self._admin = open_client(AdminClient, target.config)

    def translate(self, groups: Iterable[str]) -> list[GroupTranslation]:
        """
        Translate the present offsets of groups. Nothing is written.

        Raises:
            ConfigError: A group or the mirror does not exist, or a group has offsets in two stores.
            KielGroupsError: A cluster does not answer.
        """
        # Read before the checkpoints: a group that waits for the end of the mirror is then not beyond its position.
        found = {group: self._source.read(group, store=self._store, with_logs=False) for group in groups}
        claims = self._target.claims_of(self._mirror)
        topics = {claim.topic: target for target, claim in claims.items()}
        turned = {claim.topic for claim in claims.values() if claim.direction in (BACK, RETURNING)}
        mirrored, logs = self._target.mirrored(self._mirror), self._target.logs(claims)
        # The log of a topic that was created again, however long it is, ends before all checkpoints.
        replaced = self._target.replaced(claims)
        logs |= {each: (start, -1) for each, (start, _) in logs.items() if each.topic in replaced}
        translations = [
            GroupTranslation(
                group,
                translate(each.offsets, topics, mirrored, logs, turned),
                self._present(group),
                (*each.members, *each.foreign),
                self._members(group),
            )
            for group, each in found.items()
        ]
        return list(map(self._behind_markers, translations))

    def write(self, translation: GroupTranslation) -> None:
        """
        Write the changed offsets of a group to the target.

        Raises:
            KielGroupsError: The group has members on the target, or the target refuses the offsets or does not answer.
        """
        check_empty(translation)
        changes, group = translation.changes, translation.group
        if not changes:
            return
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in sorted(changes.items())]
        try:
            request = [ConsumerGroupTopicPartitions(group, wanted)]
            (answer,) = self._admin.alter_consumer_group_offsets(request, request_timeout=_ANSWER_S).values()
            refused = [each for each in answer.result().topic_partitions if each.error is not None]
        except KafkaException as error:
            raise self._target.failure(f"write the offsets of group {group}", error) from error
        if refused:
            first = refused[0]
            why = "members have joined" if first.error.code() in _HAS_MEMBERS else first.error.str()
            raise KielGroupsError(
                f"the target {self._target.servers} has refused {len(refused)} of {len(wanted)} offsets of group"
                f" {group}, first of {first.topic}:{first.partition}: {why}"
            )

    def _behind_markers(self, translation: GroupTranslation) -> GroupTranslation:
        """
        Return a translation to the group's own offsets where no record is between these and the translated ones.

        Markers of transactions have offsets. A consumer that has read a whole transaction may be behind its marker.
        """
        before, ahead = translation.before, [each for each in translation.offsets if translation.is_ahead(each)]
        ranges = {each.copy: (each.target or 0, before[each.copy]) for each in ahead}
        equal = ranges.keys() - self._target.with_records(ranges)
        moved = {each.copy: each._replace(target=before[each.copy]) for each in ahead if each.copy in equal}
        return replace(translation, offsets=[moved.get(each.copy, each) for each in translation.offsets])

    def _present(self, group: str) -> dict[model.TopicPartition, int]:
        """Return the offsets of a group on the target."""
        request = [ConsumerGroupTopicPartitions(group)]
        answers = self._admin.list_consumer_group_offsets(request, request_timeout=_ANSWER_S)
        answer = self._answer(answers, f"read the offsets of group {group}")
        found = [] if answer is None else answer.topic_partitions
        return {model.TopicPartition(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def _members(self, group: str) -> list[str]:
        """Return the members of a group on the target, described for people."""
        answers = self._admin.describe_consumer_groups([group], request_timeout=_ANSWER_S)
        answer = self._answer(answers, f"describe group {group}")
        members = [] if answer is None else answer.members
        return [f"{each.member_id} (host {each.host.removeprefix('/')})" for each in members]

    def _answer(self, answers: Mapping[str, Future[T]], what: str) -> T | None:
        """Return the answer about a group, or None if the target has no such group."""
        (answer,) = answers.values()
        try:
            return answer.result()
        except KafkaException as error:
            if error_of(error).code() == _NO_GROUP:
                return None
            raise self._target.failure(what, error) from error


def check_empty(translation: GroupTranslation) -> None:
    """Check that a group has no members on the target. Raise KielGroupsError otherwise."""
    if members := translation.target_members:
        raise KielGroupsError(
            f"group {translation.group} has members on the target: {some(members)}; only offsets of a group"
            " without members can be set, so stop the members"
        )
