"""
The state of a cluster as the service shows it: its groups at one moment, and results of successive observations.

These results are the trends and the course of the lag, rebalances, and how long partitions had no progress or no owner.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.checks import Finding, check_group
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.lag_trend import LagTrends, Sample, Trend
from kiel_groups.ops.views.progress import ProgressTracker

#: How many points of the course of a group's lag are kept: an hour, if the groups are loaded every 5 seconds.
_MOST_POINTS = 720

#: How the causes of plans begin.
_CAUSES = (
    "first plan",
    "operator",
    "leader change",
    "join",
    "return",
    "leave",
    "expiry",
    "absence",
    "end of grace",
    "subscription",
    "config",
    "weights",
    "pattern",
    "new topic",
    "deleted topic",
    "new partitions",
    "allocator",
)


def cause_kind(cause: str) -> str:
    """Return the kind of a plan's first cause: "join" for "join of m-1, leave of m-2", or "other" if it is unknown."""
    return next((kind for kind in _CAUSES if cause.startswith(kind)), "other")


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """
    One group at one moment.

    ``findings`` are the group's problems; problems that need an operator come first. ``trends`` are the trends of each
    partition's lag, and ``windows`` has the first and last of the samples from which a trend was computed. ``lags`` is
    the course of the group's lag: pairs of epoch milliseconds and records, the oldest first. ``unowned_since_ms`` has
    the partitions that should have an owner but have none, and the time when that was first seen. ``rebalances`` counts
    the plans since the service started, by ``cause_kind``. ``findings_since_ms`` has the time since when each kind of
    finding has been there.
    """

    view: GroupView
    findings: tuple[Finding, ...]
    trends: Mapping[TopicPartition, Trend] = field(default_factory=dict)
    windows: Mapping[TopicPartition, tuple[Sample, Sample]] = field(default_factory=dict)
    lags: tuple[tuple[int, int], ...] = ()
    unowned_since_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    rebalances: Mapping[str, int] = field(default_factory=dict)
    findings_since_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def needs_operator(self) -> bool:
        """Whether the group has a problem that needs an operator, because it does not pass by itself."""
        return any(not finding.passing for finding in self.findings)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """
    A cluster at one moment.

    ``version`` increases with each state. ``loaded_ms`` is the time of the newest successful load of all groups in
    epoch milliseconds, or 0 before the first load. ``took_s`` is the duration of that load. ``error`` is the reason why
    the newest load failed, or "". ``loads`` and ``failed_loads`` count the successful and the failed loads. The other
    fields are as in ``LoadedGroups``.
    """

    version: int = 0
    groups: Mapping[str, GroupStatus] = field(default_factory=dict)
    brokers: int = 0
    lag_problem: str = ""
    problems: tuple[str, ...] = ()
    loaded_ms: int = 0
    took_s: float = 0.0
    error: str = ""
    loads: int = 0
    failed_loads: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether the groups are known, and the newest load did not fail."""
        return bool(self.loaded_ms) and not self.error


class ClusterHistory:
    """
    Creates the states of one cluster from successive loads of its groups. The methods return the new state.

    ``pasteable`` returns the text of a finding or a remedy whose commands name the cluster.
    """

    def __init__(self, pasteable: Callable[[str], str] = str) -> None:
        self._pasteable = pasteable
        self._state = ClusterState()
        self._trends = LagTrends()
        self._groups: dict[str, _GroupHistory] = {}

    @property
    def state(self) -> ClusterState:
        """The newest state."""
        return self._state

    def views(self, groups: Iterable[str]) -> list[GroupView]:
        """Return the newest views of those of these groups that are known."""
        return [self._state.groups[group].view for group in groups if group in self._state.groups]

    def take(self, loaded: LoadedGroups, took_s: float, changed: Iterable[str] = ()) -> ClusterState:
        """
        Add a load of all groups, and return the new state. Groups that the load lacks are forgotten.

        Args:
            loaded: The result of the load.
            took_s: The duration of the load, in seconds.
            changed: Groups that were read during the load. If the present view of such a group has all znodes, that
                view is kept, because the load may have read the group before.
        """
        newer = {view.group: view for view in self.views(changed) if not view.is_partial}
        views = tuple(
            newer[view.group].with_broker_answers_of(view) if view.group in newer else view for view in loaded.groups
        )
        self._groups = {view.group: self._groups.get(view.group) or _GroupHistory() for view in views}
        self._trends.take(views, loaded.seen_ms)
        for view in views:
            self._groups[view.group].sample(view, loaded.seen_ms)
        return self._next(
            groups={view.group: self._status(view, loaded.seen_ms) for view in views},
            brokers=loaded.brokers,
            lag_problem=loaded.lag_problem,
            problems=loaded.problems,
            loaded_ms=loaded.seen_ms,
            took_s=took_s,
            error="",
            loads=self._state.loads + 1,
        )

    def refresh(self, views: Iterable[GroupView], now_ms: int) -> ClusterState:
        """
        Add newer views of some groups, read from ZooKeeper only, and return the new state.

        Log ends and offsets in Kafka are taken from the last load. With a view that ``is_partial``, so are the
        findings: by a plan that is newer than the owners, partitions would seem to have wrong owners.
        """
        groups = dict(self._state.groups)
        for view in views:
            before = groups.get(view.group)
            if view.is_partial and before is not None:
                groups[view.group] = replace(before, view=view)
                continue
            self._groups.setdefault(view.group, _GroupHistory())
            known = view if before is None else view.with_broker_answers_of(before.view)
            groups[view.group] = self._status(known, now_ms)
        return self._next(groups=groups)

    def fail(self, error: str) -> ClusterState:
        """
        Record the error of a failed load, and return the new state. The new state keeps the groups of the former state.
        """
        return self._next(error=error, failed_loads=self._state.failed_loads + 1)

    def _next(self, **changes: object) -> ClusterState:
        self._state = replace(self._state, version=self._state.version + 1, **changes)  # type: ignore[arg-type]
        return self._state

    def _status(self, view: GroupView, now_ms: int) -> GroupStatus:
        trends = self._trends.trends(view.group)
        status = self._groups[view.group].status(view, trends, self._trends.windows(view.group), now_ms)
        complete = self._pasteable
        findings = (replace(each, text=complete(each.text), remedy=complete(each.remedy)) for each in status.findings)
        return replace(status, findings=tuple(findings))


class _GroupHistory:
    """Keeps the results of successive views of one group: the course of its lag, unowned partitions, rebalances."""

    def __init__(self) -> None:
        self._progress = ProgressTracker()
        self._lags: deque[tuple[int, int]] = deque(maxlen=_MOST_POINTS)
        self._unowned_since_ms: dict[TopicPartition, int] = {}
        self._findings_since_ms: dict[str, int] = {}
        self._rebalances: Counter[str] = Counter()
        self._generation: int | None = None

    def sample(self, view: GroupView, now_ms: int) -> None:
        """Add the group's lag to the course of the lag, if the lag is known."""
        if view.known_lag is not None:
            self._lags.append((now_ms, view.known_lag))

    def status(
        self,
        view: GroupView,
        trends: Mapping[TopicPartition, Trend],
        windows: Mapping[TopicPartition, tuple[Sample, Sample]],
        now_ms: int,
    ) -> GroupStatus:
        self._count_rebalances(view)
        self._unowned_since_ms = {
            partition: self._unowned_since_ms.get(partition, now_ms) for partition in _unowned(view)
        }
        findings = (*check_group(view, now_ms), *self._progress.take(view, now_ms))
        self._findings_since_ms = {each.kind: self._findings_since_ms.get(each.kind, now_ms) for each in findings}
        return GroupStatus(
            view,
            tuple(sorted(findings, key=lambda finding: finding.passing)),
            trends,
            windows,
            tuple(self._lags),
            self._unowned_since_ms,
            dict(self._rebalances),
            self._findings_since_ms,
        )

    def _count_rebalances(self, view: GroupView) -> None:
        newest = max((entry.generation for entry in view.history), default=0)
        # What happened before the service began to look is not counted.
        for entry in view.history if self._generation is not None else ():
            if entry.generation > (self._generation or 0):
                self._rebalances[cause_kind(entry.cause)] += 1
        self._generation = newest


def _unowned(view: GroupView) -> list[TopicPartition]:
    """
    Return the partitions that have no owner although a plan assigns them, or members subscribe to their topics.

    In a group of other clients, which has no plan, the topics are those that members subscribe to or own partitions of.
    """
    if view.state == "foreign":
        topics = {topic for member in view.foreign_members for topic in member.topics}
        topics |= {each.topic_partition.topic for each in view.partitions if each.owner is not None}
        ownerless = {each.topic_partition for each in view.partitions if each.owner is None and each.exists}
        return sorted(each for each in ownerless.union(view.further) if each.topic in topics)
    unassigned = {each.topic_partition for each in view.unassigned}
    return [
        each.topic_partition
        for each in view.partitions
        if each.owner is None and (each.target is not None or each.topic_partition in unassigned)
    ]
