"""
Order the members of a live group in ZooKeeper to continue at other offsets.

``place_order`` creates one ephemeral znode for each partition. The owner of a partition stores the offset under its
claim, continues at this offset, and deletes the znode. The deletion acknowledges the order for the partition. If the
session that placed the order ends, ZooKeeper deletes the remaining znodes, and so withdraws the rest of the order.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError, ConflictError, CoordinationError, ProtocolError, SessionLostError
from kiel_groups.group.znodes.contents import (
    LARGEST_OFFSET,
    OrderedOffset,
    OrderNotice,
    parse_owner,
    parse_topic,
    unsigned_hex,
)
from kiel_groups.group.znodes.layout import GroupLayout, topic_path
from kiel_groups.group.znodes.transactions import MOST_OPERATIONS, Check, Create, Put
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.zookeeper_client import Client, children_of, commit, refusal_text
from kiel_groups.wording import own_command, some

#: The interval between two checks for acknowledgements, in seconds.
CHECK_S = 0.2

#: The interval between two reports of what an order waits for, in seconds.
REPORT_S = 2.0


@dataclass(frozen=True, slots=True)
class OffsetOrder:
    """
    A placed order with the next offsets of partitions of a group.

    The order ends with the ZooKeeper session that placed it. ``session_id`` is the id of this session.
    """

    group: str
    order_id: str
    offsets: Mapping[TopicPartition, int]
    session_id: int

    def unacknowledged(self, client: Client) -> frozenset[TopicPartition]:
        """
        Return the partitions whose owners have not acknowledged the order yet.

        Raises:
            SessionLostError: The session has ended, which ends the order. Some offsets may have been set.
        """
        layout = GroupLayout(self.group)
        names = set(client.retry(client.get_children, layout.orders))
        self._check_session(client)
        paths = {partition: layout.order(self.order_id, partition) for partition in self.offsets}
        return frozenset(partition for partition, path in paths.items() if path.rpartition("/")[2] in names)

    def wait(
        self,
        client: Client,
        *,
        report: Callable[[Mapping[TopicPartition, MemberId | None]], object] = lambda _: None,
        timeout_s: float | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> frozenset[TopicPartition]:
        """
        Wait until all owners have acknowledged the order. After ``timeout_s``, withdraw the rest of the order.

        Args:
            client: The session that placed the order.
            report: Called every two seconds with the partitions without acknowledgement, each with its owner, or None.
            timeout_s: The longest time to wait, in seconds. None sets no limit.
            sleep: Waits for a number of seconds.

        Returns:
            The partitions whose order was withdrawn; see ``withdraw``. The offsets of all other partitions are set.

        Raises:
            SessionLostError: As for ``unacknowledged``.
        """
        waited_s = reported_s = 0.0
        while waiting := self.unacknowledged(client):
            if timeout_s is not None and waited_s >= timeout_s:
                return self.withdraw(client)
            if waited_s - reported_s >= REPORT_S:
                report(self.owners(client, waiting))
                reported_s = waited_s
            sleep(CHECK_S)
            waited_s += CHECK_S
        return frozenset()

    def withdraw(self, client: Client) -> frozenset[TopicPartition]:
        """
        Withdraw the order for the partitions whose owners have not acknowledged it.

        Returns:
            The partitions whose order was withdrawn. The offsets of all other partitions are set. If the offsets are in
            Kafka, an owner that is about to acknowledge the order may still set the offset of a returned partition.

        Raises:
            SessionLostError: As for ``unacknowledged``.
        """
        layout, taken = GroupLayout(self.group), set()
        left = sorted(self.unacknowledged(client))
        for partition, deletion in [(p, client.delete_async(layout.order(self.order_id, p))) for p in left]:
            with suppress(NoNodeError):
                deletion.get()
                taken.add(partition)
        self._check_session(client)
        return frozenset(taken)

    def owners(self, client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, MemberId | None]:
        """Return the owner of each of these partitions, or None for an unclaimed partition, in ascending order."""
        layout, found = GroupLayout(self.group), dict[TopicPartition, MemberId | None]()
        reads = [(partition, client.get_async(layout.owner(partition))) for partition in sorted(partitions)]
        for partition, read in reads:
            found[partition] = None
            with suppress(NoNodeError, ProtocolError):
                found[partition] = parse_owner(read.get()[0], layout.owner(partition))
        return found

    def _check_session(self, client: Client) -> None:
        """
        Check that the session which placed the order still exists.

        Raise SessionLostError if the session has ended. At the end of the session, ZooKeeper deletes the znodes of the
        order, as if all owners had acknowledged the order.
        """
        if _session_id(client) != self.session_id:
            raise SessionLostError(
                f"the ZooKeeper session of this command is over, and its order with it: some offsets of group"
                f" {self.group} may be set, and others not ({own_command('offsets', 'show', self.group)} shows them)"
            )


def place_order(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> OffsetOrder:
    """
    Order the owners of partitions to continue at other offsets. ``OffsetOrder.wait`` waits for the owners.

    Args:
        client: The caller's own session. The order ends with this session.
        group: The group's name.
        offsets: The next offset of each partition. The offsets are not compared with the logs.

    Raises:
        ConfigError: The group has no members, ``offsets`` is empty, a partition does not exist, or an offset is not
            legal.
        ConflictError: Another order is in progress. Nothing is ordered.
        CoordinationError: ZooKeeper refuses the order. Nothing stays ordered then.
    """
    layout = GroupLayout(check_name(group, "group"))
    if not offsets:
        raise ConfigError("offsets: none given; expected the offset of one partition at least")
    if not children_of(client, layout.members):
        raise ConfigError(f"group {group} has no members that could set offsets; try again, without an order")
    created = _check(client, offsets)
    order, notice, version = _new_order(client, layout, offsets)
    entries = [
        (layout.order(order.order_id, partition), OrderedOffset(offset, created[partition.topic]).encode())
        for partition, offset in sorted(offsets.items())
    ]
    try:
        _write(client, layout, notice, version, entries)
    except BaseException:
        with suppress(KazooException, CoordinationError):
            order.withdraw(client)
        raise
    return order


def _check(client: Client, offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
    """Check that the partitions exist and the offsets are legal. Return the creation zxid of each topic's znode."""
    created = {}
    for topic in sorted({check_name(partition.topic, "topic") for partition in offsets}):
        listed = {partition.partition for partition in offsets if partition.topic == topic}
        try:
            data, stat = client.get(topic_path(topic))
        except NoNodeError:
            raise ConfigError(f"topic {topic} does not exist") from None
        created[topic] = stat.czxid
        if missing := listed - set(parse_topic(data, topic_path(topic))):
            raise ConfigError(f"topic {topic} has no partition {some(sorted(missing))}")
    for partition, offset in offsets.items():
        if not 0 <= offset <= LARGEST_OFFSET:
            raise ConfigError(f"{partition}: {offset} given; expected an offset from 0 to {LARGEST_OFFSET}")
    return created


