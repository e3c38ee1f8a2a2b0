"""Records cross to the event loop's thread in lists. Whatever ends the loop or the producer, each has an outcome."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kiel_groups.clients import RecordMetadata
from kiel_groups.errors import ClosedError, ConfigError, OutcomeUnknownError
from kiel_groups.sync import LoopThread, Producer, blocking_producer
from kiel_groups.sync.blocking_producer import RecordFuture
from tests.helpers.fake_broker import PRODUCE, FakeBroker, Fault, Log
from tests.helpers.forks import assert_refused_in_fork
from tests.helpers.producers import T0, T1, stored
from tests.helpers.waiting import eventually_blocking

pytestmark = pytest.mark.unit


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker on a loop of its own."""
    with LoopThread("broker") as loop:
        running = FakeBroker({"t": 1})
        loop.run(running.__aenter__())
        yield running
        loop.run(running.stop())


def producer_of(broker: FakeBroker, **settings: Any) -> Producer:
    """Return a producer that knows the partitions of topic t."""
    producer = Producer(str(broker.address), required_acks=1, **settings)
    producer.produce("t", b"first", b"first").result(5)
    return producer


@contextmanager
def busy(producer: Producer) -> Iterator[None]:
    """Keep the loop from taking records that are handed over."""
    begun, end = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        end.wait(5)

    producer._thread.call_soon(block)
    assert begun.wait(5)
    try:
        yield
    finally:
        end.set()


def outcome(future: Future[Any]) -> Any:
    error = future.exception(5)
    return future.result() if error is None else type(error)


def exits(key: Any, partitions: list[int]) -> int:
    """Choose the only partition, or exit."""
    return sys.exit("its own") if key == b"exit" else 0


def in_flight(broker: FakeBroker, producer: Producer) -> list[Future[Any]]:
    """Return the futures of records that were sent and are not answered, and of records that wait behind them."""
    sent = broker.count(PRODUCE)
    broker.script = lambda request: Fault.SILENT if request.api_key == PRODUCE else None
    futures: list[Future[Any]] = [producer.produce_many("t", [b"a", b"b"])]
    eventually_blocking(lambda: broker.count(PRODUCE) == sent + 1, "the first request is sent")
    futures += [producer.produce("t", b"c"), *producer.produce_many("t", [b"d"], each=True)]
    return futures


@pytest.mark.parametrize("topic", ["t", "new"])
def test_an_exit_of_the_partitioner_leaves_no_record_without_an_outcome(broker: FakeBroker, topic: str) -> None:
    """The record, those that were handed over with it, and those that wait for a lookup with it, fail."""
    broker.logs |= {T0._replace(topic="new"): type(broker.logs[T0])()}
    producer = producer_of(broker, partitioner=exits)
    with busy(producer):
        futures = [producer.produce(topic, b"x", key) for key in (b"before", b"exit", b"after")]
    assert [outcome(future) for future in futures] == [ClosedError] * 3
    with pytest.raises(ClosedError, match="make another one"):
        producer.produce(topic, b"x")
    producer.close()


def test_a_partition_that_was_just_added_gets_its_records(broker: FakeBroker) -> None:
    """The topic's partitions are looked up again before a record is refused."""
    producer = producer_of(broker)
    broker.logs[T1] = Log()
    assert producer.produce("t", b"x", partition=1).result(5) == ("t", 1, 0)
    broker.logs[T1._replace(partition=2)] = Log()
    assert producer.produce_many("t", [b"y", b"z"], partitions=[2, 1]).result(5) == 2
    with pytest.raises(ConfigError, match="partition: 3 given; t has 0 to 2"):
        producer.produce("t", b"x", partition=3).result(5)
    producer.close()


def test_an_exit_on_the_loop_tells_records_that_were_sent_from_others(broker: FakeBroker) -> None:
    """Records that no broker has answered may be stored. All three kinds of calls have outcomes."""
    producer = producer_of(broker)
    futures = in_flight(broker, producer)
    producer._thread.call_soon(lambda: sys.exit("its own"))
    assert [outcome(future) for future in futures] == [OutcomeUnknownError, ClosedError, ClosedError]


def test_an_exit_in_a_callback_leaves_no_record_of_the_batch_without_an_outcome(broker: FakeBroker) -> None:
    """The records after it in the batch are stored, but the loop ends before it says so."""
    producer = producer_of(broker)
    with busy(producer):
        futures = [producer.produce("t", b"%d" % number) for number in range(3)]
        futures[1].add_done_callback(lambda _: sys.exit("its own"))
    assert [outcome(future) for future in futures] == [("t", 0, 1), ("t", 0, 2), OutcomeUnknownError]


