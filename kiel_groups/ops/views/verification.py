"""Verify a group from successive views: after the group has settled, it must have no problems."""

from __future__ import annotations

from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.checks import Finding, ProgressTracker, check_group, check_unconsumed
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.wording import own_command

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
            found.append(Finding("unknown-lag", why, "start the brokers; '--window 0' does not check offsets"))
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
