"""The work that a configuration names."""

from __future__ import annotations

import pytest

from kiel_groups.group.znodes.worker_contents import TargetState
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, ConnectorId, TaskId

pytestmark = pytest.mark.unit


def entry(tasks: int | None = 0, problem: str = "") -> ConnectorEntry:
    return ConnectorEntry({}, TargetState.STARTED, None if tasks is None else ({},) * tasks, problem)


SNAPSHOT = ConfigSnapshot(
    7, {"b": entry(1), "a": entry(11), "new": entry(None), "none": entry(0), "broken": entry(2, "task 1 is missing")}
)


def test_all_connectors_are_listed_in_order() -> None:
    """All connectors are work, in the order of their names, also without tasks and with an unusable configuration."""
    assert SNAPSHOT.sorted_connectors() == [ConnectorId(name) for name in ("a", "b", "broken", "new", "none")]


def test_tasks_of_usable_connectors_are_listed_in_order() -> None:
    """Tasks are listed by connector, then by number; a connector without a usable task set has none."""
    assert SNAPSHOT.sorted_tasks() == [*(TaskId("a", number) for number in range(11)), TaskId("b", 0)]
    assert SNAPSHOT.works() == [*SNAPSHOT.sorted_connectors(), *SNAPSHOT.sorted_tasks()]


@pytest.mark.parametrize("connector", ["new", "none", "broken", "missing"])
def test_a_connector_without_usable_tasks_has_none(connector: str) -> None:
    """No tasks: not made yet, an empty set, an inconsistent set, or no such connector."""
    assert SNAPSHOT.tasks_of(connector) == []


def test_a_new_group_has_no_work() -> None:
    """A group that was never configured has offset 0 and no work."""
    assert (ConfigSnapshot().offset, ConfigSnapshot().works()) == (0, [])
