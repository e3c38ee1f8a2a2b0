"""
Offsets that brokers write (the store ``broker-v0``).

A broker checks nothing, so most of these invariants check the members' requests. A broker's late write may move an
offset back, overwrite an operator's offset, or belong to a deleted log; ``docs/ownership.rst`` documents this.
"""

from __future__ import annotations

from tests.sim.history.records import CommitRequest, OffsetWrite, WriteKind
from tests.sim.history.topics import NOTIFIED_S
from tests.sim.invariants.invariant import Invariant

__all__ = [
    "BrokersWriteOnlyProcessed",
    "BrokersWriteOnlyRequested",
    "RequestedOnlyProcessed",
    "RequestedThroughOpenGate",
    "RequestedUnderClaim",
    "RequestedWithOperatorsOffset",
]


def _text(request: CommitRequest) -> str:
    return f"{request.consumer.name} requests brokers to store {request.offset} of {request.partition}"


class RequestedThroughOpenGate(Invariant):
    """A member requests brokers to store offsets only while its gate is open."""

    def on_commit_request(self, request: CommitRequest) -> None:
        if not request.consumer.gate_is_open:
            raise self.violation(f"{_text(request)}, and its gate is shut")


class RequestedUnderClaim(Invariant):
    """A member requests brokers to store offsets only of partitions that it owns, or that an operator took from it."""

    def on_commit_request(self, request: CommitRequest) -> None:
        consumer, partition = request.consumer, request.partition
        if not (self.history.owners.owns(consumer, partition) or self.is_taken_by_operator(consumer, partition)):
            raise self.violation(f"{_text(request)}, and its claim is not there")


class RequestedOnlyProcessed(Invariant):
    """A member requests brokers to store no offset beyond the processed records."""

    def on_commit_request(self, request: CommitRequest) -> None:
        # A member that does not know the current epoch cannot know which records were processed in it.
        if request.known is not None and request.offset > request.known and not request.mistakes_version:
            raise self.violation(f"{_text(request)}, processed is {request.known}")


class RequestedWithOperatorsOffset(Invariant):
    """A member does not request to replace an operator's offset once the member has had time to be notified."""

    def on_commit_request(self, request: CommitRequest) -> None:
        if not request.is_unaware or request.mistakes_version:
            return
        partition, stored = request.partition, self.history.stored(request.partition)
        if not self.history.is_set_by_operator(partition) or self._is_recent(request):
            return
        if not self._may_be_its_own(request):
            raise self.violation(f"{_text(request)}, and an operator set it to {stored} long ago")

    def _is_recent(self, request: CommitRequest) -> bool:
        """Return whether the notification to the member may still be in flight."""
        return self.world.timeline.now_s < self.history.epoch_began(request.partition)[1] + NOTIFIED_S

    def _may_be_its_own(self, request: CommitRequest) -> bool:
        """
        Return whether the member requested the same offset last, so that it may mistake the operator's offset for its
        own.
        """
        stored = self.history.stored(request.partition)
        return self.history.requests.may_have_requested(request.consumer, request.partition, stored)


class BrokersWriteOnlyRequested(Invariant):
    """A broker stores only offsets that a member has requested."""

    def on_offset(self, write: OffsetWrite) -> None:
        if write.kind is WriteKind.BROKER and write.request is None:
            raise self.violation(f"a broker stores {write.offset} of {write.partition}, which no member requested")


class BrokersWriteOnlyProcessed(Invariant):
    """A broker that writes in the epoch of the request stores no offset beyond the processed records."""

    def on_offset(self, write: OffsetWrite) -> None:
        if write.request is None or self.history.requests.replaces_another_epoch(write.request):
            return
        if write.offset > write.processed:
            raise self.violation(f"a broker stores {write.offset} of {write.partition}, processed is {write.processed}")
