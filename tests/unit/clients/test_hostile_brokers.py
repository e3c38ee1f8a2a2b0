"""Each client beside a broker, which also coordinates its group, that answers with anything but what was asked for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kiel_groups import sync
from kiel_groups.clients import GroupedConsumer, Producer, SingleConsumer
from kiel_groups.constants import BEGINNING
from kiel_groups.errors import BrokerError, KielGroupsError
from kiel_groups.members.brokers import coordinator
from kiel_groups.model import TopicPartition
from kiel_groups.wire.codecs import codec_by_name
from kiel_groups.wire.consumer_protocol import ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.fetch import FetchedPartition, FetchRequest
from kiel_groups.wire.group_requests import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kiel_groups.wire.message_sets.message_layout import wrap
from kiel_groups.wire.offsets import FetchedOffset, OffsetCommitRequestV2, OffsetFetchRequestV1
from kiel_groups.wire.primitives import Reader
from kiel_groups.wire.produce import ProducedPartition, ProduceRequest
from tests.helpers.commands import kiel_groups_here
from tests.helpers.coordinator_answers import FIND_COORDINATOR, named
from tests.helpers.fake_broker import FETCH, LIST_OFFSETS, METADATA, PRODUCE, FakeBroker, Fault, Request, message_set
from tests.helpers.leftovers import Leftovers
from tests.helpers.waiting import eventually
from tests.proxies.faulty_answers import with_error

pytestmark = pytest.mark.unit

TOPIC = TopicPartition("t", 0)
VALUES = [b"%d" % number for number in range(10)]
#: A record that no client may deliver.
FOREIGN = message_set(b"foreign")

JOIN_GROUP, SYNC_GROUP = JoinGroupRequest.API_KEY, SyncGroupRequest.API_KEY
#: What a coordinator answers to the only member of its group, which leads it.
COORDINATES: dict[int, bytes] = {
    JOIN_GROUP: JoinGroupRequest.ANSWER.encode(
        JoinGroupResponse(NO_ERROR, 1, "range", "m", "m", {"m": ConsumerSubscription(("t",)).encode()})
    ),
    12: HeartbeatRequest.ANSWER.encode(NO_ERROR),
    13: LeaveGroupRequest.ANSWER.encode(NO_ERROR),
    SYNC_GROUP: SyncGroupRequest.ANSWER.encode(SyncGroupResponse(NO_ERROR, ConsumerAssignment({"t": (0,)}).encode())),
    8: OffsetCommitRequestV2.ANSWER.encode({TOPIC: NO_ERROR}),
    9: OffsetFetchRequestV1.ANSWER.encode({TOPIC: FetchedOffset(-1, "", NO_ERROR)}),
}
#: Answers about a partition that the client did not request. No client may believe their offsets.
OTHER = TopicPartition("other", 3)
UNASKED: dict[int, bytes] = {
    FETCH: FetchRequest.ANSWER.encode({OTHER: FetchedPartition(NO_ERROR, 10**9, memoryview(FOREIGN))}),
    8: OffsetCommitRequestV2.ANSWER.encode({OTHER: NO_ERROR}),
    9: OffsetFetchRequestV1.ANSWER.encode({OTHER: FetchedOffset(10**9, "", NO_ERROR)}),
}
BOMB = wrap(message_set(bytes(8 << 20)), codec_by_name("gzip"), 0)

#: What a hostile broker does: a fault, the body of an answer, or what it makes of the request.
Act = Fault | bytes | str
#: Faults that a client notices only when its time for the answer is over.
SLOW = (Fault.SILENT, Fault.STALLED, Fault.ENDLESS)
ACTS: dict[str, Act] = {
    "garbage": bytes(range(7, 200)),
    "an empty answer": b"",
    "an array of a negative length": b"\xff\xff\xff\xfe",
    "an array of two billion elements": b"\x7f\xff\xff\xff" + bytes(20),
    **{fault.name.lower(): fault for fault in Fault},
    "an unknown code": "code",
    "what the client did not request": "unasked",
    "a bomb": "bomb",
}


class Hostile(FakeBroker):
    """
    A broker of one topic with ten records, which also coordinates the group, and gives false answers.

    The first two answers to each kind of request are false, after one honest answer about metadata, without which no
    client starts. Once ``is_false`` is set, all answers are false.
    """

    def __init__(self, act: Act) -> None:
        super().__init__({"t": 1}, script=self._reply)
        self._act = act
        self.is_false = False
        self.false_answers = 0
        self.kinds: Counter[int] = Counter()
        self.append(TOPIC, message_set(*VALUES))

    def _reply(self, request: Request) -> bytes | Fault | None:
        key = request.api_key
        self.kinds[key] += 1
        is_false = self.is_false or 0 < self.kinds[key] - (key == METADATA) <= 2
        if is_false and (found := self._false_answer(key, request.body)) is not None:
            self.false_answers += 1
            return found
        return self._honest(key)

    def _honest(self, key: int) -> bytes | None:
        return named(self) if key == FIND_COORDINATOR else COORDINATES.get(key)

    def _false_answer(self, key: int, body: bytes) -> bytes | Fault | None:
        if self._act == "unasked":
            return UNASKED.get(key)
        if self._act == "bomb":
            bomb = {TOPIC: FetchedPartition(NO_ERROR, 10, memoryview(BOMB))}
            return FetchRequest.ANSWER.encode(bomb) if key == FETCH else None
        if self._act == "code":
            return with_error(key, self._honest(key) or self._at_once(key, body), 32_000)
        assert not isinstance(self._act, str)
        return self._act

    def _at_once(self, key: int, body: bytes) -> bytes:
        """Return an answer of the right form, without the wait of a fetch, and without storing what is produced."""
        if key == METADATA:
            return self.metadata(["t"])
        if key == LIST_OFFSETS:
            return self._list_offsets(Reader(body, "a request"))
        answers: dict[int, bytes] = {
            FETCH: FetchRequest.ANSWER.encode({TOPIC: FetchedPartition(NO_ERROR, 10, memoryview(b""))}),
            PRODUCE: ProduceRequest.ANSWER.encode({TOPIC: ProducedPartition(NO_ERROR, 0)}),
        }
        return answers[key]


QUICK: dict[str, Any] = {"backoff_ms": 2, "max_backoff_ms": 10, "request_timeout_ms": 80, "connect_timeout_ms": 2_000}
READING: dict[str, Any] = {"max_wait_time": 10, "max_decompressed_bytes": 1 << 20, **QUICK}
GROUP: dict[str, Any] = {
    **READING,
    "coordination": "brokers",
    "api_version": (0, 9),
    "retry_backoff_ms": 2,
    "connect_timeout_ms": 300,
    "session_timeout_ms": 3_000,
    "heartbeat_interval_ms": 1_000,
}

Errors = list[KielGroupsError]
T = TypeVar("T")


async def retried(call: Callable[[], Awaitable[T]], errors: Errors) -> T:
    """Call until there is no error, as an application does."""
    while True:
        try:
            return await call()
        except KielGroupsError as error:
            errors.append(error)
            assert len(errors) < 100, errors[-3:]


async def read(consumer: SingleConsumer | GroupedConsumer, errors: Errors) -> None:
    """Read all records, each once and in order. Errors are noted, and reading continues."""
    found: list[bytes | None] = []

    async def rest() -> None:
        async for record in consumer:
            found.append(record.value)
            if len(found) == len(VALUES):
                return

    await retried(rest, errors)
    assert found == VALUES


async def single(broker: Hostile, errors: Errors) -> SingleConsumer:
    consumer = SingleConsumer(str(broker.address), **READING)
    await consumer.connect()
    await retried(lambda: consumer.subscribe(["t"], BEGINNING), errors)
    await read(consumer, errors)
    return consumer


async def grouped(broker: Hostile, errors: Errors) -> GroupedConsumer:
    consumer = GroupedConsumer(str(broker.address), "g", **GROUP)
    await consumer.connect()
    await retried(lambda: consumer.subscribe(["t"]), errors)
    if broker._act == "code":
        # A code that this package does not know ends the membership.
        with pytest.raises(BrokerError, match=r"JoinGroup: the coordinator refuses this member: ERROR_32000"):
            await anext(aiter(consumer))
        errors.append(BrokerError("refused", code=32_000))
    else:
        await read(consumer, errors)
    return consumer


async def producer(broker: Hostile, errors: Errors) -> Producer:
    client = Producer(str(broker.address), retries=20, **QUICK)
    await client.connect()
    log, before = broker.logs[TOPIC], broker.logs[TOPIC].end
    outcomes = await asyncio.gather(*(client.produce("t", value) for value in VALUES), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, KielGroupsError)
            errors.append(outcome)
        else:
            assert before <= outcome.offset < log.end
    assert log.end - before >= len(VALUES) - len(errors)
    return client


Client = Callable[[Hostile, Errors], Awaitable[Any]]


async def outlive(client: Client, act: str, caplog: pytest.LogCaptureFixture) -> None:
    """Have a client work beside a broker with one act, and close while all answers are false."""
    async with Hostile(ACTS[act]) as broker:
        errors: Errors = []
        async with asyncio.timeout(20):
            opened = await client(broker, errors)
        assert max(broker.kinds.values()) < 100, broker.kinds
        shown = "unpacks to more than" if act == "a bomb" else str(broker.port)
        lines = [line for line in caplog.messages if shown in line]
        assert errors or lines or not broker.false_answers, "nothing shows the false answers"
        broker.is_false, seen = True, broker.kinds.total()
        if client is single:
            await eventually(lambda: broker.kinds.total() > seen + 2, "requests that get false answers", 5)
        async with asyncio.timeout(5):
            await opened.close()
        assert broker.connections < 100


@pytest.mark.parametrize("client", [single, grouped, producer])
async def test_a_client_outlives_a_hostile_broker(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A client gets all records, once and in order, after false answers to each kind of request. False answers are errors
    of this package, or lines in the log, and cause a bounded number of requests. While all answers are false, the
    client closes in time, and leaves nothing.
    """
    # A join and a sync wait for the other members, for the session timeout and 10 s more. Here they wait for 0.3 s.
    monkeypatch.setattr(coordinator, "_ANSWER_S", 0.3 - GROUP["session_timeout_ms"] / 1000)
    leftovers = Leftovers()
    caplog.set_level("INFO", "kiel_groups")
    outcomes = await asyncio.gather(*(outlive(client, act, caplog) for act in ACTS), return_exceptions=True)
    failed = {act: outcome for act, outcome in zip(ACTS, outcomes, strict=True) if isinstance(outcome, Exception)}
    if failed:
        raise ExceptionGroup(f"failed: {list(failed)}", list(failed.values()))
    await leftovers.check(1, 5)


