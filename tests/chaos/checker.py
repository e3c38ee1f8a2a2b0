"""
Check the guarantees of a group in the history of a run; a pure function of the history.

The checker uses only what can be observed from outside: acknowledgements, deliveries, ZooKeeper's transactions, and the
inflicted faults. It does not use the state of the members.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from tests.chaos.history import Delivery, History, Inflicted, Ownership
from tests.chaos.schedule import KINDS

__all__ = ["Finding", "Gap", "Limits", "check", "gaps"]


_OfPartition = TypeVar("_OfPartition", Delivery, Ownership)


class Finding(NamedTuple):
    """
    A broken guarantee: its kind, a description, its partition (None if it concerns no single partition), and its time.
    """

    kind: str
    text: str
    partition: int | None
    at_s: float


class Gap(NamedTuple):
    """
    A time during which a partition had no live owner. ``quiet_s`` is the length of its longest part without a fault.
    """

    partition: int
    since_s: float
    until_s: float
    quiet_s: float

    @property
    def lasted_s(self) -> float:
        return self.until_s - self.since_s


class Limits(NamedTuple):
    """
    The longest delays that are no finding.

    Args:
        unowned_s: How long a partition may have no live owner while there is no fault: a session timeout, and a
            tolerance for slow machines.
        late_s: How long an acknowledged record may wait for its delivery while there is no fault.
        clock_s: How much earlier the time of a commit may be than the end of its record, because the times in
            ZooKeeper's log are whole milliseconds.
    """

    unowned_s: float
    late_s: float
    clock_s: float = 0.01


def check(history: History, limits: Limits) -> list[Finding]:
    """Return all findings, sorted by time."""
    found = [
        *_lost(history),
        *_overlaps(history),
        *_back(history),
        *_skipped(history, limits),
        *_foreign(history),
        *_unowned(history, limits),
        *_late(history, limits),
        *_ended(history),
    ]
    return sorted(found, key=lambda finding: finding.at_s)


# ---------------------------------------------------------------------- records


def _lost(history: History) -> Iterator[Finding]:
    """Find acknowledged records that no member ever finished."""
    finished = {delivery.number for delivery in history.deliveries if delivery.end_s is not None}
    for record in history.acknowledged:
        if record.number not in finished:
            yield Finding(
                "lost",
                f"record {record.number}, acknowledged at offset {record.offset}, was never processed to its end",
                record.partition,
                record.at_s,
            )


def _overlaps(history: History) -> Iterator[Finding]:
    """
    Find deliveries under an older claim that come after a delivery under a newer claim.

    One delivery right after a process was resumed is not a finding: the process had checked its gate before the stop,
    and no check can be atomic with the delivery that follows.
    """
    resumed = {process.pid: list(process.resumed_s) for process in history.processes}
    for partition, deliveries in _by_partition(history.deliveries).items():
        newest: Delivery | None = None
        for delivery in sorted(deliveries, key=lambda each: each.start_s):
            if newest is None or delivery.token >= newest.token:
                newest = delivery
            elif not _excused_once(resumed.get(delivery.pid, []), delivery.start_s):
                yield Finding(
                    "overlap",
                    f"process {delivery.pid} was given offset {delivery.offset} under claim {delivery.token:#x}, after"
                    f" process {newest.pid} had been given offset {newest.offset} under claim {newest.token:#x}",
                    partition,
                    delivery.start_s,
                )


#: The most seconds between the resumption of a process and the delivery that the stop interrupted.
_INTERRUPTED_S = 0.05


def _excused_once(resumed_s: list[float], start_s: float) -> bool:
    """Return whether a resumption excuses this delivery. Each resumption excuses one delivery only."""
    for moment in resumed_s:
        if moment - _INTERRUPTED_S <= start_s <= moment + _INTERRUPTED_S:
            resumed_s.remove(moment)
            return True
    return False


def _late(history: History, limits: Limits) -> Iterator[Finding]:
    """
    Find the first acknowledged record of each partition that waited too long for its first delivery without a fault.
    """
    first: dict[int, float] = {}
    for delivery in history.deliveries:
        first[delivery.number] = min(delivery.start_s, first.get(delivery.number, math.inf))
    quiet = list(quiet_times(history.faults, history.end_s))
    reported: set[int] = set()
    for record in history.acknowledged:
        until_s = min(first.get(record.number, math.inf), history.end_s)
        if until_s - record.at_s <= limits.late_s or record.partition in reported:
            continue
        waited_s = _longest_common(record.at_s, until_s, quiet)
        if waited_s > limits.late_s:
            reported.add(record.partition)
            yield Finding(
                "late",
                f"record {record.number} at offset {record.offset} waited {waited_s:.1f} s for its delivery while there"
                f" was no fault; at most {limits.late_s:g} s are allowed",
                record.partition,
                record.at_s,
            )


# ---------------------------------------------------------------------- offsets


def _back(history: History) -> Iterator[Finding]:
    """Find committed offsets that decreased or were deleted. No operator resets offsets in these runs."""
    stored: dict[int, int] = {}
    for commit in history.commits:
        if commit.offset < stored.get(commit.partition, 0):
            yield Finding(
                "back",
                f"the committed offset went back from {stored[commit.partition]} to {commit.offset}",
                commit.partition,
                commit.at_s,
            )
        stored[commit.partition] = commit.offset
    for partition, at_s in history.deleted_offsets:
        yield Finding("back", "the committed offset was deleted", partition, at_s)


def _skipped(history: History, limits: Limits) -> Iterator[Finding]:
    """Find commits beyond a record that no member had finished at that time."""
    ends: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for delivery in history.deliveries:
        if delivery.end_s is not None:
            known = ends[delivery.partition].get(delivery.offset, math.inf)
            ends[delivery.partition][delivery.offset] = min(known, delivery.end_s)
    passed: dict[int, int] = {}
    tolerance_s = limits.clock_s + history.clock_step_s
    for commit in history.commits:
        for offset in range(passed.get(commit.partition, 0), commit.offset):
            if ends[commit.partition].get(offset, math.inf) > commit.at_s + tolerance_s:
                yield Finding(
                    "skipped",
                    f"offset {commit.offset} was committed before the record at {offset} had been processed",
                    commit.partition,
                    commit.at_s,
                )
        passed[commit.partition] = max(commit.offset, passed.get(commit.partition, 0))


def _foreign(history: History) -> Iterator[Finding]:
    """Find commits by a session that did not own the partition."""
    for commit in history.commits:
        if not commit.owned:
            yield Finding(
                "foreign",
                f"offset {commit.offset} was committed by a session that did not own the partition",
                commit.partition,
                commit.at_s,
            )


# ---------------------------------------------------------------------- owners


def _unowned(history: History, limits: Limits) -> Iterator[Finding]:
    """Find partitions that had no live owner for too long while there was no fault, or that no member ever owned."""
    for gap in gaps(history):
        if gap.quiet_s > limits.unowned_s:
            yield Finding(
                "unowned",
                f"no living owner for {gap.lasted_s:.1f} s, {gap.quiet_s:.1f} s of them in one piece while there was no"
                f" fault; at most {limits.unowned_s:g} s are allowed",
                gap.partition,
                gap.since_s,
            )
    owned = {ownership.partition for ownership in history.ownerships}
    for partition in sorted(set(range(history.partitions)) - owned):
        yield Finding("unowned", "no member ever owned it", partition, history.end_s)


def gaps(history: History) -> list[Gap]:
    """Return the times without a live owner, for partitions that had an owner before."""
    quiet = list(quiet_times(history.faults, history.end_s))
    died = {process.pid: process.ended_s for process in history.processes if process.ended_s is not None}
    found = []
    for partition, ownerships in _by_partition(history.ownerships).items():
        for since_s, until_s in _between(ownerships, died, history.end_s):
            found.append(Gap(partition, since_s, until_s, _longest_common(since_s, until_s, quiet)))
    return sorted(found, key=lambda gap: gap.since_s)


def _between(ownerships: Sequence[Ownership], died: dict[int, float], end_s: float) -> Iterator[tuple[float, float]]:
    """Yield the start and the end of each time between one live owner and the next, or the end of the run."""
    for before, after in pairwise([*ownerships, None]):
        assert before is not None
        since_s = min(before.until_s or end_s, died.get(before.pid, end_s))
        until_s = min(after.since_s if after is not None else end_s, end_s)
        if since_s < until_s:
            yield since_s, until_s


def quiet_times(faults: Iterable[Inflicted], end_s: float) -> Iterator[tuple[float, float]]:
    """
    Yield the times without a fault, up to the end of the run.

    A fault that excuses a missing owner counts for its whole duration. Any other fault, such as a kill, only ends one
    quiet time and starts the next: the partition may have been assigned to the member that was killed.
    """
    since_s = 0.0
    for fault in sorted(faults, key=lambda each: each.began_s):
        if fault.began_s > since_s:
            yield since_s, min(fault.began_s, end_s)
        over_s = fault.began_s
        if KINDS[fault.kind].excuses:
            over_s = end_s if fault.ended_s is None else fault.ended_s
        since_s = max(since_s, over_s)
    if since_s < end_s:
        yield since_s, end_s


def _longest_common(since_s: float, until_s: float, times: Iterable[tuple[float, float]]) -> float:
    """Return the length of the longest part of an interval that lies within one of the given times, or 0."""
    return max(0.0, *(min(until_s, end_s) - max(since_s, start_s) for start_s, end_s in times), 0.0)


# ---------------------------------------------------------------------- processes


def _ended(history: History) -> Iterator[Finding]:
    """Find members that stopped without a command of the run, or did not leave gracefully."""
    for process in history.processes:
        if process.trouble:
            at_s = history.end_s if process.ended_s is None else process.ended_s
            yield Finding("ended", f"member process {process.pid} {process.trouble}", None, at_s)


def _by_partition(items: Iterable[_OfPartition]) -> dict[int, list[_OfPartition]]:
    found: defaultdict[int, list[_OfPartition]] = defaultdict(list)
    for item in items:
        found[item.partition].append(item)
    return found
