"""
Faults that were in the catalogue, and that the code cannot have any more.

A mutant is moved here if its line has become dead, or if another mechanism has taken its place. If the fault can be
expressed again, it goes back to the catalogue.
"""

from __future__ import annotations

__all__ = ["FORMER"]

#: The reason for each fault, checked against the present code.
FORMER = {
    "a rebalance extends a lease that is over": (
        "GenerationGate.renew_in_rebalance counts from the sending of a request, and CoordinatorHeartbeat sends none"
        " that renews once the lease is over: what a later answer allows ends before now"
    ),
    "a claim with an unknown outcome is never repeated": (
        "a partition that OwnerZnodes.claim does not return becomes WAITING; the read of its owner znode that follows"
        " finds it free, and the partition is claimed again"
    ),
    "partitions are released while their records are processed because they count as idle": (
        "the result of DeliveryHandler.stop only decides which partitions drain together; DeliveryHandler.drained waits"
        " for all of them until nothing is in flight"
    ),
    "a release does not wait until topics whose watch has fired are read": (
        "no release waits for that by itself: FencedWriter.wait_ready does so for every write, and the catalogue has a"
        " mutant of it"
    ),
    "a commit stores positions in the log of a deleted topic because they count as uncommitted": (
        "each way to commit leaves out each partition that is outdated at the time of writing, whatever"
        " PartitionOffsets.uncommitted says, and the catalogue has a mutant of that"
    ),
    "the position stays behind a record that is raised": (
        "a record whose deserializer fails is put back by OwnedRecords.before, before it gets to a loop, and only the"
        " cursor of a loop moves the position"
    ),
    "a reset waits for records that cannot be deserialized": (
        "RecordDelivery.take ends only when its batch is used up and there is no other, and RecordDelivery._next_batch"
        " wakes waiting resets whenever a batch is used up, whether or not its records could be deserialized"
    ),
    "partitions that are being revoked are not reset when their topic is created again": (
        "OffsetTracker.recreated returns every open claim of the topic, and neither OffsetTracker nor RecreatedTopics"
        " knows which claims are being revoked: that is known to Claims alone"
    ),
    "SingleConsumer.consume() returns nothing for ever while all brokers are gone": (
        "both consumers wait in RecordReader, and the catalogue has a mutant of that"
    ),
}
