"""
The group's offsets, as lag tools see them: read, and written behind a query that is no member of the group.

The checkpoint is what a query goes by. Offsets only ever move forward here, and are written once they are known to be
read: what the sink of a batch that failed did not get is never committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from kiel_groups.admin.group_inspection import group_reader
from kiel_groups.clients.net.offset_requests import check_offset_api, commit_offsets, fetch_offsets
from kiel_groups.errors import BrokerError, ConfigError, KielGroupsError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.spark.offsets.log_view import LogView
from kiel_groups.spark.options.read_options import ReadOptions
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wording import counted

__all__ = ["GroupOffsets", "committed_offsets", "refuse_live_group"]

log = logging.getLogger(__name__)

_MOST_NAMES = 3
#: How often it is looked whether others live in the group by now: each look is a session with ZooKeeper.
_LOOK_EVERY_S = 5.0
#: In place of an offset: none is stored.
_NOTHING = -1


def committed_offsets(
    view: LogView, group: str | None, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """
    The next offsets that a group has committed; partitions without one are left out.

    Raises:
        ConfigError: The brokers are of 0.8.0, and do not know of committed offsets.
        BrokerError: No broker answers usefully.
    """
    assert group is not None
    try:
        view.run(lambda: check_offset_api(view.cluster, group))
    except ConfigError as error:
        raise ConfigError(
            "startingOffsets: 'group' needs brokers that store offsets, and those of Kafka 0.8.0 do not; name the"
            " offsets as JSON, or let a stream join its group with membership=join"
        ) from error
    return view.run(lambda: fetch_offsets(view.cluster, group, partitions))


def refuse_live_group(options: ReadOptions) -> None:
    """
    Make sure that the offsets of the group that was named are nobody else's.

    Raises:
        ConfigError: The group has live members, whose offsets would be moved; or nobody has said where to look.
        CoordinationError: ZooKeeper did not answer.
    """
    group = options.group
    if group is None or not options.commits:
        return
    if options.zookeeper is None:
        raise ConfigError(
            f"kafka.group.id: whether group {group} has live members, whose offsets this query would move, stands in"
            " ZooKeeper; name it with kiel.zookeeper.connect, or set kiel.commit to false"
        )
    if members := _live_members(options.zookeeper.hosts, group):
        named = ", ".join(members[:_MOST_NAMES]) + (", …" if len(members) > _MOST_NAMES else "")
        raise ConfigError(
            f"kafka.group.id: group {group} has live members ({named}), whose offsets this query would move; join it"
            " with membership=join, choose another id, or set kiel.commit to false"
        )


def _live_members(hosts: str, group: str) -> list[str]:
    layout = GroupLayout(group)
    folders = (f"{layout.members}/", f"{layout.ids}/", f"{layout.kiel_members}/")
    with group_reader(hosts, group) as read:
        znodes = read()
    return sorted({path.rpartition("/")[2] for path in znodes if path.startswith(folders)})


class GroupOffsets:
    """
    Commits for one query.

    Args:
        view: The brokers that store the offsets.
        options: Whether and how to commit.
    """

    def __init__(self, view: LogView, options: ReadOptions) -> None:
        self._view = view
        self._options = options
        self._usable: bool | None = None
        self._told = False
        #: What stood there when it was read or written last.
        self._stored: dict[TopicPartition, int] = {}
        #: Whose stored offsets are those of another log.
        self._anew: set[TopicPartition] = set()
        self._told_ahead: set[TopicPartition] = set()
        self._next_look_s = time.monotonic()

    def begin(self, group: str | None, offsets: Mapping[TopicPartition, int]) -> None:
        """
        Store where a query starts, in partitions that have no offset: what is there stays until a batch has passed it.

        So a query that is started again before its first batch was done still finds where it began.
        """
        self._attempt(group, offsets, only_missing=True)

    def commit(self, group: str | None, offsets: Mapping[TopicPartition, int]) -> bool:
        """
        Store what is above the stored offsets, or has none; what fails is logged, and tried again with the next call.

        Args:
            group: None where the query has no group (yet).
            offsets: The next offset of each partition.

        Returns:
            Whether they are stored, these or later ones.

        Raises:
            BrokerError: A failure, and ``failOnCommitError`` is set.
        """
        return self._attempt(group, offsets, only_missing=False)

    def _attempt(self, group: str | None, offsets: Mapping[TopicPartition, int], *, only_missing: bool) -> bool:
        if not self._options.commits:
            return False
        if group is None:
            if not self._told:
                self._told = True
                log.warning("nothing is committed: before Spark 4.2 a query forgets its own group; use kafka.group.id")
            return False
        try:
            return self._store(group, offsets, only_missing=only_missing)
        except KielGroupsError as error:
            if self._options.fail_on_commit_error:
                raise
            log.error("group %s: the offsets of this query are not committed, and lag behind: %s", group, error)
            return False

    def _store(self, group: str, offsets: Mapping[TopicPartition, int], *, only_missing: bool) -> bool:
        if not self._is_usable(group):
            return False
        if self._ahead(offsets, only_missing):
            # Others write, too: other queries of the group, tools, and members that have come since.
            found = self._view.run(lambda: fetch_offsets(self._view.cluster, group, list(offsets)))
            self._stored |= dict.fromkeys(offsets, _NOTHING) | found
        if not only_missing:
            self._tell_of_later_ones(group, offsets)
        ahead = self._ahead(offsets, only_missing)
        if not ahead:
            return True
        if time.monotonic() >= self._next_look_s:
            refuse_live_group(self._options)
            self._next_look_s = time.monotonic() + _LOOK_EVERY_S
        answers = self._view.run(lambda: commit_offsets(self._view.cluster, Metrics(), group, ahead, ""))
        written = {partition: ahead[partition] for partition, answer in answers.items() if answer == NO_ERROR}
        self._stored |= written
        self._anew -= written.keys()
        for partition, answer in answers.items():
            if answer != NO_ERROR:
                raise BrokerError(f"the offset of {partition} was not stored: {answer}: {answer.hint}")
        return True

    def _ahead(self, offsets: Mapping[TopicPartition, int], only_missing: bool) -> dict[TopicPartition, int]:
        """What is to be stored of these, by what is known to stand there; what is not known is."""
        return {
            partition: offset
            for partition, offset in offsets.items()
            if (stored := self._stored.get(partition, _NOTHING)) == _NOTHING
            or (not only_missing and (offset > stored or partition in self._anew))
        }

    def _tell_of_later_ones(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Once for each partition."""
        later = {each for each, offset in offsets.items() if offset < self._stored[each]} - self._anew
        if not (fresh := sorted(later - self._told_ahead)):
            return
        self._told_ahead.update(fresh)
        log.warning(
            "group %s: the stored offsets of %s are ahead of this query, first %s (%d, and the query is at %d);"
            " they stay until the query has passed them. If one is from before the topic was created again, set it:"
            " 'set %s %d' in zkCli",
            group,
            counted(fresh, "partition"),
            fresh[0],
            self._stored[fresh[0]],
            offsets[fresh[0]],
            GroupLayout(group).offset(fresh[0]),
            offsets[fresh[0]],
        )

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """The logs of these began anew: what is stored of them is another log's, and may be written over."""
        self._anew.update(partitions)

    def _is_usable(self, group: str) -> bool:
        if self._usable is None:
            try:
                self._view.run(lambda: check_offset_api(self._view.cluster, group))
                self._usable = True
            except ConfigError:
                if self._options.fail_on_commit_error:
                    raise
                self._usable = False
                log.warning("group %s: brokers of Kafka 0.8.0 store no offsets; nothing is committed", group)
        return self._usable
