"""The verification of one group over successive views: whether all is well once the group has settled."""

from __future__ import annotations

from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.checks import Finding, ProgressTracker, check_group
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.wording import counted

__all__ = ["Verification"]

#: The states of a group that rebalances.
_MOVING = frozenset({"moving", "publishing", "joining", "rebalancing"})


class Verification:
    """
    Verifies a group by the rules of ``checks``, over views that the caller reads every second or so.

    All is well if every partition is owned once, by a live member, as planned, and every committed offset moves while
    the partition has lag. A group that rebalances is not judged before it has settled, unless it has a problem that a
    rebalance does not explain, in two views.

    Args:
        window_ms: For how long a committed offset may stay the same while there is lag, in milliseconds; give more than
            the interval of the group's commits. 0 does not check offsets.
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
        """Whether the last view has settled, so that it can be judged. Only offsets need the whole window."""
        return self._settled_ms is not None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong by the views so far; that the group has not settled, too. () if all is well."""
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
        Add a view. Return whether the findings are final.

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
            text = "the group has no members, so no partition has an owner"
            found.append(Finding("no-members", text, "start a member; if it is no longer needed, delete the group"))
        unattended = self._unattended(view) if self._window_ms and view.state == "memberless" else []
        found += unattended
        lasting = frozenset(finding.kind for finding in found if not finding.passing)
        # Servers are read one after the other: what a change meanwhile makes look wrong is well in the next view.
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

    def _unattended(self, view: GroupView) -> list[Finding]:
        """Return the lag that no consumer reduces, unless a program that joins no group has committed since."""
        committed = {each.topic_partition: each.committed for each in view.partitions}
        if self._first is None:
            self._first = committed
        behind = [each for each in view.partitions if each.lag]
        if not behind or committed != self._first:
            return []
        return [
            Finding(
                "unconsumed",
                f"no member has joined the group, and no program commits; its lag is"
                f" {sum(each.lag or 0 for each in behind):,}, in {counted(behind, 'partition')}",
                "start a member, or the program that commits these offsets, such as a Spark job; if the group is no"
                " longer needed, delete it",
                partitions=tuple(each.topic_partition for each in behind),
            )
        ]
