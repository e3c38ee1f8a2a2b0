"""Perform operators' orders to continue partitions at other offsets. The owner of a partition performs its order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from kiel_groups.backoff import Backoff
from kiel_groups.errors import ProtocolError
from kiel_groups.group.partition_offsets import StoredOffset
from kiel_groups.group.znodes.contents import OrderedOffset, OrderNotice
from kiel_groups.group.znodes.transactions import Delete
from kiel_groups.members.offsets.owned_offsets import OffsetStore, OwnedOffsets
from kiel_groups.members.offsets.zookeeper_store import OffsetZnodes
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.tasks import MemberContext

log = logging.getLogger(__name__)


#: The first and the longest pause before an order is tried again that could not be performed, in seconds.
FIRST_ORDER_PAUSE_S, LONGEST_ORDER_PAUSE_S = 0.1, 5.0


class OffsetOrders:
    """
    Stores the offsets that an operator orders for one member's partitions, on one session of the member.

    The command creates one ephemeral znode for each partition, and writes their parent znode ``orders``. All members
    watch ``orders``. An owner stores the ordered offset, and acknowledges the order by deleting the partition's znode.

    With offsets in ZooKeeper, one transaction does both, so an order is performed if and only if its znode was deleted
    by the owner. With offsets in Kafka, the owner stores the offset first, and acknowledges the order once delivery
    continues at the offset (decision 0042).

    Args:
        context: The member.
        owned: Has the lock of all writes of offsets, and adopts the offsets of other writers.
        store: The offset store of the group.
        znodes: The offset znodes, for offsets in ZooKeeper.
        writer: Writes in transactions that require the member znode to exist.
        owned_now: Returns the partitions whose records are delivered: opened and not draining.
    """

    def __init__(
        self,
        context: MemberContext,
        owned: OwnedOffsets,
        store: OffsetStore,
        znodes: OffsetZnodes,
        writer: FencedWriter,
        owned_now: Callable[[], Collection[TopicPartition]],
    ) -> None:
        self._context = context
        self._group = context.group
        self._in_kafka = context.tracker.rules.in_kafka
        self._session = context.session
        self._layout = context.layout
        self._tracker = context.tracker
        self._owned = owned
        self._store = store
        self._znodes = znodes
        self._writer = writer
        self._owned_now = owned_now
        self._due = asyncio.Event()
        #: Whether any partition had an order at the last look. Without a notification, no partition has got one since.
        self._is_active = False

    def recheck(self) -> None:
        """Look for orders, because watches may have been lost."""
        self._due.set()

    def opened(self) -> None:
        """Look for orders of newly opened partitions, if the last look has found orders of the group."""
        if self._is_active:
            self._due.set()

    async def run(self) -> None:
        """Perform orders until this task is cancelled."""
        backoff = Backoff(FIRST_ORDER_PAUSE_S, LONGEST_ORDER_PAUSE_S)
        while True:
            self._due.clear()
            if await self._perform_all():
                backoff.reset()
                await self._due.wait()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next_s()):
                        await self._due.wait()

    async def _perform_all(self) -> bool:
        """Perform the present orders. Return False if an order for this member's partitions must be tried again."""
        path = self._layout.orders
        # Usually there are no orders: this is the only request that they cost. The watch reports writes, too.
        node = await self._session.exists(path, self._due.set)
        self._is_active = node is not None and node.children > 0
        node = await self._session.get(path) if self._is_active else None
        # The first order of a large group has orders before it has a notice.
        if node is None or not node.data:
            return True
        try:
            notice = OrderNotice.parse(node.data, path)
        except ProtocolError as error:
            self._report(error)
            return True
        ordered = await self._read(notice)
        if not ordered:
            return True
        return await self._perform(ordered, notice.order_id) >= ordered.keys()

    def _report(self, error: ProtocolError) -> None:
        self._context.metrics.count("znodes_unreadable")
        log.error("group %s: %s; not continuing at the ordered offset", self._group, error)

    async def _read(self, notice: OrderNotice) -> dict[TopicPartition, OrderedOffset]:
        """Read the orders of this member's partitions."""
        listed = sorted(partition for partition in self._owned_now() if partition.topic in notice.topics)
        paths = [self._layout.order(notice.order_id, partition) for partition in listed]
        ordered = {}
        for partition, path, node in zip(listed, paths, await self._session.get_many(paths), strict=True):
            try:
                if node is not None:
                    ordered[partition] = OrderedOffset.parse(node.data, path)
            except ProtocolError as error:
                self._report(error)
        return ordered

    async def _perform(self, ordered: Mapping[TopicPartition, OrderedOffset], order_id: str) -> set[TopicPartition]:
        """Perform orders, and return the partitions whose orders are performed and acknowledged."""
        orders = {partition: self._layout.order(order_id, partition) for partition in ordered}
        async with self._owned.writing:
            owned = self._owned_now()
            commits = self._tracker.orders({p: each for p, each in ordered.items() if p in owned})
            states = {partition: self._tracker.of(partition) for partition in commits}
            if self._in_kafka:
                stored = (await self._store.commit(commits, "")).stored
            else:
                # A commit that a late broker writes after this is another writer's.
                self._tracker.requested(dict.fromkeys(commits))
                stored = await self._znodes.put_ordered(commits, orders)
            # Meanwhile, an operator may have deleted a claim, and this member made another one.
            followed = {p: now for p, now in stored.items() if self._tracker.of(p) is states[p]}
            self._follow(followed)
        if self._in_kafka:
            await self._acknowledge({partition: orders[partition] for partition in followed})
            return set(followed)
        if left := commits.keys() - stored.keys():
            # Another writer has changed these offsets, or their orders are withdrawn.
            await self._owned.adopt_foreign_offsets(lambda: left.intersection(self._owned_now()))
        return set(stored)

    def _follow(self, stored: Mapping[TopicPartition, StoredOffset]) -> None:
        """Continue delivery at the ordered offsets in ``stored``, which have been written to the store."""
        for partition, now in stored.items():
            assert now.offset is not None
            self._tracker.ordered(partition, now)
            self._context.handler.offset_changed(partition, now.offset)
        if stored:
            self._context.metrics.count("orders_performed", len(stored))
            listed = some(f"{each} at {now.offset}" for each, now in sorted(stored.items()))
            count = counted(stored, "partition")
            log.warning("group %s: an operator ordered offsets of %s; continuing with %s", self._group, count, listed)

    async def _acknowledge(self, orders: Mapping[TopicPartition, str]) -> None:
        """
        Delete the orders of partitions whose offsets are stored in Kafka, unless the orders are withdrawn meanwhile.
        """
        waiting = orders
        while waiting:
            outcome = await self._writer.write({p: (Delete(path),) for p, path in waiting.items()}, lambda *_: None)
            waiting = {partition: orders[partition] for partition in outcome.unknown}
