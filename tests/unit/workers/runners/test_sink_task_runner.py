"""A sink task: put, flush and commit, in that order, with partitions that come and go."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Collection, Mapping
from hashlib import sha256
from itertools import product
from typing import Any

import pytest

from kiel_groups.config import check_name
from kiel_groups.errors import (
    ClaimLostError,
    ClosedError,
    CommitFailedError,
    DamagedRecordError,
    NoBrokersError,
    SessionLostError,
)
from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.plugins.standard_keys import STANDARD_KEYS
from kiel_groups.workers.runners.runner_interface import sink_group
from kiel_groups.workers.runners.sink_task_runner import SinkTaskRunner
from tests.helpers.counting_connectors import CountingSinkConnector, Counts, FakeClients, use
from tests.helpers.runner_contexts import FakeSession, runner_context
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeConsumer:
    """A consumer whose records and rebalances the test makes."""

    def __init__(self, group: str, listener: Any, on_bad_record: str) -> None:
        self.group, self.listener, self.on_bad_record = group, listener, on_bad_record
        self.topics: Collection[str] = ()
        #: What the next calls return or raise; after that they wait.
        self.answers: deque[dict[TopicPartition, list[Record]] | Exception] = deque()
        self.arrived = asyncio.Event()
        self.joins: deque[Exception] = deque()
        self.commits: list[dict[TopicPartition, int]] = []
        self.refusal: Exception | None = None
        self.owned: set[TopicPartition] = set()
        self.is_closed = False
        self.connecting: asyncio.Future[None] | None = None

    async def connect(self) -> None:
        if self.connecting is not None:
            try:
                await self.connecting
            except asyncio.CancelledError:
                raise ClosedError("the consumer was closed") from None
        if self.joins:
            raise self.joins.popleft()

    async def subscribe(self, topics: Collection[str]) -> None:
        self.topics = topics

    def add(self, *answers: dict[TopicPartition, list[Record]] | Exception) -> None:
        self.answers.extend(answers)
        self.arrived.set()

    async def getmany(self, *partitions: Any, timeout_ms: int = 0, max_records: int | None = None) -> Any:
        while not self.answers:
            self.arrived.clear()
            await self.arrived.wait()
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.commits.append(dict(offsets))

    async def assign(self, *partitions: TopicPartition) -> None:
        self.owned |= set(partitions)
        await self.listener.on_partitions_assigned(partitions)

    async def revoke(self, *partitions: TopicPartition) -> None:
        await self.listener.on_partitions_revoked(partitions)
        self.owned -= set(partitions)

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if self.owned:
                await self.revoke(*self.owned)


def records(partition: TopicPartition, *offsets: int) -> dict[TopicPartition, list[Record]]:
    return {partition: [Record(*partition, offset, None, b"v") for offset in offsets]}


class Bench:
    """A runner of the counting sink and its consumer, which has joined and has the first partition."""

    def __init__(self, *joins: Exception, **config: str) -> None:
        self.counts, self.session, self.clients = use(Counts()), FakeSession(), FakeClients()
        self.consumers: list[FakeConsumer] = []
        self._joins = joins
        self.clients.consumer_of = self._consumer
        self.problems: list[str] = []
        self.context = runner_context(
            CountingSinkConnector,
            {"topics": "t", **config},
            session=self.session,
            clients=self.clients,
            problem=self.problems.append,
        )

    def _consumer(self, *arguments: Any) -> FakeConsumer:
        self.consumers.append(FakeConsumer(*arguments))
        self.consumers[-1].joins.extend(self._joins)
        return self.consumers[-1]

    def silent(self, *arguments: Any) -> FakeConsumer:
        """Return a consumer for which no broker answers."""
        consumer = self._consumer(*arguments)
        consumer.connecting = asyncio.get_running_loop().create_future()
        return consumer

    async def start(self) -> FakeConsumer:
        self.runner = SinkTaskRunner(self.context)
        self.running = asyncio.ensure_future(self.runner.run())
        await eventually(lambda: self.consumers and self.consumers[0].topics, "the subscription")
        (consumer,) = self.consumers
        await consumer.assign(P0)
        return consumer

    async def put(self, count: int) -> None:
        await eventually(lambda: len(self.counts.put) == count, f"{count} records")

    async def stop(self) -> None:
        self.runner.request_stop()
        async with asyncio.timeout(5):
            await self.running

    @property
    def methods(self) -> list[str]:
        return [call.method for call in self.counts.calls]


async def test_a_task_puts_flushes_and_commits_in_order() -> None:
    """At the end, the task flushes, its offsets are committed, its partitions closed, and the consumer leaves."""
    bench = Bench()
    consumer = await bench.start()
    consumer.add(records(P0, 0, 1, 2), records(P0, 3))
    await bench.put(4)
    assert consumer.commits == []
    await bench.stop()
    assert bench.methods == ["start", "open", "put", "put", "flush", "close", "stop"]
    assert bench.counts.flushed == [{P0: 4}]
    assert consumer.commits == [{P0: 4}]
    assert consumer.is_closed
    assert consumer.group == "connect-c"
    assert consumer.on_bad_record == "raise"


async def test_revoked_partitions_are_flushed_first() -> None:
    """What was taken is flushed and committed before the partitions are released, and then they are closed."""
    bench = Bench()
    consumer = await bench.start()
    await consumer.assign(P1)
    consumer.add(records(P0, 0), records(P1, 7))
    await bench.put(2)
    await consumer.revoke(P1)
    assert bench.methods[-2:] == ["flush", "close"]
    assert consumer.commits == [{P0: 1, P1: 8}]
    await bench.stop()
    assert consumer.commits == [{P0: 1, P1: 8}]


async def test_lost_partitions_are_closed_without_a_flush() -> None:
    """Other tasks may have them already, so nothing of them is committed."""
    bench = Bench()
    consumer = await bench.start()
    consumer.add(records(P0, 0))
    await bench.put(1)
    await consumer.listener.on_partitions_lost([P0])
    consumer.owned.clear()
    assert bench.methods[-1] == "close"
    await bench.stop()
    assert consumer.commits == []


@pytest.mark.parametrize("during", ["put", "flush"])
async def test_partitions_that_were_lost_during_a_call_are_not_committed(during: str) -> None:
    """Their next claim starts where the last one has committed; other partitions are committed as ever."""
    bench = Bench()
    consumer = await bench.start()
    await consumer.assign(P1)
    busy, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        busy.set()
        await go_on.wait()

    bench.counts.hooks[during] = wait
    consumer.add(records(P0, 0, 1) | records(P1, 7))
    if during == "flush":
        await bench.put(3)
        bench.runner.request_stop()
    await busy.wait()
    losing = asyncio.ensure_future(consumer.listener.on_partitions_lost([P0]))
    await asyncio.sleep(0)
    assigning = asyncio.ensure_future(consumer.listener.on_partitions_assigned([P0]))
    await asyncio.sleep(0)
    del bench.counts.hooks[during]
    go_on.set()
    await asyncio.gather(losing, assigning)
    await bench.stop()
    assert consumer.commits == [{P1: 8}]


async def test_records_of_partitions_that_were_lost_are_not_put() -> None:
    """They were fetched before the loss, and wait for a session that is trusted."""
    bench = Bench()
    consumer = await bench.start()
    await consumer.assign(P1)
    bench.session.trusted = False
    consumer.add(records(P0, 0, 1) | records(P1, 7))
    await eventually(lambda: bench.session.was_awaited, "a wait for the session")
    await consumer.listener.on_partitions_lost([P0])
    bench.session.trusted = True
    await bench.put(1)
    assert bench.counts.put == records(P1, 7)[P1]
    await bench.stop()
    assert consumer.commits == [{P1: 8}]


@pytest.mark.parametrize("method", ["put", "flush", "open", "start"])
async def test_a_task_that_raises_commits_nothing(method: str) -> None:
    """The error is the task's, also if a hook of the consumer has called it; ``stop`` follows."""
    bench = Bench()

    def fail() -> None:
        raise ValueError("no")

    bench.counts.hooks[method] = fail
    if method == "start":
        with pytest.raises(ValueError, match="no"):
            await SinkTaskRunner(bench.context).run()
        assert bench.consumers == []
    else:
        consumer = await bench.start()
        if method != "open":
            consumer.add(records(P0, 0))
        if method == "flush":
            await bench.put(1)
            await consumer.revoke(P0)
        with pytest.raises(ValueError, match="no"):
            await bench.running
        assert consumer.commits == []
        assert consumer.is_closed
    assert bench.methods[-1] == "stop"


