"""Resolve the offsets that a query's options name, and commit the query's offsets for its group, on the driver."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from kiel_groups import errors
from kiel_groups.clients.net.offset_requests import check_offset_api, commit_offsets, fetch_offsets
from kiel_groups.config import BROKER_V1, check_name
from kiel_groups.group.znodes.contents import GroupSettings, Snapshot
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.ops.zookeeper_client import zookeeper
from kiel_groups.ops.zookeeper_reader import read_group, refuse_programs
from kiel_groups.spark.checkpoint import Loss, OffsetRange, loss_cause
from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.options import EARLIEST, EARLIEST_OFFSET, GROUP, LATEST, LATEST_OFFSET, Place, ReadOptions
from kiel_groups.spark.side_tables import record_loss
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)


def resolve(
    name: str, place: Place, partitions: Collection[TopicPartition], view: LogView, group: str | None = None
) -> dict[TopicPartition, int]:
    """
    Resolve the value of an option, such as ``earliest``, to an offset for each partition.

    Args:
        name: The name of the option, for errors.
        place: The value of the option.
        partitions: All partitions that the query reads.
        view: Looks up first, next and committed offsets, if the option requires them.
        group: The group whose committed offsets ``group`` means. A partition without a committed offset starts at the
            first offset of its log, with a warning.

    Raises:
        ConfigError: The option gives offsets, but not for exactly these partitions; or it is ``group``, and the brokers
            of Kafka 0.8.0 store no offsets.
        BrokerError: A lookup failed.
    """
    wanted = _wanted(name, place, partitions, view, group)
    resolved = {partition: offset for partition, offset in wanted.items() if offset >= 0}
    for special, lookup in ((EARLIEST_OFFSET, view.earliest), (LATEST_OFFSET, view.latest)):
        if asked := [partition for partition, offset in wanted.items() if offset == special]:
            resolved |= lookup(asked)
    return {partition: resolved[partition] for partition in sorted(resolved)}


def _wanted(
    name: str, place: Place, partitions: Collection[TopicPartition], view: LogView, group: str | None
) -> Mapping[TopicPartition, int]:
    if place == EARLIEST:
        return dict.fromkeys(partitions, EARLIEST_OFFSET)
    if place == LATEST:
        return dict.fromkeys(partitions, LATEST_OFFSET)
    if place == GROUP:
        committed = _committed(name, view, group, partitions)
        if missing := sorted(set(partitions) - committed.keys()):
            # The name of the group may be misspelt.
            text = "group %s has no committed offset of %s; starting there at the first offset of the log"
            log.warning(text, group, some(missing))
        return dict.fromkeys(partitions, EARLIEST_OFFSET) | committed
    assert not isinstance(place, str)
    if missing := sorted(set(partitions) - place.keys()):
        raise errors.ConfigError(
            f"{name}: {_names(missing)} missing; every partition needs an offset there, -2 for the earliest and -1 for"
            " the latest"
        )
    if unknown := sorted(place.keys() - set(partitions)):
        raise errors.ConfigError(
            f"{name}: {_names(unknown)} named, and not among the partitions that are read; drop it"
        )
    return place


def _committed(
    name: str, view: LogView, group: str | None, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """
    Return the offsets that a group has committed. Partitions without a committed offset are left out.

    Raises:
        ConfigError: The brokers, of Kafka 0.8.0, store no offsets.
    """
    assert group is not None
    try:
        view.run(lambda: check_offset_api(view.cluster, group))
    except errors.ConfigError as error:
        raise errors.ConfigError(
            f"{name}: 'group' needs brokers that store offsets, and those of Kafka 0.8.0 do not; name the offsets as"
            " JSON, or let a stream join its group with membership=join"
        ) from error
    return view.run(lambda: fetch_offsets(view.cluster, group, partitions))


def check_bounds(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    *,
    fail_on_data_loss: bool,
) -> dict[TopicPartition, OffsetRange]:
    """
    Return the range of a batch in each partition, limited to the offsets in the logs.

    If ``fail_on_data_loss`` is not set, log each loss.

    Args:
        starts: The wanted first offset of each partition.
        ends: The wanted ends (exclusive).
        earliest: The first offsets of the logs.
        latest: The next offsets of the logs.
        fail_on_data_loss: Whether a loss raises an error.

    Raises:
        ConfigError: A range ends before it begins, and its end is within the log.
        OffsetOutOfRangeError: A range is not entirely in its log, and ``fail_on_data_loss`` is set.
    """
    found = {}
    for partition, start in starts.items():
        end, first, last = ends[partition], earliest[partition], latest[partition]
        if start > end and end < last:
            raise errors.ConfigError(f"endingOffsets: {partition} ends at offset {end}, before it starts at {start}")
        cause = loss_cause(start, first)
        what = f"offsets {start} to {end} are to be read, and the log has {first} to {last}: {cause}"
        losses = [Loss(partition, start, min(first, max(start, end)), None, what)] if start < first else []
        if max(start, end) > last:
            losses.append(Loss(partition, max(start, last), end if end > start else None, None, what))
        for loss in losses:
            if fail_on_data_loss:
                raise data_loss(loss)
            account_loss(None, loss)
        found[partition] = OffsetRange(partition, min(max(start, first), last), min(end, last))
    return found


def data_loss(loss: Loss, offset_znode: str | None = None) -> errors.OffsetOutOfRangeError:
    """
    Return the error for messages that were lost before they were read. Its text has the remedies.

    Args:
        loss: The lost messages, and the reason.
        offset_znode: The znode of the group's offset, if a query with a new checkpoint would start at that offset.
    """
    first = "" if offset_znode is None else f"set the group's offset ('set {offset_znode} 0' in zkCli) and "
    start = f"{first}start with a new checkpoint"
    return errors.OffsetOutOfRangeError(
        f"{loss}. {start[0].upper()}{start[1:]} (a batch: with other offsets; an archive: in another folder), or"
        " set failOnDataLoss to false to continue with what there is"
    )


def account_loss(archive: str | None, loss: Loss) -> None:
    """Log a loss. If ``archive`` is the URI of an archive's output, also record the loss in its ``_losses``."""
    log.warning("%s; continuing with the messages that are left, as failOnDataLoss is false", loss)
    record_loss(archive, loss)


