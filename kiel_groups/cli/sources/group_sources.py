"""A group for commands that show it: how it is loaded, checked and rendered, by what coordinates it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kiel_groups.cli.parameters.options import SERVER_WAIT_S, ClusterAddress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kiel_groups.errors import KielGroupsError
    from kiel_groups.ops.group_loader import LoadedGroups
    from kiel_groups.ops.views.checks import Finding
    from kiel_groups.ops.views.coordinated import CoordinatedGroupView
    from kiel_groups.ops.views.group_view import GroupView
    from kiel_groups.ops.views.report import Listed

__all__ = ["GroupSource", "group_source"]

View = TypeVar("View")


class GroupSource(Protocol[View]):
    """One group; a source remembers what its loads have shown, because some problems need several."""

    def load(self) -> LoadedGroups[View]:
        """Load the group. Raise KielGroupsError if that fails."""

    def follow(self) -> Generator[LoadedGroups[View] | KielGroupsError, None, None]:
        """Load the group whenever the caller requests the next item, and yield the errors of servers."""

    def needs_time(self, loaded: LoadedGroups[View]) -> str:
        """Return why a further load, 16 seconds later, may reveal a problem that this one cannot, or ""."""

    def lagless(self, loaded: LoadedGroups[View]) -> str:
        """Return why the group has no lag, whatever its members do, or "" if it is one of consumers."""

    def findings(self, loaded: LoadedGroups[View]) -> Sequence[Finding]:
        """Return the problems that all loads so far have revealed."""

    def report(
        self, loaded: LoadedGroups[View], findings: Sequence[Finding], listed: Listed, clock: str = ""
    ) -> Sequence[RenderableType]:
        """Return the report for people; ``clock`` is the time of day to show."""

    def document(self, loaded: LoadedGroups[View], findings: Sequence[Finding]) -> dict[str, Any]:
        """Return the document for programs."""


def group_source(cluster: ClusterAddress, group: str, *, generations: int = 0) -> GroupSource[Any]:
    """Return the source of a group; ``generations`` is the number of plans that a report on ZooKeeper's shows."""
    if cluster.is_of_brokers:
        return _CoordinatedGroup(cluster.hosts, group)
    return _ZooKeeperGroup(cluster.hosts, group, generations)


class _ZooKeeperGroup:
    """A group that coordinates itself through ZooKeeper; see ``GroupSource``."""

    def __init__(self, zookeeper: str, group: str, generations: int) -> None:
        from kiel_groups.ops.views.checks import ProgressTracker

        self._zookeeper = zookeeper
        self._group = group
        self._generations = generations
        self._progress = ProgressTracker()

    def load(self) -> LoadedGroups[GroupView]:
        from kiel_groups.ops.group_loader import load_group

        return load_group(self._zookeeper, self._group, timeout_s=SERVER_WAIT_S)

    def follow(self) -> Generator[LoadedGroups[GroupView] | KielGroupsError, None, None]:
        from kiel_groups.ops.group_loader import follow_group

        return follow_group(self._zookeeper, self._group, timeout_s=SERVER_WAIT_S)

    def needs_time(self, loaded: LoadedGroups[GroupView]) -> str:
        self._progress.take(loaded.groups[0], loaded.seen_ms)
        suspects = self._progress.suspects(loaded.seen_ms)
        return "some partitions are behind without a recent commit" if suspects else ""

    def lagless(self, loaded: LoadedGroups[GroupView]) -> str:
        programs = loaded.groups[0].programs
        return "" if programs is None else _lagless(self._group, programs.protocol_type)

    def findings(self, loaded: LoadedGroups[GroupView]) -> Sequence[Finding]:
        from kiel_groups.ops.views.checks import check_group

        view = loaded.groups[0]
        return (*self._progress.take(view, loaded.seen_ms), *check_group(view, loaded.seen_ms))

    def report(
        self, loaded: LoadedGroups[GroupView], findings: Sequence[Finding], listed: Listed, clock: str = ""
    ) -> Sequence[RenderableType]:
        from kiel_groups.ops.views.report import group_report

        return group_report(
            loaded.groups[0],
            findings,
            place=self._zookeeper,
            lag_problem=loaded.lag_problem,
            now_ms=loaded.seen_ms,
            clock=clock,
            listed=listed,
            generations=self._generations,
        )

    def document(self, loaded: LoadedGroups[GroupView], findings: Sequence[Finding]) -> dict[str, Any]:
        from kiel_groups.ops.views.documents import group_document

        document = group_document(
            loaded.groups[0], findings, lag_problem=loaded.lag_problem, generations=self._generations
        )
        return {**document, "looked_at": loaded.seen_ms}


class _CoordinatedGroup:
    """A group that brokers coordinate; see ``GroupSource``."""

    def __init__(self, brokers: str, group: str) -> None:
        from kiel_groups.ops.views.coordinated import CoordinatedProgress

        self._brokers = brokers
        self._group = group
        self._progress = CoordinatedProgress()

    def load(self) -> LoadedGroups[CoordinatedGroupView]:
        from kiel_groups.ops.coordinated_loader import load_coordinated_group

        return load_coordinated_group(self._brokers, self._group, timeout_s=SERVER_WAIT_S)

    def follow(self) -> Generator[LoadedGroups[CoordinatedGroupView] | KielGroupsError, None, None]:
        from kiel_groups.ops.coordinated_loader import follow_coordinated_group

        return follow_coordinated_group(self._brokers, self._group, timeout_s=SERVER_WAIT_S)

    def needs_time(self, loaded: LoadedGroups[CoordinatedGroupView]) -> str:
        self._progress.take(loaded.groups[0], loaded.seen_ms)
        return self._progress.suspicion

    def lagless(self, loaded: LoadedGroups[CoordinatedGroupView]) -> str:
        view = loaded.groups[0]
        return "" if view.is_of_consumers or view.state == "memberless" else _lagless(self._group, view.protocol_type)

    def findings(self, loaded: LoadedGroups[CoordinatedGroupView]) -> Sequence[Finding]:
        from kiel_groups.ops.views.coordinated import check_coordinated_group

        view = loaded.groups[0]
        found = (*self._progress.take(view, loaded.seen_ms), *check_coordinated_group(view))
        return sorted(found, key=lambda finding: finding.passing)

    def report(
        self, loaded: LoadedGroups[CoordinatedGroupView], findings: Sequence[Finding], listed: Listed, clock: str = ""
    ) -> Sequence[RenderableType]:
        from kiel_groups.ops.views.coordinated import coordinated_report

        return coordinated_report(
            loaded.groups[0],
            findings,
            place=self._brokers,
            lag_problem=loaded.lag_problem,
            clock=clock,
            listed=listed,
        )

    def document(self, loaded: LoadedGroups[CoordinatedGroupView], findings: Sequence[Finding]) -> dict[str, Any]:
        from kiel_groups.ops.views.coordinated import coordinated_document

        document = coordinated_document(loaded.groups[0], findings, lag_problem=loaded.lag_problem)
        return {**document, "looked_at": loaded.seen_ms}


def _lagless(group: str, protocol_type: str) -> str:
    """Return that members of this type have no lag, and what shows them."""
    from kiel_groups.model import CONNECT_TYPE

    text = f"the members of group {group} are of the type {protocol_type!r}, and consume no partitions"
    if protocol_type != CONNECT_TYPE:
        return f"{text}; 'kiel-groups describe {group}' shows them"
    return (
        f"{text}; 'kiel-groups workers describe {group}' shows them, and 'kiel-groups lag connect-NAME' the lag of the"
        " sink connector NAME"
    )
