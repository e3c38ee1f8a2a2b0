"""The phases of a partition's fetch: whatever brokers and callers do, a fetcher makes legal moves only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from kiel_groups.backoff import Backoff
from kiel_groups.clients.fetch import partition_fetch
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.fetch.partition_fetch import MOVES, PartitionFetch, Phase
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import FetchConfig
from kiel_groups.errors import BrokerConnectionError, ConfigError, NoBrokersError, OffsetOutOfRangeError, ProtocolError
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR, NOT_LEADER_FOR_PARTITION, OFFSET_OUT_OF_RANGE
from kiel_groups.wire.fetch import FetchedPartition, FetchRequest
from kiel_groups.wire.message_sets.decoder import MessageRun
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.recorded_moves import moves_in, record_moves
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
#: Two message sets fill the fetcher's buffer; then only partitions without a buffered batch are fetched.
CONFIG = FetchConfig(max_bytes=2, fetch_buffer_bytes=40, max_wait_ms=0)
MESSAGE_SET = memoryview(bytes(20))


class RandomCluster:
    """
    Two brokers, each the leader of some partitions. A seed decides who leads, what they answer, and in which order.

    It takes the place of ``ClusterMetadata``, of its connections, and of the callback for resets.
    """

    config = SimpleNamespace(request_timeout_ms=1)
    leaders_version = 0

    def __init__(self, random: Random) -> None:
        self._random = random
        self.leaders: dict[TopicPartition, int | None] = {}
        self.waiting: list[asyncio.Event] = []

    def leader_of(self, partition: TopicPartition) -> int | None:
        return self.leaders.get(partition, 0)

    def move_leader(self) -> None:
        """Have another broker lead a partition, or none."""
        self.leaders[self._random.choice(PARTITIONS)] = self._random.choice([0, 0, 0, 1, None])
        self.leaders_version += 1

    def drop_overrides(self, partitions: Iterable[TopicPartition]) -> None:
        list(partitions)

    def new_backoff(self) -> Backoff:
        """Return a backoff without delays: with delays, the computer's load would decide which moves are made."""
        return Backoff(0.0, 0.0)

    def connection(self, node_id: int, lane: str) -> RandomCluster:
        return self

    def close(self) -> None:
        """Close the connection, after an answer that cannot be read."""

    async def _wait(self) -> None:
        self.waiting.append(asyncio.Event())
        await self.waiting[-1].wait()

    def answer(self) -> None:
        """Give one of the answers that the fetcher waits for."""
        if self.waiting:
            self.waiting.pop(self._random.randrange(len(self.waiting))).set()

    async def refresh(self, topics: Iterable[str], purpose: str) -> None:
        await self._wait()
        if self._random.random() < 0.2:
            raise NoBrokersError("no broker answers")

    async def request(
        self, request: FetchRequest, timeout_ms: int, max_response_bytes: int
    ) -> Mapping[TopicPartition, FetchedPartition]:
        await self._wait()
        if self._random.random() < 0.1:
            raise self._random.choice(
                [ConfigError("too large"), ProtocolError("garbage"), BrokerConnectionError("down")]
            )
        return {partition: self._answer_for() for partition in request.partitions}

    def _answer_for(self) -> FetchedPartition:
        error = self._random.choice([NO_ERROR] * 8 + [NOT_LEADER_FOR_PARTITION, OFFSET_OUT_OF_RANGE])
        return FetchedPartition(error, 9, MESSAGE_SET[: self._random.choice([0, 20, 20])])

    async def reset(self, partition: TopicPartition, position: int) -> int | None:
        await self._wait()
        outcome = self._random.choice([0, 0, None, OffsetOutOfRangeError("refused", code=1), NoBrokersError("silent")])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class OneRecord:
    """A run of one record."""

    count, size_bytes = 1, len(MESSAGE_SET)

    def __init__(self, state: PartitionFetch) -> None:
        self.first_offset = self.last_offset = state.position
        self._partition = state.topic_partition

    def records(self) -> list[Record]:
        return [Record(*self._partition, self.first_offset, None, b"")]


def one_run(state: PartitionFetch, message_set: memoryview, most_bytes: int) -> Iterator[MessageRun]:
    """Yield one record, at the position."""
    yield OneRecord(state)


def actions(fetcher: Fetcher, cluster: RandomCluster, random: Random) -> Iterator[None]:
    """Yield after each of many random calls of a fetcher, moves of leaders, and answers."""
    for _ in range(100_000):
        partition = random.choice(PARTITIONS)
        match random.randrange(14):
            case 0:
                fetcher.assign({partition: 0})
            case 1:
                fetcher.assign({partition: 0}, lost=[partition])
            case 2:
                fetcher.unassign([partition])
            case 3:
                cluster.move_leader()
            case 4 | 5:
                with suppress(ConfigError, ProtocolError, OffsetOutOfRangeError):
                    fetcher.poll()
            case 6:
                fetcher.pause([partition])
            case 7:
                fetcher.resume([partition])
            case _:
                cluster.answer()
        yield


async def test_a_fetcher_makes_every_legal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The moves of a fetcher whose caller and brokers act at random are those of the table: no other one is made, and none
    is superfluous.
    """
    legal = moves_in(partition_fetch)
    recorded = record_moves(monkeypatch, partition_fetch)
    monkeypatch.setattr(PartitionFetch, "runs", one_run)
    monkeypatch.setattr(PartitionFetch, "idle_pause_s", 0.0)
    random = Random(1)
    cluster = RandomCluster(random)
    fetcher = Fetcher(cast(ClusterMetadata, cluster), CONFIG, Metrics(), reset=cluster.reset, runtime=Runtime())
    for _ in actions(fetcher, cluster, random):
        await run_ready_tasks()
        if recorded.seen >= legal:
            break
    fetcher.close()
    assert recorded.seen == legal


@pytest.mark.parametrize("target", Phase)
@pytest.mark.parametrize("source", Phase)
def test_only_legal_moves_can_be_made(source: Phase, target: Phase) -> None:
    """Any other move raises an error. To remain in a phase is no move."""
    state = PartitionFetch(PARTITIONS[0], 1, 0, phase=source)
    if target is source or target in MOVES[source]:
        state.enter(target)
        assert state.phase is target
    else:
        with pytest.raises(AssertionError, match="Phase"):
            state.enter(target)
        assert state.phase is source


def test_a_dropped_partition_is_done() -> None:
    """No fetch of it is sent, and none of its answers is used."""
    state = PartitionFetch(PARTITIONS[0], 1, 0)
    state.drop()
    assert state.dropped
    assert state.phase is Phase.DROPPED