def _names(partitions: list[TopicPartition]) -> str:
    return f"{some(partitions, most=3)} {'are' if len(partitions) > 1 else 'is'}"


# Commit the offsets of a query that is not a member of its group, so that tools can show its lag.
#
# The query itself resumes from its checkpoint. A commit covers only batches that are known to be done, never a batch
# whose sink failed. A commit never moves a stored offset back, unless the log was created again.


#: How often to check for live members of the group, in seconds: each check opens a session with ZooKeeper.
_CHECK_INTERVAL_S = 5.0
#: The least time from one commit in the background to the next, in seconds. The broker writes a znode for each
#: partition, and batches that follow each other in less than a second would keep it and ZooKeeper busy with that.
COMMIT_INTERVAL_S = 5.0
#: The stand-in for the offset of a partition that has no stored offset.
_NOTHING = -1


def refuse_live_group(options: ReadOptions) -> None:
    """
    Check that the group of the options has no live members. Their offsets would move if this query committed.

    Do nothing if the options name no group, or if the query does not commit.

    Raises:
        ConfigError: The group has live members; it has its offsets in Kafka; its members are programs; the name of the
            group is not valid; or the options do not name a ZooKeeper.
        CoordinationError: ZooKeeper did not answer.
    """
    group = options.group
    if group is None or not options.commits:
        return
    if options.zookeeper is None:
        raise errors.ConfigError(
            f"kafka.group.id: whether group {group} has live members, whose offsets this query would move, is recorded"
            " in ZooKeeper; name it with kiel.zookeeper.connect, or set kiel.commit to false"
        )
    check_name(group, "kafka.group.id")
    with zookeeper(options.zookeeper.hosts) as client:
        refuse_programs(client, group)
        znodes = read_group(client, group)
    if _is_in_kafka(znodes, group):
        raise errors.ConfigError(
            f"kafka.group.id: group {group} has its offsets in Kafka (store {BROKER_V1!r}), where this query would not"
            " commit; join it with membership=join, choose another id, or set kiel.commit to false"
        )
    if members := _live_members(znodes, group):
        raise errors.ConfigError(
            f"kafka.group.id: group {group} has live members ({some(members, most=3)}), whose offsets this query would"
            " move; join it with membership=join, choose another id, or set kiel.commit to false"
        )


