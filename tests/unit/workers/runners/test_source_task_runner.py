"""A source task: offsets are stored after delivery, and nothing is delivered without the claim."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from kiel_groups.errors import ClaimLostError, ConfigError, NoBrokersError, SessionLostError, TaskStoppedError
from kiel_groups.workers.plugins.interfaces import SourceConnector, SourceRecord, SourceTask, SourceTaskContext
from kiel_groups.workers.runners.source_task_runner import SourceTaskRunner
from kiel_groups.workers.stores.source_offset_store import SourceOffsets
from kiel_groups.workers.values import TaskId
from tests.helpers.counting_connectors import Call, CountingSourceConnector, Counts, FakeClients, use
from tests.helpers.runner_contexts import FakeSession, FakeStores, runner_context
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

PARTITION = str({"task": "c-0"})


class Bench:
    """A runner of the counting task, and what surrounds it."""

    def __init__(self, connector_class: Any = CountingSourceConnector, stores: Any = None, **config: str) -> None:
        self.counts = use(Counts())
        self.session, self.stores, self.clients = FakeSession(), stores or FakeStores(), FakeClients()
        self.clients.delay_s = 0.001
        self.started: list[bool] = []
        self.problems: list[str] = []
        context = runner_context(
            connector_class,
            config,
            session=self.session,
            stores=self.stores,
            clients=self.clients,
            started=lambda: self.started.append(True),
            problem=self.problems.append,
        )
        self.runner = SourceTaskRunner(context)
        self.fence = context.fence

    @property
    def numbers(self) -> list[int]:
        return [int(value) for _, value in self.clients.topics["t"]]


async def test_records_are_delivered_in_order_and_offsets_stored_after_that() -> None:
    """The last offsets are left to the release of the claim; the producer is closed."""
    bench = Bench(limit="1000")
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: PARTITION in bench.stores.stored, "the runner to get there")
    assert bench.stores.stored[PARTITION]["next"] <= bench.numbers[-1] + 1
    bench.runner.request_stop()
    await running
    assert bench.started == [True]
    assert bench.numbers == list(range(1, len(bench.numbers) + 1))
    assert bench.runner.delivered == (({"task": "c-0"}, {"next": len(bench.numbers) + 1}),)
    assert [call.method for call in bench.counts.calls][-2:] == ["flush", "stop"]
    assert bench.counts.calls[0] == Call("start", "c-0", 7)
    assert [producer.is_closed for producer in bench.clients.producers] == [True]


async def test_a_task_starts_at_its_stored_offset() -> None:
    """The context reads the store of source offsets."""
    bench = Bench(limit="30")
    bench.stores.stored[PARTITION] = {"next": 21}
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: len(bench.numbers) == 10, "the runner to get there")
    bench.runner.request_stop()
    await running
    assert bench.numbers == list(range(21, 31))


async def test_a_record_that_is_not_delivered_moves_no_offset() -> None:
    """The error of the producer is the task's; what was delivered before is stored."""
    bench = Bench(limit="1000")
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: len(bench.numbers) >= 20, "the runner to get there")
    bench.clients.failure = NoBrokersError()
    with pytest.raises(NoBrokersError):
        await running
    assert bench.stores.stored[PARTITION]["next"] == len(bench.numbers) + 1
    assert bench.runner.delivered == ()
    assert bench.counts.methods("c-0") == ["start", "stop"]


async def test_without_a_trusted_session_nothing_is_delivered() -> None:
    """
    The task waits while the connection is broken, continues after it, and ends with the session. It can ask whether
    it is the owner.
    """
    bench = Bench(limit="100000")
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: len(bench.numbers) >= 10, "the runner to get there")
    context = bench.counts.contexts["c-0"]
    assert context.is_owner
    bench.session.trusted = False
    assert not context.is_owner
    await asyncio.sleep(0.1)
    before = len(bench.numbers)
    await asyncio.sleep(0.1)
    assert len(bench.numbers) == before
    bench.session.trusted = True
    await eventually(lambda: len(bench.numbers) > before, "the runner to get there")
    bench.session.end()
    with pytest.raises(SessionLostError):
        await running
    assert bench.counts.methods("c-0") == ["start", "stop"]


