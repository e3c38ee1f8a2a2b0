"""Arguments of a wrong type are refused at once, by the constructor or the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.clients import GroupedConsumer, Producer, SingleConsumer
from kiel_groups.errors import ConfigError

pytestmark = pytest.mark.unit


def grouped(**settings: Any) -> GroupedConsumer:
    return GroupedConsumer(["kafka-1"], "g", ["zoo-1"], **settings)


def single(**settings: Any) -> SingleConsumer:
    return SingleConsumer(["kafka-1"], **settings)


def producer(**settings: Any) -> Producer:
    return Producer(["kafka-1"], **settings)


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (producer, "serializer"),
        (producer, "key_maker"),
        (producer, "partitioner"),
        (single, "deserializer"),
        (grouped, "deserializer"),
        (grouped, "partition_allocator"),
    ],
)
@pytest.mark.parametrize("given", [7, 0, b"", False])
def test_an_argument_that_is_not_callable_is_refused(make: Callable[..., Any], setting: str, given: Any) -> None:
    """
    The constructor refuses an argument that is not callable, even a value that is false in Python: only None means
    "none given".
    """
    with pytest.raises(ConfigError, match=f"{setting}: {given!r} given; expected a function"):
        make(**{setting: given})


@pytest.mark.parametrize(
    ("make", "setting"),
    [(producer, "serializer"), (producer, "key_maker"), (single, "deserializer"), (grouped, "key_deserializer")],
)
def test_a_coroutine_function_cannot_convert(make: Callable[..., Any], setting: str) -> None:
    """Nothing would await it: records would have coroutine objects as values, and would count as delivered."""

    async def convert(value: Any) -> Any:
        return value

    with pytest.raises(ConfigError, match=rf"{setting}: the coroutine function .* given; expected a plain function"):
        make(**{setting: convert})


@pytest.mark.parametrize("given", ["no", 1, None])
def test_autocommit_must_be_a_bool(given: Any) -> None:
    """The argument ``autocommit`` must be a bool. A text such as "no" would always be true in Python."""
    with pytest.raises(ConfigError, match=f"autocommit: {given!r} given; expected True or False"):
        grouped(autocommit=given)


@pytest.mark.parametrize("make", [producer, single, grouped])
@pytest.mark.parametrize("given", [7, None])
def test_a_client_id_must_be_text(make: Callable[..., Any], given: Any) -> None:
    """A client id that is no text could not be sent, and each request would fail with a TypeError."""
    with pytest.raises(ConfigError, match=f"client_id: {given} given; expected a string"):
        make(client_id=given)


@pytest.mark.parametrize("make", [single, grouped])
@pytest.mark.parametrize("topics", [b"clicks", 7, None])
async def test_topics_must_be_names(make: Callable[..., Any], topics: Any) -> None:
    """``subscribe()`` accepts only names of topics. Bytes are refused, because Python iterates over them as numbers."""
    with pytest.raises(ConfigError, match=f"topic: {topics!r} given; expected the name of a topic, or a list of names"):
        await make().subscribe(topics)


async def test_a_member_subscribes_to_at_least_one_topic() -> None:
    """An empty list of topics is refused, because nothing would be consumed."""
    with pytest.raises(ConfigError, match="no topic given"):
        await grouped().subscribe([])