async def test_nothing_is_put_without_a_trusted_session() -> None:
    """Records wait while the worker's connection is broken; the end of the session ends the task."""
    bench = Bench()
    consumer = await bench.start()
    bench.session.trusted = False
    consumer.add(records(P0, 0))
    await eventually(lambda: not consumer.answers, "the records to be taken")
    await asyncio.sleep(0.05)
    assert bench.counts.put == []
    bench.session.trusted = True
    await bench.put(1)
    bench.session.end()
    consumer.add(records(P0, 1))
    with pytest.raises(SessionLostError):
        await bench.running
    assert len(bench.counts.put) == 1
    assert consumer.commits == []


async def test_a_shut_fence_prevents_flush_and_commit() -> None:
    """The claim was lost: a stop in order is too late."""
    bench = Bench()
    consumer = await bench.start()
    consumer.add(records(P0, 0))
    await bench.put(1)
    bench.context.fence.shut("the owner znode was deleted")
    bench.runner.request_stop()
    with pytest.raises(ClaimLostError):
        await bench.running
    assert "flush" not in bench.methods
    assert consumer.commits == []


async def test_a_cancelled_task_commits_nothing() -> None:
    """The runtime cancels a task that must end at once; its consumer leaves the group."""
    bench = Bench()
    consumer = await bench.start()
    consumer.add(records(P0, 0))
    await bench.put(1)
    bench.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench.running
    assert consumer.commits == []
    assert consumer.is_closed
    assert bench.methods[-1] == "stop"