@pytest.fixture
def served() -> Iterator[Callable[[str], Hostile]]:
    """Provide a function that starts a broker for an act on an event loop of another thread."""
    loop = sync.LoopThread()
    started: list[Hostile] = []

    def start(act: str) -> Hostile:
        broker = Hostile(ACTS[act])
        loop.run(broker.__aenter__())
        started.append(broker)
        return broker

    yield start
    for broker in started:
        loop.run(broker.__aexit__())
    loop.stop()


@pytest.mark.parametrize("act", [name for name, act in ACTS.items() if act not in ("bomb", "unasked")])
def test_a_blocking_producer_outlives_a_hostile_broker(act: str, served: Callable[[str], Hostile]) -> None:
    """What a blocking producer calls stored is stored. The producer closes while all answers are false."""
    broker, stored = served(act), 0
    client = sync.Producer(str(broker.address), retries=20, **QUICK)
    for value in VALUES:
        with suppress(KielGroupsError):
            assert client.produce("t", value).result(20).offset < broker.logs[TOPIC].end
            stored += 1
    assert broker.false_answers
    assert broker.logs[TOPIC].end - len(VALUES) >= stored >= len(VALUES) - 2
    assert broker.kinds.total() < 100
    broker.is_false = True
    started_s = time.monotonic()
    client.close()
    assert time.monotonic() - started_s < 5


