"""
What must never happen to a group, and what must come about: watched from outside, at every commit of ZooKeeper.

An offset has epochs: an operator's write begins one, and so does the restart of a topic that was created again. What
was processed under an earlier epoch proves nothing in a later one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kiel_groups.config import ZOOKEEPER_STORE
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.znodes.contents import parse_owner, parse_topic
from kiel_groups.group.znodes.layout import TOPICS, GroupLayout, topic_path
from kiel_groups.model import TopicPartition
from kiel_groups.testing.fake_ensemble import Entry
from kiel_groups.testing.znode_tree import Change, Kind, Znode
from tests.sim.broker_rules import UNDER_WAY_S, BrokerRules
from tests.sim.logs import Range
from tests.sim.plan_rules import PlanRules

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.world import World

__all__ = ["Ledger", "Violation", "UNDER_WAY_S"]


class Violation(AssertionError):  # noqa: N818 -- what a run has found
    """An invariant does not hold."""


class _Told(NamedTuple):
    """
    What an owner was told about a log that does not have its position, under the claim with the czxid ``token``.

    ``stored_at`` is the zxid at which it stored the reset that follows, None before.
    """

    token: int
    range: Range
    stored_at: int | None = None


class Ledger:
    """All that a judge remembers of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._layout = GroupLayout(world.group)
        #: Whose session is whose; operators' sessions are left out.
        self.consumers: dict[int, Consumer] = {}
        #: Whose owner znode an operator deleted, and not his member znode: he may not know, and nobody can help that.
        self._forced: set[tuple[TopicPartition, Consumer]] = set()
        #: Partitions of topics that were created again that did not start over yet; and the zxid at which others did.
        self.restarting: set[TopicPartition] = set()
        self._restarted: dict[TopicPartition, int] = {}
        #: Partitions of such topics that had no offset yet: their first one may still be of the old log.
        self._unread: set[TopicPartition] = set()
        #: When each topic was created: the zxid, and the time in seconds.
        self._created: dict[str, tuple[int, float]] = {}
        #: Partitions of them whose offset somebody has committed before he could know, damaged, or set in the new log.
        self._excused: set[TopicPartition] = set()
        #: Of those, the ones that somebody has committed before he could know; he may hear of it later.
        self._unknowing: set[TopicPartition] = set()
        #: Partitions that flow at more than one consumer; their gates tell.
        self.contested: set[TopicPartition] = set()
        #: Partitions whose offset somebody deleted or garbled: whoever writes it next knows it, or starts over.
        self._damaged: set[TopicPartition] = set()
        #: When the offset znode of a partition was deleted, as a zxid: versions begin anew with a new one.
        self._removed: dict[TopicPartition, int] = {}
        #: Every offset that operators have set, by partition; and the zxid of that, where it was the last that was
        #: written.
        self._told: dict[TopicPartition, set[int]] = {}
        self._told_last: dict[TopicPartition, int] = {}
        #: The topics whose folder somebody deleted: a group that only begins may take itself for one that did before.
        self._cleared: set[str] = set()
        #: Whether somebody has seen to it that nobody can join.
        self.forbids_joining = False
        self.plans = PlanRules(self._layout, self._violation)
        self._ranges: dict[tuple[TopicPartition, Consumer], _Told] = {}
        self.commits = 0
        self.resets = 0
        self.hand_outs = 0
        #: Sessions that no member asked for any more: kazoo opened them by itself, or too late.
        self._later: set[int] = set()
        #: Each consumer's newest session of those that its members opened.
        self._newest: dict[Consumer, int] = {}
        self._closed: set[int] = set()
        self._epochs: dict[TopicPartition, int] = {}
        self._epoch_at: dict[tuple[TopicPartition, int], int] = {}
        #: The next offset after all that was processed in the present epoch.
        self._processed: dict[TopicPartition, int] = {}
        #: The same of all epochs, or what a member stored.
        self._reached: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, int] = {}
        #: When the present epoch of a partition began: the zxid, and the time in seconds.
        self._epoch_began: dict[TopicPartition, tuple[int, float]] = {}
        #: The zxid of the newest entry of ZooKeeper's log.
        self.zxid = 0
        self.brokers = BrokerRules(world, self, self._violation)
        self._watchers = (
            (f"{self._layout.offsets}/", self._offset_changed),
            (f"{self._layout.owners}/", self._owner_changed),
        )

    def session_opened(self, consumer: Consumer, session_id: int, *, is_first: bool) -> None:
        """A client of a consumer has a session; only the first of its newest client is to be used."""
        self.consumers[session_id] = consumer
        if is_first:
            self._newest[consumer] = session_id
        else:
            self._later.add(session_id)

    def _violation(self, text: str) -> Violation:
        """The end of the run, also where the product's own code stands in between and catches what is raised."""
        violation = Violation(text)
        self._world.timeline.failures.append(violation)
        return violation

    def late(self, text: str) -> Violation:
        """Something is delayed for too long."""
        return self._violation(text)

    def set_by_operators(self) -> dict[TopicPartition, int]:
        """The zxids of the offsets that operators have set, and that no member has written since."""
        return self._told_last

    def follows(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """Whether a consumer has followed what an operator has set, or need not."""
        znode = self._world.ensemble.tree.znodes.get(self._layout.offset(partition))
        known = consumer.finished(partition)
        if znode is None or known is None or partition in self._damaged or self.is_outdated(consumer, partition):
            return True
        # Brokers may have stored that very offset for it.
        is_its_own = self.brokers.may_have_requested(consumer, partition, self._stored[partition])
        return known[0] == znode.version or is_its_own

    # The application's side

    def opened(self, consumer: Consumer, partition: TopicPartition, position: int) -> None:
        """A consumer may hand out a partition from now on."""
        self._forced.discard((partition, consumer))
        if sum(partition in other.flowing for other in self._world.consumers) > 1:
            self.contested.add(partition)
        self._no_gap(consumer, partition, position)
        self.check_gates()

    def handed_out(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        """A consumer hands out a record."""
        self.hand_outs += 1
        owner = self._world.ensemble.tree.znodes.get(self._layout.owner(partition))
        if (partition, consumer) not in self._forced and (
            owner is None or self.consumers.get(owner.owner) is not consumer
        ):
            raise self._violation(f"{consumer.name} hands out {partition}, and its claim is not there")
        if partition not in consumer.hooked:
            raise self._violation(f"{consumer.name} hands out {partition}, and its assigned hook has not ended")
        told = partition in self._told_last and partition not in self.restarting
        if told and offset == self._processed[partition]:
            # He has reached what an operator had set meanwhile.
            consumer.flowing[partition] = self._epochs[partition]
        self._no_gap(consumer, partition, offset)
        known = consumer.flowing[partition] == self._epochs.get(partition) and partition not in self._damaged
        # Where brokers write, an owner may follow a late write, and the next one is late, too.
        if known and self._world.store == ZOOKEEPER_STORE and offset < self._stored[partition]:
            raise self._violation(
                f"{consumer.name} goes back in {partition} to {offset}, and {self._stored[partition]} is stored"
            )

    def _no_gap(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        epoch = consumer.flowing[partition]
        # In a log that is gone nothing can be skipped: the owner delivers the new one from its beginning.
        if self._is_gone(consumer, partition):
            return
        if epoch == self._epochs.get(partition) and offset > self._processed[partition]:
            raise self._violation(
                f"{consumer.name} goes on in {partition} at {offset}, and only what is before"
                f" {self._processed[partition]} was processed"
            )

    def told_of_log(self, consumer: Consumer, partition: TopicPartition, token: int, told: Range) -> None:
        """A consumer hears that a log does not have its position, and which range the log has."""
        self._ranges[partition, consumer] = _Told(token, told)

    def finished(self, partition: TopicPartition, epoch: int, offset: int) -> None:
        """The application has processed everything before an offset."""
        self._reached[partition] = max(self._reached.get(partition, 0), offset)
        if epoch == self._epochs.get(partition):
            self._processed[partition] = max(self._processed[partition], offset)

    def check_gates(self) -> None:
        """One open gate a partition; to be called after every step."""
        for partition in list(self.contested):
            flowing = [consumer for consumer in self._world.consumers if partition in consumer.flowing]
            unforced = [consumer for consumer in flowing if (partition, consumer) not in self._forced]
            opened = [consumer.name for consumer in unforced if consumer.gate_is_open]
            if len(opened) > 1:
                raise self._violation(f"two gates are open for {partition}: {' and '.join(opened)}")
            if len(flowing) < 2:
                self.contested.discard(partition)

    def epoch_at(self, partition: TopicPartition, version: int) -> int:
        """In which epoch an offset znode got a version."""
        return self._epoch_at.get((partition, version), -1)

    def stopped(self, consumer: Consumer, error: KielGroupsError) -> None:
        """A consumer has met an error that no new session can mend, as it says."""
        if not self.forbids_joining:
            raise self._violation(f"{consumer.name} stops for good: {error}")

    # ZooKeeper's side

    def committed(self, entry: Entry) -> None:
        """Judge one entry of ZooKeeper's log."""
        self.zxid = entry.zxid
        if entry.closes:
            self._session_ends(entry)
        elif entry.session_id in self._closed and entry.changes:
            raise self._violation(f"a session that is over writes {entry.changes[0].path}")
        elif entry.session_id in self._later and entry.changes:
            raise self._violation(f"a member writes {entry.changes[0].path} on a session that kazoo opened by itself")
        if entry.session_id in self.consumers:
            self.plans.written(entry)
        else:
            self._operator_changed(entry)
        for change in entry.changes:
            for prefix, judge in self._watchers:
                if change.path.startswith(prefix):
                    judge(entry, change)
                    break

    def _operator_changed(self, entry: Entry) -> None:
        for change in entry.changes:
            if change.kind is Kind.DELETED and change.path == self._layout.group_state:
                self.plans.deleted()
            elif change.path.startswith(f"{TOPICS}/") and change.kind is Kind.CREATED:
                topic = change.path.rpartition("/")[2]
                self._created[topic] = (entry.zxid, self._world.timeline.now_s)
                # Whatever was stored while it was gone is of the old log.
                self.restarting |= {partition for partition in self._stored if partition.topic == topic}
            elif change.path.startswith(f"{TOPICS}/") and change.kind is Kind.DELETED:
                topic = change.path.rpartition("/")[2]
                self._excused = {p for p in self._excused if p.topic != topic or p in self._damaged}
                self._unknowing = {p for p in self._unknowing if p.topic != topic}
                self.restarting |= {partition for partition in self._stored if partition.topic == topic}
                numbers = parse_topic(change.znode.data, change.path)
                self._unread |= {TopicPartition(topic, number) for number in numbers} - self._stored.keys()

    def _session_ends(self, entry: Entry) -> None:
        self._closed.add(entry.session_id)
        consumer = self.consumers.get(entry.session_id)
        if consumer is not None and self._newest.get(consumer) == entry.session_id and consumer.gate_is_open:
            raise self._violation(f"the session of {consumer.name} ends, and its gate is open")

    def _partition(self, path: str) -> TopicPartition | None:
        parts = path.split("/")
        return TopicPartition(parts[-2], int(parts[-1])) if len(parts) == 6 else None

    def _owner_changed(self, entry: Entry, change: Change) -> None:
        partition = self._partition(change.path)
        if partition is None or change.kind is not Kind.DELETED:
            return
        holder = self.consumers.get(change.znode.owner)
        if holder is None or self._newest.get(holder) != change.znode.owner:
            return
        if entry.session_id not in self.consumers:
            if self._layout.member(parse_owner(change.znode.data, change.path)) in self._world.ensemble.tree.znodes:
                self._forced.add((partition, holder))
        elif not entry.closes and partition in holder.hands:
            raise self._violation(f"{holder.name} gives up {partition} while its application processes it")
        elif not entry.closes and partition in self.restarting:
            self._check_given_back(entry, partition, change.znode)
        elif (
            not entry.closes
            and self._restarted.get(partition) != entry.zxid
            and (finished := holder.finished(partition))
            # What is finished in a log that is gone is not committed; that it starts over in time is a matter of
            # ``World.is_settled``.
            and not self.is_outdated(holder, partition)
        ):
            version, offset = finished
            chosen = holder.has_chosen(partition)
            znode = self._world.ensemble.tree.znodes.get(self._layout.offset(partition))
            version += any(other.path == self._layout.offset(partition) for other in entry.changes)
            # Where somebody else wrote the offset, theirs stands; brokers may write later what they were asked for.
            stands = znode is not None and znode.version == version
            if stands and chosen and not self._may_reset(holder, partition, entry, self._stored[partition]):
                raise self._violation(
                    f"{holder.name} gives up {partition} at {self._stored[partition]}, and forgets its reset"
                )
            is_left = stands and not chosen and offset != self._stored[partition]
            by_itself = version != finished[0]
            if is_left and not self.brokers.may_leave(holder, partition, offset, by_itself=by_itself):
                raise self._violation(
                    f"{holder.name} gives up {partition} at {self._stored[partition]}, finished is {offset}"
                )
        if partition in holder.flowing and holder.gate_is_open and (partition, holder) not in self._forced:
            raise self._violation(f"{holder.name} loses its claim of {partition}, and its gate is open")

    def _check_given_back(self, entry: Entry, partition: TopicPartition, claim: Znode) -> None:
        """Who has claimed a partition before its topic was created again leaves nothing that misleads the next one."""
        znodes = self._world.ensemble.tree.znodes
        znode, topic = znodes.get(self._layout.offset(partition)), znodes.get(topic_path(partition.topic))
        if topic is None or znode is None or not self._could_know(entry, partition.topic):
            return
        if claim.czxid > topic.czxid or znode.mzxid < topic.czxid:
            return
        excused = partition in self._excused and partition not in self._unknowing
        if not (excused or partition in self._damaged or partition in self._told_last):
            who = self.consumers[entry.session_id].name
            raise self._violation(f"{who} gives up {partition} at {int(znode.data)} of a log that is gone")

    def _offset_changed(self, entry: Entry, change: Change) -> None:
        partition = self._partition(change.path)
        if partition is None:
            if change.kind is Kind.DELETED:
                self._cleared.add(change.path.rpartition("/")[2])
            return
        if self._world.brokers.wrote(entry.session_id):
            self._broker_wrote(partition, int(change.znode.data), change.znode.version)
            return
        by_member = entry.session_id in self.consumers
        if change.kind is Kind.DELETED or not (by_member or change.znode.data.isdigit()):
            if change.kind is Kind.DELETED:
                self._removed[partition] = entry.zxid
            else:
                # Its owner follows the version all the same.
                self._epoch_at[partition, change.znode.version] = self._epochs.get(partition, 0)
            self._damaged.add(partition)
            self._excused.add(partition)
            return
        offset, version = int(change.znode.data), change.znode.version
        before = self._stored.get(partition)
        is_reset = by_member and self._is_reset(entry, partition, offset)
        is_damaged = partition in self._damaged or (by_member and self._mistakes_version(entry, partition))
        if is_reset or is_damaged:
            self._damaged.discard(partition)
        if is_damaged and not is_reset:
            before = self._before_damage(entry, partition, offset) if by_member else before
        if partition in self.restarting and by_member and offset in self._world.logs[partition].starts:
            if not (is_damaged or is_reset):
                self._check_start(entry, partition)
            self.restarting.discard(partition)
            self._restarted[partition] = entry.zxid
            self._begin_epoch(partition, offset)
        elif before is None or not by_member:
            self._begin_epoch(partition, offset)
            if not by_member and partition not in self.restarting:
                self._told_where_they_are(partition, offset)
            if before is None and by_member:
                self._check_first(entry, partition, offset)
                if partition in self._unread:
                    self._unread.discard(partition)
                    self.restarting.add(partition)
                    self._excused.add(partition)
        elif is_reset:
            self._reset_is_stored(entry, partition, offset)
        else:
            # First offsets are also stored by who does not own them, for all of a topic.
            if offset != before and change.kind is not Kind.CREATED and not self._owns(entry, partition):
                who = self.consumers[entry.session_id].name
                raise self._violation(f"{who} commits {offset} of {partition}, and its claim is not there")
            self._check_commit(entry, partition, before, offset)
            self._excuse_unknowing(entry, partition)
        self._stored[partition] = offset
        if by_member:
            self._told_last.pop(partition, None)
            self._reached[partition] = max(self._reached.get(partition, 0), offset)
        else:
            self._excused.add(partition)
            self._told_last[partition] = entry.zxid
            self._told.setdefault(partition, set()).add(offset)
        self._epoch_at[partition, version] = self._epochs[partition]

    def _broker_wrote(self, partition: TopicPartition, offset: int, version: int) -> None:
        self.commits += offset != self._stored.get(partition)
        self.brokers.written(partition, offset)
        self._damaged.discard(partition)
        self._told_last.pop(partition, None)
        self._stored[partition] = offset
        self._epoch_at[partition, version] = self._epochs[partition]

    def overwritten(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        """
        A broker's late write takes the place of what an operator has set, or of the start of a new log.

        The consumer that requested it does not know, perhaps, and has finished more since; or it knows, and follows the
        operator.
        """
        self._begin_epoch(partition, max(offset, self._reached.get(partition, 0)))
        known = consumer.finished(partition)
        if known is not None and known[1] <= self._processed[partition]:
            consumer.goes_on(partition, self._epochs[partition])
        if partition in self.restarting:
            self._excused.add(partition)

    def claims(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """Whether a partition is a consumer's, or an operator took it away without the consumer's knowledge."""
        owner = self._world.ensemble.tree.znodes.get(self._layout.owner(partition))
        is_its_own = owner is not None and self.consumers.get(owner.owner) is consumer
        return is_its_own or (partition, consumer) in self._forced

    def known(self, consumer: Consumer, partition: TopicPartition) -> int | None:
        """How far a partition was processed, where the consumer knows all that others did to the offset, else None."""
        finished = consumer.finished(partition)
        if finished is None or self.epoch_at(partition, finished[0]) != self._epochs[partition]:
            return None
        return self._processed[partition]

    def may_mistake(self, partition: TopicPartition) -> bool:
        """Whether the owner holds a partition since before its offset was deleted: versions began anew since."""
        owner = self._world.ensemble.tree.znodes.get(self._layout.owner(partition))
        return owner is not None and owner.czxid < self._removed.get(partition, 0)

    def is_set(self, partition: TopicPartition) -> bool:
        """Whether what stands there is an operator's word."""
        return partition in self._told_last and partition not in self._damaged

    def epoch_began(self, partition: TopicPartition) -> tuple[int, float]:
        """When the present epoch of a partition began: the zxid, and the time in seconds."""
        return self._epoch_began[partition]

    def created(self, partition: TopicPartition) -> tuple[int, float]:
        """When the topic of a partition was created: the zxid, and the time in seconds."""
        return self._created[partition.topic]

    def _excuse_unknowing(self, entry: Entry, partition: TopicPartition) -> None:
        if partition in self.restarting and not self._could_know(entry, partition.topic):
            if partition not in self._excused:
                self._unknowing.add(partition)
            self._excused.add(partition)

    # The one legal way back, or forward beyond what is processed: a log that does not have the position any more

    def _is_reset(self, entry: Entry, partition: TopicPartition, offset: int) -> bool:
        """Whether an owner stores what it may choose by the range that it was told, and what no commit would store."""
        writer, before = self.consumers[entry.session_id], self._stored.get(partition)
        if before is None or before <= offset <= self._processed[partition] or not self._owns(entry, partition):
            return False
        return self._may_reset(writer, partition, entry, offset)

    def _may_reset(self, writer: Consumer, partition: TopicPartition, entry: Entry, offset: int) -> bool:
        """Whether an offset is the policy's answer to what an owner was told under this claim, given once."""
        told, claim = self._ranges.get((partition, writer)), self._claim(entry, partition)
        if told is None or told.range.has_lost or told.stored_at not in (None, entry.zxid):
            return False
        if claim is not None and claim.czxid != told.token:
            return False
        return told.range.may_follow(self._world.reset, self._processed[partition], offset)

    def _reset_is_stored(self, entry: Entry, partition: TopicPartition, offset: int) -> None:
        writer = self.consumers[entry.session_id]
        if partition in writer.hands:
            raise self._violation(f"{writer.name} stores a reset of {partition} while its application processes it")
        self.resets += 1
        self._ranges[partition, writer] = self._ranges[partition, writer]._replace(stored_at=entry.zxid)
        self._begin_epoch(partition, offset)
        self._excuse_unknowing(entry, partition)

    def _told_where_they_are(self, partition: TopicPartition, offset: int) -> None:
        """An operator sets the very offset that somebody has reached: whether he hears of it makes no difference."""
        for consumer in self._world.consumers:
            known = consumer.finished(partition)
            if known is not None and known[1] == offset:
                consumer.goes_on(partition, self._epochs[partition])

    def _mistakes_version(self, entry: Entry, partition: TopicPartition) -> bool:
        """Whether who writes over an operator holds the partition since before its offset znode was deleted."""
        claim = self._claim(entry, partition) if partition in self._told_last else None
        return claim is not None and claim.czxid < self._removed.get(partition, 0)

    def _could_know(self, entry: Entry, topic: str) -> bool:
        """Whether who writes an entry could know, when he sent it, that a topic was created again."""
        zxid, at_s = self._created[topic]
        return (
            self.consumers[entry.session_id].seen(entry.session_id) > zxid
            and self._world.timeline.now_s > at_s + UNDER_WAY_S
        )

    def _check_start(self, entry: Entry, partition: TopicPartition) -> None:
        """
        A member does not overwrite what an operator has set in the new log.

        One that is still opening its claim cannot tell an operator's offset from its own write-back of an old one, and
        one whose offsets brokers write cannot tell it from theirs.
        """
        writer, (created, _) = self.consumers[entry.session_id], self._created[partition.topic]
        is_told = self._told_last.get(partition, 0) > created and self._world.store == ZOOKEEPER_STORE
        if is_told and writer.finished(partition):
            raise self._violation(
                f"{writer.name} starts {partition} over, and an operator has set it to {self._stored[partition]} in the"
                " new log"
            )

    def _is_gone(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """Whether the log of a consumer's position is gone, with its topic or for another one of that name."""
        exists = topic_path(partition.topic) in self._world.ensemble.tree.znodes
        return not exists or self.is_outdated(consumer, partition)

    def is_outdated(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """Whether a consumer's position in a partition is one in a log that is gone."""
        topic = self._world.ensemble.tree.znodes.get(topic_path(partition.topic))
        return topic is not None and consumer.created(partition) < topic.czxid

    def _before_damage(self, entry: Entry, partition: TopicPartition, offset: int) -> int | None:
        """
        What an offset is compared with that comes after a damage: any that was ever reached will do.

        What an operator had set before that may be gone with it: who had not seen it goes on where he was.
        """
        known = max(self._processed.get(partition, 0), self._reached.get(partition, 0))
        if partition not in self._stored or (offset > known and offset not in self._told.get(partition, ())):
            return None
        # Who holds it may have finished more since it was sent.
        self._begin_epoch(partition, max(offset, self._reached.get(partition, 0)))
        self.consumers[entry.session_id].goes_on(partition, self._epochs[partition])
        return min(self._stored[partition], offset)

    def _begin_epoch(self, partition: TopicPartition, offset: int) -> None:
        self._epochs[partition] = self._epochs.get(partition, 0) + 1
        self._epoch_began[partition] = (self.zxid, self._world.timeline.now_s)
        self._processed[partition] = offset

    def _check_first(self, entry: Entry, partition: TopicPartition, offset: int) -> None:
        """
        A group's first offsets follow its policy; those of partitions that came later start at the beginning.

        Where somebody has deleted all the others, there may be nobody left who knows which of both it is. And whoever
        looked for the topic while it was gone sees to the partitions that he holds, and to no others: their owners may
        be about to do the same.
        """
        fresh = {self._partition(change.path) for change in entry.changes} | self._damaged
        known = any(other.topic == partition.topic and other not in fresh for other in self._stored)
        log = self._world.logs[partition]
        starts, ends = log.starts, log.ends | {self._world.log_end}
        expected = set(starts if known or self._world.reset == "earliest" else ends)
        if partition.topic in self._cleared or any(other.topic == partition.topic for other in self._damaged):
            expected |= starts
        if partition.topic in self._created and not self._could_know(entry, partition.topic):
            expected |= starts if self._world.reset == "earliest" else ends
        if offset not in expected:
            raise self._violation(f"the first offset of {partition} is {offset}, it should be of {expected}")

    def _check_commit(self, entry: Entry, partition: TopicPartition, before: int, offset: int) -> None:
        self.commits += offset != before
        who = self.consumers[entry.session_id].name
        if offset < before:
            raise self._violation(f"{who} takes the offset of {partition} back from {before} to {offset}")
        if offset > self._processed[partition]:
            raise self._violation(f"{who} commits {offset} of {partition}, processed is {self._processed[partition]}")

    def _owns(self, entry: Entry, partition: TopicPartition) -> bool:
        writer = self.consumers[entry.session_id]
        return (partition, writer) in self._forced or self._claim(entry, partition) is not None

    def _claim(self, entry: Entry, partition: TopicPartition) -> Znode | None:
        """The claim of who writes an entry, also where it is given back with that very entry."""
        path = self._layout.owner(partition)
        deleted = (change.znode for change in entry.changes if change.path == path and change.kind is Kind.DELETED)
        claim = next(deleted, None) or self._world.ensemble.tree.znodes.get(path)
        return claim if claim is not None and claim.owner == entry.session_id else None

    # In the end

    def check_started_over(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Nobody goes on in a new log where he was in the old one.

        Who committed before he could know of the new one is excused. Of an offset that is older than its topic the next
        owner knows what it is.
        """
        znodes = self._world.ensemble.tree.znodes
        for partition in sorted(self.restarting.intersection(partitions) - self._excused):
            offset, topic = znodes[self._layout.offset(partition)], znodes[topic_path(partition.topic)]
            if offset.mzxid > topic.czxid:
                raise self._violation(f"{partition} goes on at {int(offset.data)} in a log that was begun anew")

    def unowned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions that flow at nobody, or at more than one."""
        living = [consumer for consumer in self._world.consumers if consumer.lives]
        return [
            p for p in partitions if sum(p in consumer.flowing and consumer.gate_is_open for consumer in living) != 1
        ]

    def stored(self, partition: TopicPartition) -> int | None:
        return self._stored.get(partition)

    def reached(self, partition: TopicPartition) -> int:
        """The next offset after all that was ever processed or stored."""
        return self._reached.get(partition, 0)

    def processed(self, partition: TopicPartition) -> int:
        return self._processed.get(partition, 0)