async def test_a_refused_commit_does_not_fail_the_task() -> None:
    """The records of a partition that has moved meanwhile are delivered to its new owner."""
    bench = Bench()
    consumer = await bench.start()
    consumer.add(records(P0, 0))
    await bench.put(1)
    consumer.refusal = CommitFailedError("not owned")
    await bench.stop()
    assert bench.methods[-2:] == ["close", "stop"]


async def test_errors_of_the_cluster_are_retried_and_damaged_records_are_not() -> None:
    """The task joins and reads again while brokers do not answer. A damaged record fails it."""
    bench = Bench(NoBrokersError())
    consumer = await bench.start()
    consumer.add(NoBrokersError(), records(P0, 0))
    await bench.put(1)
    consumer.add(DamagedRecordError("bad", topic_partition=P0, offset=1, next_offset=2))
    with pytest.raises(DamagedRecordError):
        await bench.running
    assert consumer.commits == []


async def test_a_task_that_cannot_join_stops_at_once() -> None:
    """The consumer ends the call with an error. It is not the task's, and it is not logged as an unretrieved one."""
    bench, reported = Bench(), list[Any]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    bench.clients.consumer_of = bench.silent
    bench.runner = SinkTaskRunner(bench.context)
    bench.running = asyncio.ensure_future(bench.runner.run())
    await eventually(lambda: bench.consumers, "the consumer")
    await bench.stop()
    gc.collect()
    assert reported == []
    assert bench.methods == ["start", "stop"]


