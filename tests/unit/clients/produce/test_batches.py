"""The short way by which records are added to open batches, and the futures that are set for a whole batch."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

from kiel_groups.clients.produce import batches, sender
from kiel_groups.clients.produce.batches import Appender, Records, python_set_places, set_places
from kiel_groups.clients.produce.outcomes import JointOutcome, RecordMetadata
from kiel_groups.errors import KielGroupsError
from kiel_groups.wire.message_sets.encoder import encode_message_set
from tests.helpers.fake_broker import METADATA, PRODUCE
from tests.helpers.producers import T0, T1, producing, stored

pytestmark = pytest.mark.unit
compiled = pytest.mark.skipif(not batches.COMPILED, reason="there was no C compiler")


class Queue:
    """A queue with an open batch."""

    def __init__(self) -> None:
        self.newest: Any = Records()


def appender_of(queues: dict[int, Queue]) -> Any:
    found = Appender(None, random.random, asyncio.get_running_loop, asyncio.Future)
    found.topics["t"] = (tuple(queues), queues)
    found.most_buffered_bytes, found.most_batch_bytes, found.due_after = 1_000, 100, 3
    return found


@compiled
async def test_a_record_is_added_to_an_open_batch() -> None:
    queue = Queue()
    appender = appender_of({7: queue})
    futures = [appender.append("t", b"value", b"key", None), appender.append("t", None, None, 7)]
    assert (queue.newest.keys, queue.newest.values, queue.newest.outcomes) == (
        [b"key", None],
        [b"value", None],
        futures,
    )
    size = len(encode_message_set(queue.newest.keys, queue.newest.values))
    assert (queue.newest.size_bytes, appender.buffered_bytes) == (size, size)
    assert [future.get_loop() for future in futures] == [asyncio.get_running_loop()] * 2


@compiled
def test_a_given_outcome_is_that_of_the_record() -> None:
    """It needs no running loop: another thread has created it."""
    appender = appender_of({7: (queue := Queue())})
    outcome: Future[RecordMetadata] = Future()
    assert appender.append("t", b"v", None, 7, outcome) is outcome
    assert queue.newest.outcomes == [outcome]
    queue.newest.sealed = True
    assert appender.append("t", b"v", None, 7, Future()) == 7
    with pytest.raises(TypeError, match="6 arguments given; expected 4 or 5"):
        appender.append("t", b"v", None, 7, outcome, 1)


@compiled
async def test_the_record_that_makes_a_batch_due_is_left_to_python() -> None:
    """Later records join the batch while a broker is busy."""
    appender = appender_of({7: (queue := Queue())})
    appender.most_batch_bytes = 1_000
    added = [appender.append("t", b"", None, 7) for _ in range(4)]
    assert [isinstance(each, asyncio.Future) for each in added] == [True, True, True, False]
    queue.newest.outcomes.append(asyncio.get_running_loop().create_future())
    assert isinstance(appender.append("t", b"", None, 7), asyncio.Future)


@compiled
@pytest.mark.parametrize(
    ("record", "settings"),
    [
        (("t", b"v", None, 7), {"due_after": 0}),
        (("t", b"v", None, 7), {"most_buffered_bytes": 0}),
        (("t", b"v" * 75, None, 7), {}),
        (("t", b"v", None, 8), {}),
        (("t", b"v", None, True), {}),
        (("t", b"v", None, "7"), {}),
        (("u", b"v", None, 7), {}),
        ((["t"], b"v", None, 7), {}),
        (("t", "v", None, 7), {}),
        (("t", b"v", 1, 7), {}),
    ],
)
async def test_an_unusual_record_is_left_to_python(record: tuple[Any, ...], settings: dict[str, int]) -> None:
    """It changes nothing. The given partition is returned."""
    appender = appender_of({7: (queue := Queue())})
    for name, number in settings.items():
        setattr(appender, name, number)
    assert appender.append(*record) == record[-1]
    assert (queue.newest.values, queue.newest.size_bytes, appender.buffered_bytes) == ([], 0, 0)


@compiled
async def test_a_chosen_partition_is_returned_if_its_batch_is_not_open() -> None:
    """The caller uses it: a partitioner that counts its calls would count a second one."""
    appender = appender_of({7: (queue := Queue())})
    queue.newest.sealed = True
    assert appender.append("t", b"v", None, None) == 7
    queue.newest = None
    assert appender.append("t", b"v", None, None) == 7
    for broken in (object(), Records.__new__(Records)):
        if isinstance(broken, Records):
            del broken.outcomes
        queue.newest = broken
        assert appender.append("t", b"v", None, 7) == 7
    appender.topics["t"] = ((), {})
    with pytest.raises(IndexError):
        appender.append("t", b"v", None, None)
    for entry in (None, (1, 2), ((7,),)):
        appender.topics["t"] = entry
        assert appender.append("t", b"v", None, None) is None


@compiled
def test_without_a_running_loop_no_record_is_added() -> None:
    """Also in a thread beside the loop, and after it. A second loop has futures of its own."""
    appender = appender_of({7: (queue := Queue())})
    record = ("t", b"v", None, 7)
    assert appender.append(*record) == 7

    async def append() -> None:
        assert appender.append(*record).get_loop() is asyncio.get_running_loop()
        assert await asyncio.to_thread(appender.append, *record) == 7

    for count in (1, 2):
        asyncio.run(append())
        assert appender.append(*record) == 7
        assert len(queue.newest.outcomes) == count


async def test_records_do_not_overtake_those_that_wait_for_the_partitions_of_their_topic() -> None:
    """The topic is forgotten, as if it were deleted, while a batch of it is open."""
    async with producing(linger_ms=None, batch_size=1, backoff_ms=20) as (broker, producer):
        await producer.produce("t", b"0", partition=0)
        broker.gates[PRODUCE] = asyncio.Event()
        futures = [producer.produce("t", b"1", partition=0)]
        await broker.wait_for_requests(PRODUCE, 2)
        futures.append(producer.produce("t", b"2", partition=0))
        known = producer._cluster._topics.pop("t")
        futures.append(producer.produce("t", b"3", partition=1))
        await asyncio.sleep(0)
        futures += [producer.produce("t", b"4", partition=1), producer.produce("t", b"5", partition=0)]
        assert (len(list(producer._placement.waiting)), producer.unsent_count) == (3, 5)
        producer._cluster._topics["t"] = known
        broker.gates[PRODUCE].set()
        await asyncio.gather(*futures)
        assert [value for _, value in stored(broker, T0)] == [b"0", b"1", b"2", b"5"]
        assert producer.buffered_bytes == 0
    assert METADATA in {request.api_key for request in broker.requests}


async def test_a_record_without_partition_goes_to_one_that_its_topic_has_now() -> None:
    """The topic was deleted, and created again with fewer partitions."""
    async with producing(partitioner="murmur2", batch_size=1, linger_ms=None) as (broker, producer):
        keys = [b"%d" % number for number in range(8)]
        places = {key: await producer.produce("t", b"v", key=key) for key in keys}
        key = next(key for key, place in places.items() if place.partition == 1)
        del broker.logs[T1]
        await producer._cluster.refresh(["t"], "test")
        assert (await producer.produce("t", b"v", key=key)).partition == 0


@pytest.mark.parametrize("setter", [set_places, python_set_places])
async def test_places_are_set_unless_a_future_is_done(setter: Any) -> None:
    loop = asyncio.get_running_loop()
    futures: list[Any] = [loop.create_future() for _ in range(3)]
    futures[1].cancel()
    joint = JointOutcome(1)
    setter([*futures, joint], RecordMetadata, "t", 4, 10)
    assert (futures[0].result(), futures[1].cancelled(), futures[2].result().offset) == (("t", 4, 10), True, 12)
    assert type(futures[2].result()) is RecordMetadata
    assert await joint.future == 1
    unknown = loop.create_future()
    setter([unknown], RecordMetadata, "t", 4, -1)
    assert unknown.result() == ("t", 4, -1)


@pytest.mark.parametrize("setter", [set_places, python_set_places])
async def test_an_exit_of_a_callback_is_raised(setter: Any) -> None:
    class Exits(asyncio.Future[Any]):
        def set_result(self, result: Any) -> None:
            super().set_result(result)
            raise SystemExit

    future = Exits()
    with pytest.raises(SystemExit):
        setter([future], RecordMetadata, "t", 4, 10)
    with pytest.raises(AttributeError):
        setter([object()], RecordMetadata, "t", 4, 10)


class Cycle:
    """An object that refers to a future, which refers to it."""


async def test_a_future_that_has_failed_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error refers to the frames in which it was raised, and these refer to the future."""
    monkeypatch.setattr(sender.log, "disabled", True)  # log records, which tests keep, refer to the errors
    async with producing(linger_ms=None, batch_size=1, retries=0) as (broker, producer):
        await producer.produce("t", b"0", partition=0)
        broker.gates[PRODUCE] = asyncio.Event()
        futures = [producer.produce("t", b"%d" % number, partition=0) for number in range(2)]
        await broker.wait_for_requests(PRODUCE, 2)
        futures += [producer.produce("t", b"%d" % number, partition=0) for number in range(2)]
        broker.fail_next(PRODUCE, T0, 2)
        broker.fail_next(PRODUCE, T0, 2)
        broker.gates[PRODUCE].set()
        await asyncio.wait(futures)
        cycle: Any = Cycle()
        cycle.futures = futures
        for future in futures:
            error = future.exception()
            assert isinstance(error, KielGroupsError)
            error.cycle = cycle  # type: ignore[attr-defined]
        dropped = weakref.ref(cycle)
        del cycle, futures, future, error
        gc.collect()
        assert dropped() is None


async def test_a_future_with_a_place_is_collected_with_what_refers_to_it() -> None:
    """The producer keeps nothing of records that are stored."""
    async with producing(linger_ms=None, batch_size=1) as (_, producer):
        cycle: Any = Cycle()
        cycle.futures = [producer.produce("t", b"%d" % number, partition=0) for number in range(3)]
        for future in cycle.futures:
            future.cycle = cycle
        await asyncio.wait(cycle.futures)
        dropped = weakref.ref(cycle)
        del cycle, future
        gc.collect()
        assert dropped() is None
