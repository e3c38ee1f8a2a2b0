"""Interrupts of blocking calls on real servers: nothing is lost that arrives together with one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.model import Batch, Record
from kiel_groups.sync import GroupedConsumer
from kiel_groups.sync.loop_thread import LoopThread
from tests.helpers.cluster_data import committed, produce

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def batches_of(consumer: GroupedConsumer) -> list[Any]:
    found = consumer.consume_batches(timeout_ms=500)
    return [value for batches in found.values() for batch in batches for value in batch.values]


@pytest.mark.parametrize(
    ("ask", "settings"),
    [
        (lambda consumer, topic: [consumer.getone().value], {}),
        (lambda consumer, topic: [r.value for part in consumer.getmany(timeout_ms=500).values() for r in part], {}),
        (lambda consumer, topic: [bytes(value) for value in batches_of(consumer)], {}),
        (lambda consumer, topic: list(consumer.consume(topic) or []), {"deserializer": bytes}),
    ],
    ids=["getone", "getmany", "consume_batches", "consume"],
)
@pytest.mark.parametrize("continues", [True, False])
def test_records_that_arrive_together_with_an_interrupt_come_again(
    cluster_39: Cluster,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[GroupedConsumer, str], list[bytes]],
    settings: dict[str, Any],
    continues: bool,
) -> None:
    """
    The event loop's thread has received them for the program, which never gets them: here, or as the next owner.

    A record may come twice if it came after those that were lost. None may be missing.
    """
    group, topic, got, interrupted = unique("group"), unique("topic"), list[bytes](), 0
    asyncio.run(cluster_39.create_topic(topic, 2))
    values = asyncio.run(produce(cluster_39, topic, 20))
    result_of = LoopThread._result

    def interrupts(thread: LoopThread, *arguments: Any) -> Any:
        nonlocal interrupted
        result = result_of(thread, *arguments)
        if isinstance(result, Record | Batch | dict) and result and not interrupted:
            interrupted += 1
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(LoopThread, "_result", interrupts)
    for _ in range(2):
        with GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts, **settings) as consumer:
            consumer.subscribe(topic)
            while len(set(got)) < len(values):
                try:
                    got += ask(consumer, topic)
                except KeyboardInterrupt:
                    if not continues:
                        break
    assert interrupted == 1
    assert sorted(set(got)) == sorted(values)
    assert committed(cluster_39, group, topic) == len(values)