async def test_a_shut_fence_ends_the_task() -> None:
    """After the claim is lost, neither a record nor an offset is written."""
    bench = Bench(limit="100000")
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: len(bench.numbers) >= 10, "the runner to get there")
    bench.fence.shut("the owner znode was deleted")
    stored, delivered = dict(bench.stores.stored), len(bench.numbers)
    with pytest.raises(ClaimLostError, match="the owner znode was deleted"):
        await running
    assert bench.stores.stored == stored
    assert len(bench.numbers) <= delivered + 10


async def test_a_cancelled_task_stores_nothing_and_is_stopped() -> None:
    """The runtime cancels a task that must end at once."""
    bench = Bench(limit="100000")
    bench.clients.delay_s = 0.05
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: bench.clients.producers, "the runner to get there")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.stores.stored == {}
    assert bench.runner.delivered == ()
    assert bench.counts.methods("c-0") == ["start", "stop"]


async def test_a_task_that_gives_up_because_it_has_to_stop_has_not_failed() -> None:
    """TaskStoppedError ends the task silently if a stop was requested, and is an error otherwise."""
    for is_requested in (True, False):
        bench = Bench(limit="1000")

        def give_up() -> None:
            raise TaskStoppedError("giving up")

        bench.counts.hooks["poll"] = give_up
        if is_requested:
            bench.counts.hooks["start"] = bench.runner.request_stop
            await bench.runner.run()
        else:
            with pytest.raises(TaskStoppedError):
                await bench.runner.run()


@pytest.mark.parametrize(
    ("polled", "error"),
    [
        (7, "poll returned int"),
        ("records", "poll returned str"),
        ([b"x"], "poll returned a list with bytes"),
        ([SourceRecord({"a": {1}}, {}, "t", b"")], "source partition"),  # type: ignore[dict-item]
        ([SourceRecord({}, [1], "t", b"")], "source offset"),  # type: ignore[arg-type]
        ([SourceRecord({"a": 1}, {"pad": "x" * 1_000_000}, "t", b"")], "at most 983040 fit into a znode"),
    ],
)
async def test_what_is_no_record_is_refused_before_anything_is_delivered(polled: Any, error: str) -> None:
    """The error says what poll has returned."""

    class Garbage(SourceTask):
        async def poll(self) -> Any:
            return polled

    class Connector(CountingSourceConnector):
        task_class = Garbage

    bench = Bench(Connector)
    with pytest.raises(ConfigError, match=error):
        await bench.runner.run()
    assert bench.clients.producers == []


async def test_plain_methods_use_their_context_from_their_thread() -> None:
    """A task without coroutine functions reads offsets and pauses through ``context.run``; None is no records."""

    class Plain(SourceTask):
        def start(self, context: SourceTaskContext, settings: Any) -> None:
            self.context = context
            self.stored = context.run(context.offset({"task": "c-0"}))
            self.is_sent = False

        def poll(self) -> Sequence[SourceRecord] | None:  # type: ignore[override]
            if self.is_sent:
                self.context.run(self.context.pause(60))
                return None
            self.is_sent = True
            return [SourceRecord({"task": "c-0"}, {"next": 2}, "t", b"%d" % self.stored["next"])]  # type: ignore[index]

    class Connector(SourceConnector):
        task_class = Plain

        def task_configs(self, most: int) -> Any:
            return []

    bench = Bench(Connector)
    bench.stores.stored[PARTITION] = {"next": 1}
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: bench.stores.stored[PARTITION] == {"next": 2}, "the offset to be stored")
    bench.runner.request_stop()
    async with asyncio.timeout(5):
        await running
    assert bench.numbers == [1]