def _new_order(
    client: Client, layout: GroupLayout, offsets: Mapping[TopicPartition, int]
) -> tuple[OffsetOrder, OrderNotice, int]:
    """
    Return a new order, its notice, and the version of the parent znode of orders. Nothing is ordered yet.

    The parent znode is created if it does not exist. ``_write`` replaces the data of the parent znode by the notice.
    Raise ConflictError if another order is in progress.
    """
    with suppress(NodeExistsError):
        client.create(layout.orders)
    session_id, (_, stat) = _session_id(client), client.get(layout.orders)
    if stat.numChildren:
        raise ConflictError(_in_progress(client, layout))
    order_id = f"{unsigned_hex(session_id)}-{stat.version}"
    by, topics = f"{socket.gethostname()}:{os.getpid()}", tuple(sorted({each.topic for each in offsets}))
    notice = OrderNotice(order_id, topics, by, round(1000 * time.time()))
    return OffsetOrder(layout.group, order_id, dict(offsets), session_id), notice, stat.version


def _write(
    client: Client, layout: GroupLayout, notice: OrderNotice, version: int, entries: Sequence[tuple[str, bytes]]
) -> None:
    """
    Create the znodes of an order, and then write the notice. The members watch the notice, and then read the order.

    Each transaction requires the ``version`` at which the parent znode had no orders. So of two commands, only one
    command can write its notice. The other command gets a ConflictError.
    """
    most = MOST_OPERATIONS - 1
    for start in range(0, len(entries), most):
        is_last = start + most >= len(entries)
        first = Put(layout.orders, notice.encode(), version) if is_last else Check(layout.orders, version)
        creations = [Create(path, entry, ephemeral=True) for path, entry in entries[start : start + most]]
        if failed := commit(client, [first, *creations]):
            if isinstance(failed[1], BadVersionError | NodeExistsError):
                raise ConflictError(_in_progress(client, layout))
            raise CoordinationError(f"group {layout.group}: nothing is ordered: {refusal_text(failed[1])}")


def _in_progress(client: Client, layout: GroupLayout) -> str:
    """
    Return the error text for an order of offsets that is refused because another order is in progress.

    The text names the command that placed the other order, if the notice of the order can be read.
    """
    by = ""
    with suppress(NoNodeError, ProtocolError):
        notice = OrderNotice.parse(client.get(layout.orders)[0], layout.orders)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(notice.at_ms / 1000))
        by = f" (placed by {notice.by:.80} at {when})"
    return (
        f"group {layout.group}: another order of offsets is in progress{by}; it ends with its command, and if that was"
        " killed, with its session within seconds; then try again"
    )


def _session_id(client: Client) -> int:
    found = client.client_id
    return 0 if found is None else int(found[0])
