"""The queue of partitions with buffered batches."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from kiel_groups.clients.fetch.fetch_requests import ReadyQueue
from kiel_groups.clients.fetch.partition_fetch import PartitionFetch
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


def test_partitions_are_taken_in_turn_and_from_any_place() -> None:
    queue, states = ReadyQueue(), [PartitionFetch(TopicPartition("t", number), 1, 0) for number in range(5)]
    for state in states[:4]:
        queue.add(state)
    queue.add_first(states[4])
    queue.remove(states[1])
    queue.remove(states[1])
    assert [queue.pop() for _ in range(5)] == [states[4], states[0], states[2], states[3], None]


def test_the_removal_of_a_partition_looks_at_no_other_partition() -> None:
    """A pause of thousands of partitions removes each of them, and blocked the event loop for a second."""
    queue, states = ReadyQueue(), [PartitionFetch(TopicPartition("t", number), 1, 0) for number in range(1_000)]
    for state in states:
        queue.add(state)
    lines = 0

    def count(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        queue.remove(states[-1])
    finally:
        sys.settrace(before)
    assert lines < 10
    assert queue.pop() is states[0]