#: Commands unpack 64 MiB.
QUICK_ACTS = [name for name, act in ACTS.items() if act not in (*SLOW, "bomb")]


@pytest.mark.parametrize("act", ACTS)
def test_a_blocking_consumer_outlives_a_hostile_broker(act: str, served: Callable[[str], Hostile]) -> None:
    """A blocking consumer gets all records, once and in order, and closes while all answers are false."""
    broker, found, tries = served(act), list[bytes | None](), 0
    consumer = sync.SingleConsumer(str(broker.address), **READING)
    while len(found) < len(VALUES):
        tries += 1
        assert tries < 100
        with suppress(KielGroupsError):
            if not consumer.subscription():
                consumer.subscribe(["t"], BEGINNING)
            found += [record.value for records in consumer.getmany(timeout_ms=1_000).values() for record in records]
    assert found == VALUES
    broker.is_false = True
    started_s = time.monotonic()
    consumer.close()
    assert time.monotonic() - started_s < 5


@pytest.mark.parametrize("act", QUICK_ACTS)
def test_commands_beside_a_hostile_broker(act: str, served: Callable[[str], Hostile], tmp_path: Path) -> None:
    """Commands print all records, each once, or end with an error in words. They never print a traceback."""
    broker = served(act)
    lines = tmp_path / "lines"
    lines.write_text("a\nb\n")
    place = ("--brokers", str(broker.address))
    reading = ("consume", "t", *place, "--from", "earliest", "--max", "10", "--timeout", "5")
    for command in (reading, ("produce", "t", str(lines), *place)):
        done = kiel_groups_here(*command)
        assert "Traceback" not in done.stderr
        assert done.returncode == 0 or "error" in done.stderr.lower(), done
        if command is reading:
            printed = done.stdout.split()
            assert printed == [value.decode() for value in VALUES][: len(printed)]
            assert done.returncode or len(printed) == len(VALUES)