async def test_the_error_of_a_fetch_that_was_given_up_is_not_logged() -> None:
    """A hook has failed in the same moment, so nothing looks at the fetch any more."""
    bench, reported = Bench(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    consumer = await bench.start()

    def fail() -> None:
        raise ValueError("no")

    bench.counts.hooks["open"] = fail
    await consumer.assign(P1)
    consumer.add(NoBrokersError())
    with pytest.raises(ValueError, match="no"):
        await bench.running
    gc.collect()
    assert reported == []


async def test_an_error_at_the_end_is_raised() -> None:
    """The partitions are closed while the consumer closes; the worker logs the error, without its secrets."""
    bench = Bench()
    await bench.start()

    def fail() -> None:
        raise ValueError("no")

    bench.counts.hooks["close"] = fail
    with pytest.raises(ValueError, match="no"):
        await bench.stop()
    assert bench.methods == ["start", "open", "close", "stop"]


async def test_a_hook_that_waits_calls_nothing_after_stop() -> None:
    """The task has failed meanwhile: neither flush nor close follow its stop."""
    bench = Bench()
    consumer = await bench.start()
    consumer.add(records(P0, 0))
    await bench.put(1)
    bench.session.trusted = False
    revoking = asyncio.ensure_future(consumer.revoke(P0))
    await eventually(lambda: bench.session.was_awaited, "a wait for the session")
    consumer.add(DamagedRecordError("bad", topic_partition=P0, offset=1, next_offset=2))
    await eventually(lambda: bench.methods[-1] == "stop", "the stop")
    bench.session.trusted = True
    await revoking
    with pytest.raises(DamagedRecordError):
        await bench.running
    assert bench.methods == ["start", "open", "put", "stop"]
    assert consumer.commits == []


async def test_damaged_records_are_skipped_if_the_user_wants_that() -> None:
    """The consumer logs and skips them."""
    bench = Bench(**{"errors.tolerance": "all"})
    assert (await bench.start()).on_bad_record == "skip"
    await bench.stop()


async def test_a_task_writes_dead_letters_by_its_context() -> None:
    """They go through a producer of its own, and only while the claim is trusted."""
    bench = Bench()
    await bench.start()
    context: Any = bench.counts.contexts["c-0"]
    await context.produce("dead", b"k", b"v")
    assert bench.clients.topics["dead"] == [(b"k", b"v")]
    bench.context.fence.shut("over")
    with pytest.raises(ClaimLostError):
        await context.produce("dead", b"k", b"v")
    (producer,) = bench.clients.producers
    await bench.stop()
    assert producer.is_closed


def test_the_group_of_a_plain_name_is_connect_and_the_name() -> None:
    """Running groups keep their names: those of all connectors whose names are legal names of groups."""
    for name in ("write", "my.sink-1", "a_20b", "-_.", "x" * 200):
        assert sink_group(name) == f"connect-{name}"


def test_the_group_of_another_name_shows_its_legal_characters() -> None:
    """An operator recognises the connector in a list of groups."""
    assert sink_group("my sink") == f"connect_my_sink_{sha256(b'my sink').hexdigest()[:32]}"


def test_no_two_sinks_share_a_group() -> None:
    """Each name that a connector may have has a group of its own, also beside those that resemble it."""
    parts = ["a", "_", "-", ".", "~", " ", "%", "_20", "ü", "%20", "_5F", "_a_20b"]
    names = {"".join(chosen) for count in (1, 2, 3) for chosen in product(parts, repeat=count)}
    assert len(set(map(sink_group, names))) == len(names)


@pytest.mark.parametrize("name", ["ü" * 60, "ü" * 200, "\U0001f600" * 200, "x" * 200 + " " * 99])
def test_each_name_that_is_accepted_has_a_group(name: str) -> None:
    """What the creation of a connector accepts does not fail its tasks later."""
    assert STANDARD_KEYS["name"].parse(name)
    assert check_name(sink_group(name), "group")


async def test_missing_topics_are_reported_until_they_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer waits for such a topic without an end, so the status of the task names it; so it does brokers."""
    monkeypatch.setattr("kiel_groups.workers.runners.sink_task_runner._WATCH_S", 0.001)
    bench = Bench()
    bench.clients.missing = {"t"}
    await bench.start()
    await eventually(lambda: bench.problems[-1:] == ["no broker knows the topic t"], "the missing topic")
    bench.clients.missing = NoBrokersError("no broker answered")
    await eventually(lambda: bench.problems[-1:] == ["no broker answered"], "the brokers")
    bench.clients.missing = set()
    await eventually(lambda: bench.problems[-1:] == [""], "the end of the problem")
    await bench.stop()
    assert bench.problems == ["no broker knows the topic t", "no broker answered", ""]
    bench.clients.missing = {"t"}
    await asyncio.sleep(0.01)
    assert len(bench.problems) == 3, "a task that has ended reports nothing"


async def test_errors_of_the_consumer_are_reported_until_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that cannot join, or fetch, has a problem, beside that of its system."""
    monkeypatch.setattr("kiel_groups.workers.runners.sink_task_runner._FIRST_PAUSE_S", 0.001)
    bench = Bench(NoBrokersError("no coordinator"))
    consumer = await bench.start()
    assert bench.problems == ["no coordinator", ""]
    context: Any = bench.counts.contexts["c-0"]
    context.report_problem("slow")
    consumer.add(NoBrokersError("no leader"), records(P0, 0))
    await bench.put(1)
    await eventually(lambda: len(bench.problems) == 5, "the end of the problem")
    await bench.stop()
    assert bench.problems[2:] == ["slow", "no leader; slow", "slow"]


async def test_equal_errors_are_logged_once_and_their_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers may be away for hours, in which each try fails for the same reason."""
    monkeypatch.setattr("kiel_groups.workers.runners.sink_task_runner._FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("kiel_groups.workers.runners.sink_task_runner._COMMIT_INTERVAL_S", 0)
    bench = Bench(*[NoBrokersError("no coordinator")] * 3)
    consumer = await bench.start()
    consumer.refusal = NoBrokersError("no coordinator")
    consumer.add(*[NoBrokersError("no leader")] * 3, records(P0, 0), records(P0, 1))
    await bench.put(2)
    consumer.refusal = None
    consumer.add(records(P0, 2))
    await bench.put(3)
    await eventually(lambda: consumer.commits, "a commit")
    await bench.stop()
    assert caplog.messages == [
        "task c-0: no coordinator; trying again",
        "task c-0: reads again",
        "task c-0: no leader; trying again",
        "task c-0: reads again",
        "task c-0: offsets are not committed yet: no coordinator",
        "task c-0: offsets are committed again",
    ]
