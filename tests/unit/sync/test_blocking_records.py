"""A blocking loop takes a batch's records on the program's thread. The event loop's thread may take them back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

import pytest

from kiel_groups import sync
from kiel_groups.clients.delivery import record_loop as record_delivery
from kiel_groups.clients.delivery.record_loop import PythonBlockingSteps
from kiel_groups.errors import ClosedError
from kiel_groups.model import Record
from kiel_groups.sync import blocking_consumers
from kiel_groups.sync.blocking_client import in_background
from kiel_groups.sync.blocking_consumers import BlockingRecords, asked_behind
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from tests.helpers.delivery_bench import P0, P1, DeliveryBench, loop_over
from tests.helpers.forks import assert_refused_in_fork
from tests.helpers.step_variants import STEPS, on_python_steps
from tests.helpers.waiting import eventually_blocking

pytestmark = pytest.mark.unit


#: The step in Python, and where its first instructions are over, which only set variables.
_STEP = PythonBlockingSteps.__next__.__code__
_BEGINS = 30
#: The functions that a step in C calls. An interrupt within them is handled from their first instruction on.
_CALLED = (BlockingRecords.ask.__code__, DeliveryGate.is_open.__code__)


class BenchClient:
    """An asynchronous client that delivers the records of a bench."""

    def __init__(self) -> None:
        self.bench = DeliveryBench()
        self.asked = 0
        self.held = threading.Event()
        self.held.set()

    def __aiter__(self) -> Any:
        loop = loop_over(self.bench)
        begun, ask = loop.delivery.begin_quantum, loop.ask

        async def counted() -> Record:
            self.asked += 1
            return await ask()

        class Loop:
            delivery = loop.delivery
            end_loop = loop.end_loop
            __slots__ = ()

            def ask(self) -> Any:
                begun()
                return counted()

        return Loop()

    async def __aexit__(self, *_: object) -> None:
        """Do nothing at the exit of the interpreter."""

    async def commit(self) -> None:
        """Count the record in flight, as a commit does."""
        self.bench.records.in_flight.count()


class BenchConsumer(sync.SingleConsumer):
    """A blocking consumer of a bench, with a commit that does not wait."""

    commit_later = asked_behind(in_background(BenchClient.commit))  # type: ignore[arg-type]


@pytest.fixture(params=STEPS)
def consumer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[BenchConsumer]:
    """A blocking consumer, with each form of its loop's steps."""
    if not request.param:
        monkeypatch.setattr(
            blocking_consumers, "BlockingRecords", on_python_steps(BlockingRecords, PythonBlockingSteps)
        )
    blocking = BenchConsumer("127.0.0.1:1")
    blocking._client = cast(Any, BenchClient())
    yield blocking
    blocking._thread.stop()


def bench_of(consumer: BenchConsumer) -> DeliveryBench:
    return cast(BenchClient, consumer._client).bench


def asked(consumer: BenchConsumer) -> int:
    """Return how often the program's thread has waited for the event loop's thread."""
    return cast(BenchClient, consumer._client).asked


