"""Orders of operators to continue at other offsets."""

from __future__ import annotations

from tests.fakes.fake_ensemble import Entry
from tests.fakes.znode_tree import Kind
from tests.sim.history.records import OffsetWrite, WriteKind
from tests.sim.invariants.invariant import Invariant

__all__ = ["OrdersPerformedByOwner"]


class OrdersPerformedByOwner(Invariant):
    """
    A member deletes an order only in the transaction in which it stores the ordered offset, under its claim.

    The order begins an epoch. So the invariants of deliveries and commits check that records delivered before it are
    not committed, and that delivery continues exactly at the ordered offset.
    """

    def on_entry(self, entry: Entry) -> None:
        if not self.history.sessions.is_member(entry):
            return
        written = {change.path for change in entry.changes if change.kind is not Kind.DELETED}
        for change in entry.changes:
            if change.kind is Kind.DELETED and change.path.startswith(f"{self.history.layout.orders}/"):
                topic, _, number = change.path.rpartition("/")[2].partition(":")[2].partition(":")
                if f"{self.history.layout.topic_offsets(topic)}/{number}" not in written:
                    raise self.violation(f"{change.path} is acknowledged, and no offset is stored")

    def on_offset(self, write: OffsetWrite) -> None:
        if write.kind is not WriteKind.ORDER:
            return
        ordered = self.history.order_deleted(write.entry, write.partition)
        assert ordered is not None
        if write.offset != ordered.offset:
            raise self.violation(f"{write.by.name} stores {write.offset} of {write.partition}, ordered is {ordered}")
        is_owned = self.history.owners.claim(write.entry, write.partition) is not None
        if not is_owned and not self.is_taken_by_operator(write.by, write.partition):
            raise self.violation(f"{write.by.name} performs the order of {write.partition}, and its claim is not there")
