"""Deserializers and hooks for tests of bad records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery.record_reader import RECORDS
from kiel_groups.clients.fetch.fetch_requests import ANY
from kiel_groups.errors import BadRecordError, DamagedRecordError
from kiel_groups.model import Record, TopicPartition
from tests.helpers.delivery_bench import CALL, P0, DeliveryBench


def poison(*bad: int) -> Callable[[bytes], int]:
    """Return a deserializer that fails on these values."""

    def read(value: bytes) -> int:
        if int(value) in bad:
            raise ValueError(f"poison {int(value)}")
        return int(value)

    return read


class Hook:
    """A hook that waits until the test says so, and raises the errors that the test gave it."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.called: list[tuple[Record, BadRecordError]] = []
        self.may_return = asyncio.Event()
        self.may_return.set()

    async def __call__(self, record: Record, error: BadRecordError) -> None:
        self.called.append((record, error))
        await self.may_return.wait()
        if self.errors and (failure := self.errors.pop(0)) is not None:
            raise failure


def damage(first: int, last: int, partition: TopicPartition = P0) -> DamagedRecordError:
    return DamagedRecordError(
        "damaged", topic_partition=partition, offset=first, next_offset=last + 1, value=b"message"
    )


def take_offsets(bench: DeliveryBench, most: int | None = None, call: ConsumeCall = CALL) -> dict[Any, list[int]]:
    """Take records as one call of ``getmany()`` does, and return their offsets."""
    found = bench.values.take(ANY, RECORDS, call, most)
    return {partition: [record.offset for record in records] for partition, records in found.items()}


def end_pause(bench: DeliveryBench, partition: TopicPartition = P0) -> None:
    """End the pause after an error now."""
    timer = bench.owned.bad._aside[partition]
    assert timer is not None
    timer.cancel()
    bench.owned.bad._end_pause(partition)