def _is_in_kafka(znodes: Snapshot, group: str) -> bool:
    """Return whether the members of the group store its offsets in Kafka. This source does not commit there."""
    path = GroupLayout(group).config
    try:
        return path in znodes and GroupSettings.parse(znodes[path].data, path).store == BROKER_V1
    except errors.ProtocolError:
        return False


def _live_members(znodes: Snapshot, group: str) -> list[str]:
    layout = GroupLayout(group)
    folders = (f"{layout.members}/", f"{layout.ids}/", f"{layout.kiel_members}/")
    return sorted({path.rpartition("/")[2] for path in znodes if path.startswith(folders)})


class _Commit(NamedTuple):
    """Offsets to commit, and the partitions whose topics were created again since the previous commit."""

    group: str | None
    offsets: Mapping[TopicPartition, int]
    recreated: Collection[TopicPartition]


class GroupOffsets:
    """
    Commits the offsets of one query that is not a member of its group.

    A commit takes longer than planning a batch, because brokers write one znode after another. So ``commit_soon``
    commits on the view's event loop while the next batches run, at most every five seconds.

    Args:
        view: The brokers that store the offsets.
        options: Whether to commit, and how to treat failures.
    """

    def __init__(self, view: LogView, options: ReadOptions) -> None:
        self._view = view
        self._options = options
        #: Whether the brokers store offsets, which those of Kafka 0.8.0 do not; None before the first check.
        self._stores_offsets: bool | None = None
        self._warned_no_group = False
        #: The group's offsets as last fetched or committed.
        self._stored: dict[TopicPartition, int] = {}
        #: Partitions that were deleted or created again: their stored offsets belong to the previous log.
        self._recreated: set[TopicPartition] = set()
        self._warned_ahead: set[TopicPartition] = set()
        self._next_check_s = time.monotonic()
        #: The partitions that ``forget`` named since the last commit.
        self._forgotten: set[TopicPartition] = set()
        # The newest offsets that are not being committed yet, and the task that commits, both used on the loop only.
        self._newest: _Commit | None = None
        self._committing: asyncio.Task[None] | None = None
        self._next_commit_s = time.monotonic()
        #: Set while ``flush`` waits: then the next commit is not delayed.
        self._flushing = asyncio.Event()
        #: Why a background commit failed; the next call raises it.
        self._failure: Exception | None = None

    def commit_soon(self, group: str | None, offsets: Mapping[TopicPartition, int]) -> None:
        """
        Commit offsets in the background, as ``commit`` does.

        The newest offsets wait while a commit is running, and until five seconds after the start of the last commit.

        Raises:
            KielGroupsError: An earlier commit in the background failed, and ``failOnCommitError`` is set.
        """
        self._raise_failure()
        if not self._options.commits:
            return
        wanted = _Commit(group, offsets, frozenset(self._forgotten))
        self._forgotten.clear()
        self._view.loop.start()
        self._view.loop.post(lambda: self._note(wanted))

    def flush(self, limit_s: float | None = None) -> None:
        """
        Commit the offsets that are waiting at once, and wait until no commit of ``commit_soon`` is running.

        Args:
            limit_s: How long to wait, in seconds. By default, twice the limit of one commit.

        Raises:
            KielGroupsError: A commit in the background failed, and ``failOnCommitError`` is set.
            TimeoutError: A commit was still running or waiting after this time.
        """
        self._view.loop.run(self._settled(), limit_s or 2 * self._view.timeout_s)
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _note(self, wanted: _Commit) -> None:
        if self._newest is not None:
            wanted = wanted._replace(recreated={*self._newest.recreated, *wanted.recreated})
        self._newest = wanted
        if self._committing is None:
            self._committing = asyncio.get_running_loop().create_task(self._commit_newest())

    async def _commit_newest(self) -> None:
        try:
            while self._newest is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._next_commit_s - time.monotonic()):
                        await self._flushing.wait()
                self._next_commit_s = time.monotonic() + COMMIT_INTERVAL_S
                wanted, self._newest = self._newest, None
                self._recreated.update(wanted.recreated)
                await self._commit(wanted.group, wanted.offsets, only_missing=False)
        except Exception as error:
            self._failure = error
        finally:
            self._committing = None

    async def _settled(self) -> None:
        self._flushing.set()
        while self._committing is not None:
            await asyncio.wait([self._committing])
        self._flushing.clear()

    def commit(self, group: str | None, offsets: Mapping[TopicPartition, int], *, only_missing: bool = False) -> bool:
        """
        Commit offsets that are ahead of the stored offsets, or that belong to a recreated log.

        Log a failure, unless ``failOnCommitError`` is set. The caller may call this method again.

        Args:
            group: The group, or None while its name is unknown.
            offsets: The next offset of each partition.
            only_missing: Commit only for partitions that have no stored offset. This is for the start offsets of a
                query. So a query that restarts before its first batch is done finds its original start, and stored
                offsets remain until a batch has passed them.

        Returns:
            Whether these or later offsets are stored. With ``only_missing``, whether each partition has a stored
            offset. False if the query does not commit, or if ``group`` is None.

        Raises:
            KielGroupsError: The commit failed, and ``failOnCommitError`` is set.
        """
        if not self._options.commits:
            return False
        return self._view.loop.run(self._commit(group, offsets, only_missing=only_missing))

    async def _commit(self, group: str | None, offsets: Mapping[TopicPartition, int], *, only_missing: bool) -> bool:
        if group is None:
            if not self._warned_no_group:
                self._warned_no_group = True
                log.warning("this query commits nothing, as Spark before 4.2 hides its own group; use kafka.group.id")
            return False
        limit_s = self._view.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._store(group, offsets, only_missing=only_missing)
        except TimeoutError:
            failure: errors.KielGroupsError = errors.RequestTimeoutError(
                f"no broker has stored the offsets of group {group} in {limit_s:g} s"
            )
        except errors.KielGroupsError as error:
            failure = error
        if self._options.fail_on_commit_error:
            raise failure
        log.error("group %s: the offsets of this query are not committed, and lag behind: %s", group, failure)
        return False

    async def _store(self, group: str, offsets: Mapping[TopicPartition, int], *, only_missing: bool) -> bool:
        if not await self._is_offset_api_served(group):
            return False
        if self._ahead(offsets, only_missing):
            # Other queries of the group, tools and new members may have committed since.
            found = await fetch_offsets(self._view.commit_cluster, group, list(offsets))
            self._stored |= dict.fromkeys(offsets, _NOTHING) | found
        if not only_missing:
            self._warn_of_later_offsets(group, offsets)
        ahead = self._ahead(offsets, only_missing)
        if not ahead:
            return True
        if time.monotonic() >= self._next_check_s:
            await asyncio.to_thread(refuse_live_group, self._options)
            self._next_check_s = time.monotonic() + _CHECK_INTERVAL_S
        answers = await commit_offsets(self._view.commit_cluster, Metrics(), group, ahead, "")
        written = {partition: ahead[partition] for partition, answer in answers.items() if answer == NO_ERROR}
        self._stored |= written
        self._recreated -= written.keys()
        for partition, answer in answers.items():
            if answer != NO_ERROR:
                raise errors.BrokerError(f"the offset of {partition} was not stored: {answer}: {answer.hint}")
        return True

    def _ahead(self, offsets: Mapping[TopicPartition, int], only_missing: bool) -> dict[TopicPartition, int]:
        """
        Return the offsets to commit.

        These are the offsets of partitions without a stored offset and, unless ``only_missing``, offsets that are ahead
        of the stored offset or belong to a recreated log.
        """
        return {
            partition: offset
            for partition, offset in offsets.items()
            if (stored := self._stored.get(partition, _NOTHING)) == _NOTHING
            or (not only_missing and (offset > stored or partition in self._recreated))
        }

    def _warn_of_later_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Log a warning about stored offsets that are ahead of the query, once for each partition."""
        later = {each for each, offset in offsets.items() if offset < self._stored[each]} - self._recreated
        if not (fresh := sorted(later - self._warned_ahead)):
            return
        self._warned_ahead.update(fresh)
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
        """
        Allow later calls of ``commit_soon`` to lower the stored offsets of these partitions.

        The caller calls this for partitions whose logs were deleted or recreated.
        """
        self._forgotten.update(partitions)

    async def _is_offset_api_served(self, group: str) -> bool:
        if self._stores_offsets is None:
            try:
                await check_offset_api(self._view.commit_cluster, group)
                self._stores_offsets = True
            except errors.ConfigError:
                if self._options.fail_on_commit_error:
                    raise
                self._stores_offsets = False
                log.warning("group %s: brokers of Kafka 0.8.0 store no offsets; nothing is committed", group)
        return self._stores_offsets
