"""``consume_batches()`` of a consumer with a scripted broker: its arguments, and calls that are given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, RecordColumns, TopicPartition
from kiel_groups.constants import BEGINNING
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError
from tests.helpers.single_consumers import T0, consuming

pytestmark = pytest.mark.unit


def values(found: dict[TopicPartition, list[RecordColumns]]) -> list[bytes]:
    return [bytes(value or b"") for runs in found.values() for run in runs for value in run.values]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout_ms": -1}, "timeout_ms is -1; expected milliseconds, at least 0"),
        ({"timeout_ms": True}, "timeout_ms is True"),
        ({"max_records": 0}, "max_records is 0; expected a whole number of at least 1, or None"),
        ({"max_records": True}, "max_records is True"),
    ],
    ids=str,
)
async def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    """The error names the method."""
    async with consuming() as (_, consumer):
        with pytest.raises(ConfigError, match=rf"consume_batches\(\): {message}"):
            await consumer.consume_batches(**arguments)
        with pytest.raises(ConfigError, match="expected TopicPartition"):
            await consumer.consume_batches([T0])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["deserializer", "key_deserializer"])
async def test_a_deserializer_is_refused(name: str) -> None:
    """It would be called for each record. The refused call does not choose the style of the consumer."""
    async with consuming(b"0", **{name: bytes.decode}) as (_, consumer):
        consumer.assign([T0])
        with pytest.raises(ConfigError, match=r"consume_batches\(\) returns bytes.*leave it out, or use getmany\(\)"):
            await consumer.consume_batches()
        assert (await anext(aiter(consumer))).offset == 0


async def test_a_consumer_that_is_not_connected_returns_nothing() -> None:
    with pytest.raises(ClosedError):
        await GroupedConsumer("127.0.0.1:1", "g", "127.0.0.1:1").consume_batches()


async def test_records_without_a_subscription_are_an_error_instead_of_a_wait() -> None:
    """A loop and each call say what is missing. A call of ``subscribe`` counts before it is done, and for ever."""
    async with consuming(b"0") as (_, consumer), asyncio.timeout(10):
        with pytest.raises(IllegalStateError, match=r"loop over records: .* call subscribe\(\) or assign\(\) first"):
            aiter(consumer)
        for call in (consumer.getone, consumer.getmany, consumer.consume_batches):
            with pytest.raises(IllegalStateError, match="neither topics nor partitions"):
                await call()
        subscribing = consumer.subscribe("t", BEGINNING)
        assert (await anext(aiter(consumer))).offset == 0
        await subscribing
        await consumer.unsubscribe()
        aiter(consumer)


async def test_calls_that_were_given_up_gave_nothing() -> None:
    """A call that was cancelled, one whose future was not read, and one that the same coroutine has superseded."""
    async with consuming(b"0", b"1") as (_, consumer), asyncio.timeout(10):
        consumer.assign([T0])
        cancelled = consumer.consume_batches(timeout_ms=5_000)
        await asyncio.sleep(0)
        cancelled.cancel()
        unread = consumer.consume_batches(timeout_ms=5_000)
        await asyncio.wait({unread})
        assert values(await consumer.consume_batches(timeout_ms=5_000)) == [b"0", b"1"]
        assert await unread == {}, "it is too late"


async def test_the_three_methods_take_turns() -> None:
    """Each gets what the one before it left."""
    async with consuming(b"0", b"1", b"2", b"3") as (_, consumer), asyncio.timeout(10):
        consumer.assign([T0])
        assert values(await consumer.consume_batches(timeout_ms=5_000, max_records=1)) == [b"0"]
        assert (await consumer.getone()).value == b"1"
        assert [record.value for record in (await consumer.getmany(max_records=1))[T0]] == [b"2"]
        assert values(await consumer.consume_batches(T0)) == [b"3"]
        assert await consumer.consume_batches() == {}