class Timed(FakeStores):
    """Notes when each write of offsets begins and ends; it takes a while."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__()
        self.takes_s = takes_s
        self.times: list[tuple[float, float]] = []

    async def write_offsets(self, task: TaskId, offsets: SourceOffsets) -> None:
        begin = time.monotonic()
        await asyncio.sleep(self.takes_s)
        await super().write_offsets(task, offsets)
        self.times.append((begin, time.monotonic()))

    @property
    def pauses_s(self) -> list[float]:
        """The times between the writes."""
        return [begin - end for (_, end), (begin, _) in pairwise(self.times)]


@pytest.mark.parametrize(
    ("interval_ms", "takes_s", "least_s"),
    [("200", 0.0, 0.2), ("1", 0.03, 0.27)],
    ids=["the interval", "nine times the time of a write"],
)
async def test_offsets_are_stored_at_intervals(interval_ms: str, takes_s: float, least_s: float) -> None:
    """The setting gives the time between two writes. A slow ZooKeeper lengthens it."""
    bench = Bench(limit="100000", stores=Timed(takes_s), **{"offset.flush.interval.ms": interval_ms})
    running = asyncio.ensure_future(bench.runner.run())
    times = bench.stores.times
    await eventually(lambda: len(times) == 4, "four writes")
    bench.runner.request_stop()
    await running
    assert all(least_s * 0.99 <= pause_s < least_s + 15.0 for pause_s in bench.stores.pauses_s[:3])


async def test_offsets_are_stored_while_a_poll_waits_for_its_source() -> None:
    """A source may have nothing new for hours."""
    bench = Bench(limit="1000", stores=Timed(), **{"offset.flush.interval.ms": "100"})
    waits = asyncio.Event()
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: bench.stores.times, "the first write")
    bench.counts.hooks["poll"] = waits.wait
    await eventually(lambda: bench.stores.stored[PARTITION]["next"] == bench.numbers[-1] + 1, "the last offset")
    assert not running.done()
    bench.runner.request_stop()
    waits.set()
    await running


@pytest.mark.parametrize("cancels", [0, 1, 3])
async def test_a_failed_write_beside_a_poll_waits_for_the_poll(cancels: int) -> None:
    """Its thread may still read the source, so the task does not end before it, however often it is cancelled."""
    release, polls = threading.Event(), list[int]()

    class Plain(SourceTask):
        def poll(self) -> Sequence[SourceRecord]:
            polls.append(1)
            if len(polls) > 2:
                release.wait(10)
            return [SourceRecord({"task": "c-0"}, {"next": len(polls)}, "t", b"1")]

    class Connector(CountingSourceConnector):
        task_class = Plain

    bench = Bench(Connector, stores=Timed(), **{"offset.flush.interval.ms": "100"})
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: len(polls) == 3, "the poll that waits")
    if cancels == 0:
        bench.stores.is_claimed = False
    for _ in range(cancels):
        running.cancel()
        await asyncio.sleep(0.01)
    done, _ = await asyncio.wait({running}, timeout=0.3)
    assert not done
    release.set()
    with pytest.raises(asyncio.CancelledError if cancels else ClaimLostError):
        await running


@pytest.mark.parametrize(
    ("missing", "cause"),
    [
        ({"t"}, ": no broker knows the topic t"),
        (NoBrokersError("no broker answered"), ": no broker answered"),
        (set(), ""),
    ],
)
async def test_records_that_are_not_stored_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: Any, cause: str
) -> None:
    """The producer sends them again without an end, so the status of the task says that they wait, and for what."""
    monkeypatch.setattr("kiel_groups.workers.runners.source_task_runner._LATE_S", 0.01)
    bench = Bench(limit="10")
    bench.clients.missing, bench.clients.delay_s = missing, 0.1
    running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: bench.problems[-1:] == [""], "the delivery")
    problem = f"the brokers have not stored 10 records of t within 0.01 s{cause}"
    assert bench.problems == [problem, ""]
    assert f"task c-0: {problem}; trying again" in caplog.text
    bench.runner.request_stop()
    await running
