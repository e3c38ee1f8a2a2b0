"""Answers to fetch requests: what they say about a partition beside its records."""

from __future__ import annotations

import pytest

from kiel_groups.clients.fetch.fetch_buffer import FetchBuffer
from kiel_groups.clients.fetch.fetcher import AnswerReader, Quantum
from kiel_groups.clients.fetch.partition_fetch import PartitionFetch
from kiel_groups.config import FetchConfig
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.fetch import FetchedPartition
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.fake_broker import message_set

pytestmark = pytest.mark.unit

CONFIG = FetchConfig()
MIB = 1 << 20
T0 = TopicPartition("t", 0)


def test_an_empty_answer_ends_the_failures() -> None:
    """The next failure is the first one again, and the high watermark is known."""
    state, marks = PartitionFetch(T0, 1, 0), []
    state.failures, state.unreadable = 3, 2
    reader = AnswerReader(CONFIG, FetchBuffer(CONFIG), Metrics(), lambda *mark: marks.append(mark), Runtime())
    assert not reader.note(state, FetchedPartition(NO_ERROR, 7, memoryview(b"")))
    assert (state.failures, state.unreadable, state.empty_answers, state.high_watermark) == (0, 0, 1, 7)
    assert reader.note(state, FetchedPartition(NO_ERROR, 8, memoryview(b"messages")))
    assert (state.empty_answers, marks) == (0, [(T0, 7), (T0, 8)])


async def test_records_end_the_failures() -> None:
    """The next failure of the partition is the first one again."""
    state = PartitionFetch(T0, 1, 0)
    state.failures, state.unreadable = 3, 2
    reader = AnswerReader(CONFIG, FetchBuffer(CONFIG), Metrics(), None, Runtime())
    fetched = FetchedPartition(NO_ERROR, 7, memoryview(message_set(b"value")))
    await reader.read(state, MIB, fetched, Quantum())
    assert (state.failures, state.unreadable, state.position) == (0, 0, 1)
