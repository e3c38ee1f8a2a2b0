"""Calls that change the subscription of a grouped consumer take effect at once, whether or not they are awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from kiel_groups import TopicPartition
from kiel_groups.clients import GroupedConsumer
from kiel_groups.errors import ArgumentTypeError, ConfigError, IllegalStateError

pytestmark = pytest.mark.unit

T0 = TopicPartition("t", 0)


def consumer_of() -> GroupedConsumer:
    return GroupedConsumer("127.0.0.1:1", "g", "127.0.0.1:1")


async def test_calls_that_are_not_awaited() -> None:
    """aiokafka's are plain functions, so its users do not await them."""
    consumer = consumer_of()
    first = consumer.subscribe(["t", "u"])
    assert consumer.subscription() == {"t", "u"}
    second = consumer.unsubscribe()
    assert consumer.subscription() == frozenset()
    consumer.assign([T0])
    consumer.seek(T0, 3)
    for registered in (first, second):
        await registered
    assert consumer.assignment() == {T0}
    assert await consumer.position(T0) == 3
    third = consumer.unsubscribe()
    assert consumer.assignment() == frozenset()
    fourth = consumer.subscribe("t")
    assert consumer.subscription() == {"t"}
    await third
    await fourth


async def test_what_is_refused_is_an_error_of_the_future_and_changes_nothing() -> None:
    consumer = consumer_of()
    await consumer.subscribe("t")
    for refused, error in [
        (consumer.subscribe("not/legal"), ConfigError),
        (consumer.subscribe([]), ConfigError),
        (consumer.subscribe(pattern="t.*"), IllegalStateError),
        (consumer.subscribe("t", pattern="t.*"), IllegalStateError),
        (consumer.subscribe(pattern="("), ConfigError),
        (consumer.subscribe("u", listener="no listener"), ArgumentTypeError),  # type: ignore[arg-type]
    ]:
        assert consumer.subscription() == {"t"}
        with pytest.raises(error):
            await refused
    await consumer.unsubscribe()
    consumer.assign([T0])
    with pytest.raises(IllegalStateError):
        await consumer.subscribe("t")
    assert consumer.assignment() == {T0}


async def test_a_topic_that_is_subscribed_is_not_checked_with_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    ``consume()`` names its topic at each call. Only a topic that is new, or was unsubscribed, changes the subscription.
    """
    consumer = consumer_of()
    checked: list[str] = []
    lifecycle = consumer._lifecycle
    change = lifecycle._change

    def changing(topics: Iterable[str], change_state: Callable[[], bool]) -> bool:
        checked.extend(sorted(topics))
        return change(topics, change_state)

    monkeypatch.setattr(lifecycle, "_change", changing)
    assert [lifecycle._add_topic(topic) for topic in ("t", "t", "u", "t")] == [True, False, True, False]
    assert checked == ["t", "t", "u"]
    await consumer.unsubscribe()
    assert lifecycle._add_topic("t")
    assert consumer.subscription() == {"t"}
    await consumer.unsubscribe()
    consumer.assign([T0])
    with pytest.raises(IllegalStateError):
        lifecycle._add_topic("t")
