"""
Find the problems of a group that only successive views show, such as partitions without progress, and verify groups.

One view cannot distinguish a stuck partition from an idle one whose next record has just arrived; two views can.
Coordinators tell neither since when a group rebalances, nor when an offset was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.checks import (
    Finding,
    check_group,
    check_unconsumed,
    owners_of,
    partition_names,
    short_names,
)
from kiel_groups.ops.views.group_view import GroupView, PartitionView
from kiel_groups.wording import counted, own_command, some

#: The default of ``max_poll_interval_ms``: the time after which the watchdog ends the session of a member that hangs.
STUCK_MS = 300_000

#: The age of the last commit from which a passing finding names the owner. It is shorter than ``STUCK_MS``, because the
#: watchdog then ends the owner's session. It is longer than the default commit interval of Java's consumers, 60 s.
SLOW_MS = 90_000

#: How long a partition may lag between two views without a commit: three times the default commit interval.
WATCHED_MS = 15_000

_LOG_OF_OWNER = "look at the log of that member"
_CAUSE = ": its application hangs, or does not commit"
_SESSION_ENDS = "; if its application hangs, it ends its session after max_poll_interval_ms (5 min by default)"


class _Since(NamedTuple):
    """A partition, and the time of the first of the successive views that show it unchanged, in epoch milliseconds."""

    partition: PartitionView
    since_ms: int


class ProgressTracker:
    """
    Finds partitions and rebalances that make no progress, from successive views of one group.

    A lag in one view proves nothing, because the record may have just arrived. If an earlier view had a lag and the
    same commit, a record has been waiting since then.

    Args:
        watched_ms: The shortest time, in milliseconds, after which a lag without a commit becomes a finding.
        stuck_ms: The least age of the last commit of a partition that counts as stuck, in milliseconds. From the age
            ``SLOW_MS`` on, the finding is a passing one. If the times of commits are unknown, a lag of this length
            counts as a lasting problem.
    """

    def __init__(self, watched_ms: int = WATCHED_MS, stuck_ms: int = STUCK_MS) -> None:
        self._watched_ms = watched_ms
        self._stuck_ms = stuck_ms
        self._rebalancing_since_ms: int | None = None
        self._uncommitted: dict[TopicPartition, _Since] = {}
        self._lagging: dict[TopicPartition, _Since] = {}

    def take(self, view: GroupView, now_ms: int) -> tuple[Finding, ...]:
        """
        Add a view, and return the present findings by all views so far. Findings that need an operator come first.

        Args:
            view: The group as it is now.
            now_ms: Epoch milliseconds.
        """
        # A commit may have changed only the offset that a partition in dispute does not show.
        self._lagging = _unmoved(self._lagging, view, now_ms, lambda each: bool(each.lag) and not each.is_disputed)
        if (coordinator := view.coordinator) is None:
            return tuple(self._stuck_or_slow(view, now_ms))
        if view.state != "rebalancing":
            self._rebalancing_since_ms = None
        elif self._rebalancing_since_ms is None:
            self._rebalancing_since_ms = now_ms
        self._uncommitted = _unmoved(self._uncommitted, view, now_ms, _lacks_offset)
        found = [
            *self._rebalancing(view, coordinator.state, now_ms),
            *self._missing_offsets(now_ms),
            *self._stuck(now_ms),
        ]
        return tuple(sorted(found, key=lambda finding: finding.passing))

    def is_awaited(self, since_ms: int) -> bool:
        """
        Return whether a partition with lag, or without an offset, has not changed since ``since_ms``.

        The time is in epoch milliseconds.
        """
        return any(each.since_ms <= since_ms for each in (*self._lagging.values(), *self._uncommitted.values()))

    def suspicion(self, now_ms: int) -> str:
        """
        Return the reason why another view, ``watched_ms`` after the last view, may show a new problem.

        Return "" if another view cannot show a new problem.
        """
        if self._rebalancing_since_ms is not None:
            return "the group rebalances"
        if self._uncommitted:
            return "assigned partitions have no committed offset"
        suspects = any(now_ms - _last_ms(each) >= self._stuck_ms for each in self._lagging.values())
        return "some partitions are behind without a recent commit" if suspects else ""

    def _stuck_or_slow(self, view: GroupView, now_ms: int) -> Iterator[Finding]:
        """
        Yield the findings about partitions without progress in a group whose commits have known times.

        All partitions of an owner are in one finding, because they have one cause: the owner hangs if one of them is
        stuck.
        """
        ages = [(each.partition, now_ms - _last_ms(each)) for each in self._unmoved(now_ms)]
        hanging = {each.owner for each, age_ms in ages if age_ms >= self._stuck_ms}
        least_ms = min(SLOW_MS, self._stuck_ms)
        for is_slow in (False, True):
            of_kind = [
                (each, age_ms) for each, age_ms in ages if age_ms >= least_ms and (each.owner in hanging) != is_slow
            ]
            found = [each for each, _ in of_kind]
            if not found:
                continue
            end = "; its application is slow or hangs" if is_slow else ""
            remedy = _LOG_OF_OWNER if is_slow else _LOG_OF_OWNER + _CAUSE
            if view.member_ids.issuperset(owners_of(found)):
                remedy += _SESSION_ENDS if is_slow else "; 'kiel-groups release' takes its partitions from it"
            least_s, most_s = (pick(age_ms for _, age_ms in of_kind) // 1000 for pick in (min, max))
            duration = _duration(most_s) if _duration(least_s) == _duration(most_s) else f"up to {_duration(most_s)}"
            yield self._no_progress(found, f"for {duration}", "owned by", end, remedy, passing=is_slow)

    def _stuck(self, now_ms: int) -> Iterator[Finding]:
        """Yield the finding about partitions without progress in a group whose commits have no known times."""
        if seen := self._unmoved(now_ms):
            stuck, seen_ms = [each.partition for each in seen], max(now_ms - each.since_ms for each in seen)
            passing = seen_ms < self._stuck_ms
            yield self._no_progress(stuck, f"in {seen_ms // 1000} s", "of", "", _LOG_OF_OWNER + _CAUSE, passing=passing)

    @staticmethod
    def _no_progress(
        partitions: Collection[PartitionView], duration: str, of: str, end: str, remedy: str, *, passing: bool
    ) -> Finding:
        what, names = counted(partitions, "partition makes", "partitions make"), partition_names(partitions)
        lag, owners = sum(each.lag or 0 for each in partitions), owners_of(partitions)
        text = (
            f"{what} no progress: lag {lag:,}, and no commit {duration}: {some(names)}, {of} {short_names(owners)}{end}"
        )
        return Finding("stuck", text, remedy, passing, names, owners)

    def _rebalancing(self, view: GroupView, broker_state: str, now_ms: int) -> Iterator[Finding]:
        if self._rebalancing_since_ms is None:
            return
        seen_ms = now_ms - self._rebalancing_since_ms
        known = counted(view.members, "member", "members")
        yield Finding(
            "rebalancing",
            f"the group rebalances ({broker_state}), with {known} so far"
            + (f", in every look for {seen_ms // 1000} s" if seen_ms >= 1000 else ""),
            "a member does not rejoin: its application is busy or hangs; the logs of members say which they wait for,"
            " and the coordinator removes it after its rebalance timeout",
            passing=seen_ms < self._watched_ms,
            members=tuple(sorted(view.member_ids)),
        )

    def _missing_offsets(self, now_ms: int) -> Iterator[Finding]:
        missing = list(self._uncommitted.values())
        if missing:
            partitions = [each.partition for each in missing]
            what = counted(partitions, "assigned partition has", "assigned partitions have")
            yield Finding(
                "missing-offset",
                f"{what} records, but no committed offset: {some(partition_names(partitions))},"
                f" of {short_names(owners_of(partitions))}",
                "look at the log of that member: it does not commit, or the offset has expired"
                " (offsets.retention.minutes)",
                passing=all(now_ms - each.since_ms < self._watched_ms for each in missing),
                partitions=partition_names(partitions),
            )

    def _unmoved(self, now_ms: int) -> list[_Since]:
        """Return the partitions that have had a lag for ``watched_ms`` or longer without a commit."""
        return [each for each in self._lagging.values() if now_ms - each.since_ms >= self._watched_ms]


def _duration(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


def _last_ms(seen: _Since) -> int:
    """
    Return the time of a partition's last commit or claim, in epoch milliseconds.

    If the time of the commit is unknown, as that of a Java consumer in Kafka, it is the time of the first view with
    this commit.
    """
    committed_ms = seen.since_ms if seen.partition.committed_ms is None else seen.partition.committed_ms
    return max(committed_ms, seen.partition.claimed_ms or 0)


def _lacks_offset(partition: PartitionView) -> bool:
    """Return whether a partition has no committed offset, although records were written to it."""
    return partition.committed is None and bool(partition.log_end)


def _unmoved(
    before: dict[TopicPartition, _Since],
    view: GroupView,
    now_ms: int,
    concerns: Callable[[PartitionView], bool],
) -> dict[TopicPartition, _Since]:
    """Return the partitions that members own and ``concerns`` selects, each with the time of its last change."""
    found = {}
    for each in view.partitions:
        if each.owner in view.member_names and concerns(each):
            last, since_ms = before.get(each.topic_partition, _Since(each, now_ms))
            is_same = all(getattr(last, name) == getattr(each, name) for name in ("owner", "committed", "committed_ms"))
            found[each.topic_partition] = _Since(each, since_ms if is_same else now_ms)
    return found


#: The states of a group that rebalances.
_MOVING = frozenset({"moving", "publishing", "joining", "rebalancing"})


class Verification:
    """
    Verifies a group by the rules of ``checks``. The caller adds a view every second or so.

    A group is well if the live member that the plan names owns each partition, and if every committed offset moves
    while the partition has lag. The verdict on a rebalancing group waits until the group has settled, unless two
    successive views have a problem that a rebalance does not explain.

    Args:
        window_ms: The longest time that a committed offset may stay the same while there is lag, in milliseconds. The
            time must be longer than the interval of the group's commits. 0 disables the check of offsets.
    """

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._progress = ProgressTracker(window_ms, window_ms)
        self._settled_ms: int | None = None
        #: The committed offsets in the first view.
        self._first: dict[TopicPartition, int | None] | None = None
        self._found: tuple[Finding, ...] = ()
        self._lasting: frozenset[str] = frozenset()
        self._state = ""

    @property
    def is_settled(self) -> bool:
        """Whether the group had settled in the last view. Then only the check of offsets may still need more views."""
        return self._settled_ms is not None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The problems in the last view, or () if the group is well. A group that has not settled has a problem."""
        if self.is_settled or self._found:
            return self._found
        return (
            Finding(
                "unsettled",
                f"the group does not settle; it is still {self._state}",
                "the log of its leader says what it waits for; a longer --timeout waits longer",
            ),
        )

    def take(self, view: GroupView, now_ms: int, lag_problem: str = "") -> bool:
        """
        Add a view, and return whether ``findings`` are final.

        Args:
            view: The group as it is now.
            now_ms: Epoch milliseconds.
            lag_problem: The reason why some offsets or log ends are unknown, or "".
        """
        found = list(check_group(view, now_ms))
        if self._window_ms and lag_problem:
            why = f"the lag is not fully known, so it is not known whether offsets move: {lag_problem}"
            remedy = "give credentials that may read these" if view.closed else "start the brokers"
            found.append(Finding("unknown-lag", why, f"{remedy}; '--window 0' does not check offsets"))
        if view.state == "empty" and all(finding.kind != "unconsumed" for finding in found):
            text = "the group has no members" + (", so no partition has an owner" if view.is_of_consumers else "")
            start = f"{own_command('workers', 'run', '--group', view.group)} starts one" if view.are_workers else ""
            remedy = f"{start or 'start a member'}; if it is no longer needed, delete the group"
            found.append(Finding("no-members", text, remedy))
        unattended = self._unattended(view, now_ms) if self._window_ms else []
        found += unattended
        lasting = frozenset(finding.kind for finding in found if not finding.passing)
        # Servers are read one after the other: a problem that only a change during the reads has caused is gone in the
        # next view.
        is_confirmed, self._lasting = lasting == self._lasting, lasting
        is_rebalancing = not lasting and (bool(found) or view.state in _MOVING)
        if self._window_ms:
            found += self._progress.take(view, now_ms)
        self._found, self._state = tuple(found), view.state
        if is_rebalancing or not is_confirmed:
            self._settled_ms = None
            return False
        if self._settled_ms is None:
            self._settled_ms = now_ms
        is_over = now_ms - self._settled_ms >= self._window_ms
        return is_over or not (unattended or self._progress.is_awaited(self._settled_ms))

    def _unattended(self, view: GroupView, now_ms: int) -> list[Finding]:
        """Return the finding about the lag of a group that no member has joined, unless an offset has moved."""
        committed = {each.topic_partition: each.committed for each in view.partitions}
        if self._first is None:
            self._first = committed
        if committed != self._first:
            return []
        remedy = "start a member, or the program that commits these offsets, such as a Spark job; or delete the group"
        why = "no member has joined the group, and no program commits"
        return list(check_unconsumed(view, now_ms, "memberless", why, remedy))
