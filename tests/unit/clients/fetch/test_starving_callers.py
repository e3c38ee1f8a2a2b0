"""What callers wait for while the buffer has nothing of it: it is kept for them, and within bounds."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients.fetch import fetch_requests as starving_callers
from kiel_groups.clients.fetch.fetch_buffer import FetchBuffer
from kiel_groups.clients.fetch.fetch_requests import ANY, Selection, StarvingCallers
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch
from kiel_groups.config import FetchConfig
from kiel_groups.model import TopicPartition
from tests.helpers.fetch_bench import T0, T1, T2
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

OTHER = TopicPartition("u", 0)


def of(*partitions: TopicPartition) -> Selection:
    return Selection(None, frozenset(partitions))


@pytest.mark.parametrize("selection", [of(T0), of(T0, T1), Selection("t"), Selection("t", frozenset({T0})), ANY])
def test_a_selection_is_kept_until_it_has_a_batch(selection: Selection) -> None:
    """A batch of another partition changes nothing, and a caller that asks twice is one caller."""
    starving = StarvingCallers([selection, selection])
    assert (len(starving), starving.has(T0), starving.has(OTHER)) == (1, True, selection == ANY)
    if selection != ANY:
        starving.feed(OTHER)
    if not selection.has(T2):
        starving.feed(T2)
    assert starving.has(T0)
    starving.feed(T0)
    assert (len(starving), starving.has(T0)) == (0, False)


def test_a_batch_ends_only_the_wait_for_its_partition() -> None:
    """The callers of the topic and of any partition get it, too."""
    starving = StarvingCallers([of(T0), of(T1), of(T0, T2), Selection("t"), Selection("u"), ANY])
    starving.feed(T0)
    assert [starving.has(tp) for tp in (T0, T1, T2, OTHER)] == [False, True, False, True]
    assert len(starving) == 2


def test_partitions_that_a_caller_leaves_to_another_one_count() -> None:
    """The other caller may be cancelled. Then nothing wakes this one to ask for all that it waits for."""
    starving = StarvingCallers([Selection(None, frozenset({T0, T1}), excluded=frozenset({T0}))])
    assert starving.has(T0)


async def test_what_callers_find_ends_the_wait_of_no_other_caller() -> None:
    """Their selections remain, and the one of the caller that has found something does not come back."""
    buffer = FetchBuffer(FetchConfig())
    states = {tp: PartitionFetch(tp, 1, 0) for tp in (T0, T1, T2)}
    for tp in states:
        assert buffer.pop(of(tp)) is None
    buffer.put(states[T2], FetchedBatch(T2, [], 1, 1))
    assert buffer.pop(of(T2)) is not None
    assert [buffer.room().is_awaited(state) for state in states.values()] == [True, True, False]


async def test_the_selections_of_callers_that_are_gone_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may ask for other partitions each time, none of which has data. Callers that wait are not concerned."""
    monkeypatch.setattr(starving_callers, "_MOST_SELECTIONS", 10)
    buffer = FetchBuffer(FetchConfig())
    for selection in (of(T0, T1), Selection("t"), of(T2)):
        assert buffer.pop(selection) is None
    callers = [asyncio.create_task(buffer.ready.wait(each)) for each in (of(T0, T1), of(T2))]
    await run_ready_tasks()
    for number in range(1_000):
        assert buffer.pop(of(OTHER, TopicPartition("u", number + 1))) is None
        assert len(buffer._starving) <= 10 + 3 * 3
    assert all(buffer.room().is_awaited(PartitionFetch(tp, 1, 0)) for tp in (T0, T1, T2))
    buffer._starving.feed(T0)
    assert buffer.room().is_awaited(PartitionFetch(T2, 1, 0))
    for caller in callers:
        caller.cancel()