def test_a_ctrl_c_before_a_close_has_begun_leaves_no_record_without_an_outcome(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ends, but other threads may wait for their records."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    producer = producer_of(broker)
    futures = in_flight(broker, producer)
    monkeypatch.setattr(producer._thread, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    assert [outcome(future) for future in futures] == [OutcomeUnknownError, ClosedError, ClosedError]


def test_a_fork_is_refused_while_records_are_handed_over(broker: FakeBroker) -> None:
    """Otherwise the fork's record would join a list that nothing takes, or wait for a lock that nothing releases."""
    producer = producer_of(broker)
    with busy(producer):
        future = producer.produce("t", b"x")
        assert_refused_in_fork(lambda: producer.produce("t", b"of the fork"))
    assert outcome(future) == ("t", 0, 1)
    producer.close()


def test_a_topic_that_is_no_text_is_refused(broker: FakeBroker) -> None:
    with producer_of(broker) as producer, pytest.raises(ConfigError, match="not a legal name"):
        producer.produce(["t"], b"value")  # type: ignore[arg-type]


@pytest.mark.parametrize(("most_bytes", "most_records"), [(1_000, 1_000), (64 << 20, 40)])
def test_threads_wait_for_a_slow_loop(
    broker: FakeBroker, most_bytes: int, most_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for bytes, of which an empty record has some, and for a number of records that are handed over."""
    monkeypatch.setattr(blocking_producer, "_MOST_HANDED", most_records)
    producer = producer_of(broker, max_buffered_bytes=most_bytes)
    with busy(producer):
        waiting = ThreadPoolExecutor(1)
        produced = [waiting.submit(producer.produce, "t", b"") for _ in range(100)]
        produced[30].result(5)
        with pytest.raises(TimeoutError):
            produced[50].result(0.05)
    assert [outcome(outcome(each))[2] for each in produced] == list(range(1, 101))
    producer.close()


def test_a_record_that_is_handed_over_during_a_close_fails(broker: FakeBroker) -> None:
    """It is counted, as by an asynchronous producer."""
    producer = producer_of(broker)
    with busy(producer):
        before = producer.produce("t", b"before")
        producer._thread.call_soon(producer._client.close)
        # A further handover after the loop has taken the first list.
        after: Future[Any] = Future()
        producer._thread.call_soon(lambda: producer._handed.append(("t", None, None, b"", 0, after)))
        producer._thread.call_soon(producer._take_handed)
    assert outcome(before) == ("t", 0, 1)
    assert outcome(after) is ClosedError
    assert producer.metrics.counter("produce_failures") == 1
    producer.close()


def test_a_thread_that_produces_is_refused_at_once_during_a_close(broker: FakeBroker) -> None:
    """Otherwise it would hand records over as fast as it can, which the loop has to refuse before it ends."""
    producer = producer_of(broker)
    in_flight(broker, producer)
    producer._thread.call_soon(lambda: producer._client.close(100))
    eventually_blocking(lambda: producer._client.closing, "the close begins")
    with pytest.raises(ClosedError):
        producer.produce("t", b"x")
    producer.close()


THREAD_AT_EXIT = """
import sys, threading
from kiel_groups.errors import ClosedError
from kiel_groups.sync import Producer

def produce():
    accepted = 0
    try:
        while True:
            producer.produce("t", b"x")
            accepted += 1
    except (ClosedError, RuntimeError):  # from Python 3.12 on, the loop's thread may not start any more
        print(accepted, "accepted")

producer = Producer(sys.argv[1])
threading.Thread(target=produce).start()
"""


def test_a_thread_that_begins_to_produce_as_the_program_ends_loses_nothing(broker: FakeBroker) -> None:
    """The exit closes a client that another thread has just started."""
    program = [sys.executable, "-c", THREAD_AT_EXIT, str(broker.address)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=30, check=True)
    assert "not sent" not in ended.stderr
    assert ended.stdout.endswith(" accepted\n")


def test_threads_share_a_producer(broker: FakeBroker) -> None:
    """The records of each thread keep their order, and none is lost."""
    producer = producer_of(broker, max_buffered_bytes=2_000)

    def produce(thread: int) -> list[Future[Any]]:
        return [producer.produce("t", b"%d" % number, b"%d" % thread) for number in range(200)]

    with ThreadPoolExecutor(4) as threads:
        futures = [each for made in threads.map(produce, range(4)) for each in made]
        places = [outcome(future)[2] for future in futures]
    assert sorted(places) == list(range(1, 801))
    for thread in range(4):
        found = [value for key, value in stored(broker, T0) if key == b"%d" % thread]
        assert found == [b"%d" % number for number in range(200)]
    producer.close()


PLACE = RecordMetadata("t", 0, 7)


def test_a_future_of_a_record_is_one_of_the_standard_library() -> None:
    """The library's functions wait for it, whether or not it has a condition when it is set."""
    futures = [RecordFuture() for _ in range(4)]
    called: list[Future[Any]] = []
    futures[1].add_done_callback(called.append)
    assert [(each.done(), each.running(), each.cancel(), each.cancelled()) for each in futures] == [
        (False, True, False, False)
    ] * 4
    with pytest.raises(TimeoutError):
        futures[2].result(0)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(wait, futures), pool.submit(lambda: list(as_completed(futures)))]
        waiting.append(pool.submit(futures[2].exception))
        for each in futures[:3]:
            each.set_result(PLACE)
        futures[3].set_exception(ClosedError("closed"))
        assert waiting[0].result(5).done == set(futures)
        assert set(waiting[1].result(5)) == set(futures)
        assert waiting[2].result(5) is None
    futures[0].add_done_callback(called.append)
    assert called == [futures[1], futures[0]]
    assert [each.result(0) for each in futures[:3]] == [PLACE] * 3
    with pytest.raises(ClosedError):
        futures[3].result()
    for each in futures:
        assert each.done()
        with pytest.raises(InvalidStateError):
            each.set_result(PLACE)
        with pytest.raises(InvalidStateError):
            each.set_exception(ClosedError("closed"))
    with pytest.raises(AttributeError):
        _ = futures[0].no_such_attribute


@pytest.mark.parametrize("watch", [as_completed, lambda futures, limit_s: wait(futures, limit_s).done])
def test_a_result_that_is_set_while_futures_are_watched_is_seen_once(watch: Callable[..., Any]) -> None:
    """The library's functions hold all conditions, and expect that no state changes meanwhile."""
    for _ in range(3):
        futures = [RecordFuture() for _ in range(2_000)]
        with ThreadPoolExecutor(1) as pool:
            setting = pool.submit(lambda futures=futures: [each.set_result(PLACE) for each in futures])
            assert set(watch(futures, 10)) == set(futures)
            setting.result()


def test_a_future_that_is_about_to_be_watched_is_not_set_without_its_condition() -> None:
    class Slow(RecordFuture):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_is_watched":
                setting.append(pool.submit(self.set_result, PLACE))
                with pytest.raises(TimeoutError):
                    setting[0].result(0.1)
                assert not self.done()

    setting: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool:
        slow = Slow()
        with slow._condition, pytest.raises(TimeoutError):
            setting[0].result(0.1)
        assert slow.result(5) == PLACE


def test_a_signal_handler_that_interrupts_produce_may_wait_for_the_loop(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that flushes or closes the producer: the loop never waits for a thread that produces."""
    with producer_of(broker) as producer:
        schedule = producer._thread.call_soon

        async def flush() -> None:
            await producer._client.flush()

        def interrupted(function: Callable[[], object]) -> None:
            schedule(function)
            producer._thread.call(flush, 5)

        monkeypatch.setattr(producer._thread, "call_soon", interrupted)
        assert producer.produce("t", b"interrupted").result(5).offset == 1
        assert len(producer._handed) == 0


def test_a_signal_handler_that_closes_within_produce_leaves_no_record_without_an_outcome(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = producer_of(broker)
    schedule = producer._thread.call_soon

    def interrupted(function: Callable[[], object]) -> None:
        producer.close()
        schedule(function)

    monkeypatch.setattr(producer._thread, "call_soon", interrupted)
    with pytest.raises(ClosedError):
        producer.produce("t", b"interrupted")
    assert len(producer._handed) == 0


def test_a_signal_handler_that_interrupts_a_callback_s_addition_may_wait_for_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No Python code runs, and so no handler, while the lock is held for which the loop waits."""

    def is_free() -> bool:
        acquired = blocking_producer._watching.acquire(timeout=5)
        if acquired:
            blocking_producer._watching.release()
        return acquired

    def condition() -> threading.Condition:
        with ThreadPoolExecutor(1) as others:
            assert others.submit(is_free).result()
        return threading.Condition()

    outcome, places = RecordFuture(), []
    monkeypatch.setattr(blocking_producer, "threading", SimpleNamespace(Condition=condition))
    outcome.add_done_callback(lambda done: places.append(done.result()))
    outcome.add_done_callback(lambda done: places.append(done.result()))
    outcome.set_result(RecordMetadata("t", 0, 1))
    assert places == [RecordMetadata("t", 0, 1)] * 2
