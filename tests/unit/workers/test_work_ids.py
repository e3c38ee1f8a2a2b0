"""The ids of connectors and tasks."""

from __future__ import annotations

import pytest

from kiel_groups.workers.values import ConnectorId, TaskId

pytestmark = pytest.mark.unit


def test_ids_have_the_text_of_kafka_connect() -> None:
    """A connector's text is its name; a task's text is its connector's name, a hyphen and its number."""
    assert str(ConnectorId("c-1")) == "c-1"
    assert str(TaskId("c-1", 0)) == "c-1-0"


def test_tasks_are_ordered_by_connector_then_by_number() -> None:
    """Tasks are ordered by the connector's name as text, then by number, so task 10 follows task 9."""
    tasks = [TaskId("b", 0), TaskId("a", 10), TaskId("a-", 0), TaskId("a", 9)]
    assert sorted(tasks) == [TaskId("a", 9), TaskId("a", 10), TaskId("a-", 0), TaskId("b", 0)]


def test_a_connector_is_not_one_of_its_tasks() -> None:
    """A connector and its task are different pieces of work, also as keys."""
    assert len({ConnectorId("a"), TaskId("a", 0), TaskId("a", 1), ConnectorId("a")}) == 3