def on_loop(consumer: BenchConsumer, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function on the event loop's thread, and return its result."""
    return consumer._read_on_loop(function, *args)


def test_a_batch_crosses_the_threads_once(consumer: BenchConsumer) -> None:
    """The program waits once for each batch, and the event loop's thread sees each record and what is finished."""
    bench = bench_of(consumer)
    bench.fetcher.add(P0, *range(10, 60))
    bench.fetcher.add(P1, *range(10, 60))
    got = []
    for record in consumer:
        assert [work.token for work in bench.handler.in_progress()] == [record]
        assert bench.records.in_flight.fencing_token_of(record) == 1
        assert bench.state(record.topic_partition).finished == record.offset
        got.append(record.offset)
        if len(got) == 100:
            break
    assert got == [*range(10, 60), *range(10, 60)]
    assert asked(consumer) == 2
    eventually_blocking(lambda: bench.finished == {P0: 60, P1: 60}, "the break has finished the last record")


def test_the_gate_is_asked_on_the_programs_thread(consumer: BenchConsumer) -> None:
    """A gate that shuts within a batch stops the loop before the next record."""
    bench = bench_of(consumer)
    bench.fetcher.add(P0, *range(10, 60))
    records = iter(consumer)
    assert [next(records).offset for _ in range(3)] == [10, 11, 12]
    bench.gate.suspended = True
    opening = threading.Timer(0.1, setattr, (bench.gate, "suspended", False))
    opening.start()
    assert next(records).offset == 13
    assert not bench.gate.suspended
    assert asked(consumer) == 2
    opening.join()


def test_an_exception_of_the_gate_is_settled(consumer: BenchConsumer) -> None:
    """An exception within a step, such as a Ctrl-C, finishes the record before it, and the next step gets the next."""
    bench = bench_of(consumer)
    bench.fetcher.add(P0, *range(10, 60))
    records = cast(BlockingRecords, iter(consumer))
    assert [next(records).offset for _ in range(3)] == [10, 11, 12]
    records._is_open = lambda _: 1 / 0  # type: ignore[assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        next(records)
    on_loop(consumer, bench.state)
    assert bench.finished == {P0: 13}
    records._is_open = bench.gate.is_open
    assert next(records).offset == 13
    assert asked(consumer) == 2


def test_a_record_that_arrives_together_with_an_interrupt_is_delivered_again(
    consumer: BenchConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C right after the event loop's thread has delivered a record puts it back: the program never got it."""
    bench = bench_of(consumer)
    bench.fetcher.add(P0, *range(10, 12))
    bench.fetcher.add(P1, 10)
    records = iter(consumer)
    assert [next(records).offset for _ in range(2)] == [10, 11]
    wait = consumer._wait

    def interrupted(*arguments: Any) -> None:
        wait(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(consumer, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(records)
    monkeypatch.undo()
    on_loop(consumer, bench.state)
    assert bench.finished.get(P1, 10) == 10
    again = next(records)
    assert (again.topic_partition, again.offset) == (P1, 10)
    assert bench.finished == {P0: 12}


def test_a_revocation_takes_back_the_rest(consumer: BenchConsumer) -> None:
    """A drain waits for the record that the program processes, and for no other."""
    bench = bench_of(consumer)
    bench.fetcher.add(P0, *range(10, 60))
    records = iter(consumer)
    assert [next(records).offset for _ in range(3)] == [10, 11, 12]
    assert on_loop(consumer, bench.handler.stop, [P0]) == {P0}
    drained = consumer._thread.begin(lambda: bench.handler.drained([P0]))
    assert on_loop(consumer, bench.state) is bench.state()
    assert not drained.done()
    on_loop(consumer, bench.fetcher.add, P1, 10)
    assert next(records).topic_partition == P1
    drained.result(5)
    assert bench.state().finished == 13


def test_a_seek_takes_back_the_rest(consumer: BenchConsumer) -> None:
    """After a seek, the program gets no record from before it."""
    bench = bench_of(consumer)
    bench.fetcher.add(P0, *range(10, 60))
    records = iter(consumer)
    assert [next(records).offset for _ in range(3)] == [10, 11, 12]

    def seek() -> None:
        bench.subscription.seek(P0, 30)
        bench.owned.resume_at(P0, 30)
        bench.fetcher.add(P0, 30)

    on_loop(consumer, seek)
    assert next(records).offset == 30
    assert bench.state().finished == 30


def test_records_are_taken_back_while_the_program_takes_them(consumer: BenchConsumer) -> None:
    """However a pause meets the program within a batch, each record is delivered once, in order."""
    bench = bench_of(consumer)
    bench.fetcher.add(P0, *range(10, 100_010))
    stop = threading.Event()

    def pause() -> None:
        bench.owned.pause([P0])
        position = bench.state().position
        rest = [batch for batch in bench.fetcher.batches if not isinstance(batch, Exception)]
        assert not rest or rest[0].records[0].offset == position
        bench.owned.resume([P0])

    def disturb() -> None:
        while not stop.is_set():
            on_loop(consumer, pause)

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    got = []
    for record in consumer:
        got.append(record.offset)
        if record.offset == 100_009:
            break
    stop.set()
    disturbing.join()
    assert got == list(range(10, 100_010))


def test_a_break_leaves_the_rest_to_the_next_loop(consumer: BenchConsumer) -> None:
    """After a ``break`` the next loop continues; after an exception it gets the last record again."""
    bench = bench_of(consumer)
    bench.fetcher.add(P0, *range(10, 60))

    def run(count: int, error: type[Exception] | None) -> list[int]:
        got = []
        for record in consumer:
            got.append(record.offset)
            if len(got) == count:
                if error is not None:
                    raise error(got)
                break
        return got

    assert run(2, None) == [10, 11]
    with pytest.raises(ZeroDivisionError) as raised:
        run(2, ZeroDivisionError)
    assert raised.value.args == ([12, 13],)
    assert run(3, None) == [13, 14, 15]


def test_a_commit_does_not_count_a_record_that_comes_after_it(consumer: BenchConsumer) -> None:
    """A commit that the event loop's thread starts late counts the record that was in flight at the call."""
    bench = bench_of(consumer)
    bench.fetcher.add(P0, *range(10, 60))
    records = iter(consumer)
    assert [next(records).offset for _ in range(3)] == [10, 11, 12]
    held = threading.Event()
    consumer._thread.post(lambda: held.wait(10))
    later: Future[None] = consumer.commit_later()
    threading.Timer(0.1, held.set).start()
    assert next(records).offset == 13
    later.result(5)
    assert bench.state().finished == 13, "13 is being processed"


def test_a_fork_of_the_process_delivers_nothing(consumer: BenchConsumer) -> None:
    """The records of a batch that are left belong to the parent: in a fork, the loop raises ClosedError."""
    bench = bench_of(consumer)
    bench.fetcher.add(P0, *range(10, 60))
    records = iter(consumer)
    assert [next(records).offset for _ in range(3)] == [10, 11, 12]
    assert_refused_in_fork(lambda: next(records))
    assert next(records).offset == 13


def test_an_interpreter_without_a_lock_asks_for_each_record(
    consumer: BenchConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the interpreter's lock, a cursor cannot be taken back from another thread."""
    monkeypatch.setattr(blocking_consumers, "_HAS_LOCK", False)
    bench_of(consumer).fetcher.add(P0, *range(10, 60))
    records = iter(consumer)
    assert [next(records).offset for _ in range(5)] == [10, 11, 12, 13, 14]
    assert asked(consumer) == 5


def in_package(frame: FrameType) -> bool:
    return "kiel_groups" in frame.f_code.co_filename


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """Raise KeyboardInterrupt at any moment within the step of a loop, once after each call of the result."""
    armed = False

    def arm() -> None:
        nonlocal armed
        armed = True
        signal.setitimer(signal.ITIMER_REAL, 0.0002)

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal armed
        # Python's own locks, and the callbacks of its weak references, do not survive an interrupt at any moment.
        is_ours = frame is not None and in_package(frame)
        while frame is not None and is_ours:
            # At its first instruction, the interrupt is one of the program.
            by_step_in_c = frame.f_code in _CALLED and frame.f_back is not None and not in_package(frame.f_back)
            if armed and (by_step_in_c or (frame.f_code is _STEP and frame.f_lasti > _BEGINS)):
                armed = False
                raise KeyboardInterrupt
            frame = frame.f_back
        if armed:
            signal.setitimer(signal.ITIMER_REAL, 0.0002)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield arm
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("leaves", [False, True], ids=["continues", "leaves the loop"])
def test_an_interrupt_between_two_records_neither_loses_nor_repeats_one(
    consumer: BenchConsumer, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """
    A Ctrl-C may come at any moment while the program asks for a record. It then gets that record next, and the one
    before it counts as finished.
    """
    bench = bench_of(consumer)
    monkeypatch.setattr(record_delivery, "QUANTUM_S", 0.0005)
    got: list[int] = []
    interrupted, is_first, end, rounds = 0, False, 10, 0

    def add_round() -> None:
        nonlocal end, rounds
        for _ in range(1_000):
            bench.fetcher.add(P0, *range(end, end + 100))
            end += 100
        rounds += 1
        bench.fetcher.add(P1, rounds)

    add_round()
    records = iter(consumer)
    with interrupts() as arm:
        arm()
        while True:
            try:
                record = next(records)
                if record.topic_partition == P1:
                    # How many alarms arrive within a step depends on the machine.
                    if interrupted > 5 or rounds == 50:
                        break
                    on_loop(consumer, add_round)
                    continue
                got.append(record.offset)
                if is_first:
                    assert on_loop(consumer, lambda offset=record.offset: bench.state().finished <= offset)
                is_first = False
                continue
            except KeyboardInterrupt:
                interrupted, is_first = interrupted + 1, True
            # Outside of the clause, since the traceback of the exception refers to the loop.
            if leaves:
                del records
                records = iter(consumer)
            arm()
    assert got == list(range(10, end))
    assert interrupted > 5


def test_a_loop_says_that_an_exit_has_ended_its_event_loop(consumer: BenchConsumer) -> None:
    """After a SystemExit on its event loop, a loop raises a ClosedError with that reason, and so does the next loop."""
    bench_of(consumer).fetcher.add(P0, 10)
    records = iter(consumer)
    assert next(records).offset == 10

    def leave() -> None:
        raise SystemExit("its own")

    with pytest.raises(SystemExit):
        on_loop(consumer, leave)
    for _ in range(2):
        with pytest.raises(ClosedError, match="its event loop was ended by SystemExit"):
            next(records)
        with pytest.raises(ClosedError, match="its event loop was ended by SystemExit"):
            iter(consumer)
