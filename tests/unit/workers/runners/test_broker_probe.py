"""The question to the brokers when a worker starts, on a scripted broker."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.model import TopicPartition
from kiel_groups.wire.metadata import MetadataRequest
from kiel_groups.workers.runners import runner_interface as broker_probe
from kiel_groups.workers.runners import runner_interface as task_clients
from kiel_groups.workers.runners.runner_interface import KafkaClients, missing_topics_text, probe_brokers
from tests.helpers.fake_broker import FakeBroker, Log

pytestmark = pytest.mark.unit


async def test_a_broker_that_answers_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    """One address that answers is enough, and nothing is logged."""
    async with FakeBroker() as absent, FakeBroker() as broker:
        await absent.stop()
        await probe_brokers("loaders", f"{absent.address},{broker.address}")
        assert broker.count(MetadataRequest.API_KEY) == 1
    assert caplog.messages == []


async def test_brokers_that_refuse_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The warning has the reason of each address, and says what follows."""
    async with FakeBroker() as first, FakeBroker() as second:
        await first.stop()
        await second.stop()
        await probe_brokers("loaders", f"{first.address},{second.address}")
    (message,) = caplog.messages
    assert message.startswith(f"group loaders: no broker answered: {first.address}: ")
    assert str(second.address) in message
    assert message.endswith("; tasks wait until one answers")


async def test_a_silent_broker_is_waited_for_with_a_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning comes after that, and the connection is closed."""
    monkeypatch.setattr(broker_probe, "_LIMIT_S", 0.1)
    async with FakeBroker() as broker:
        broker.gates[MetadataRequest.API_KEY] = asyncio.Event()
        await probe_brokers("loaders", str(broker.address))
        assert broker.count(MetadataRequest.API_KEY) == 1
    assert caplog.messages == [
        f"group loaders: no broker at {broker.address} answered within 0.1 s; tasks wait until one answers"
    ]


async def test_missing_topics_are_named_and_brokers_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand tasks ask; the brokers are asked again after a while, or soon if a topic is missing."""
    async with FakeBroker({"a": 1}) as broker:
        clients = KafkaClients([str(broker.address)])

        async def missing(*topics: str) -> tuple[list[str], int]:
            return await clients.missing_topics(topics), broker.count(MetadataRequest.API_KEY)

        assert await missing("a") == ([], 1)
        assert await missing("a", "b", "c") == (["b", "c"], 1)
        monkeypatch.setattr(task_clients, "_MISSING_AGE_S", 0.0)
        assert await missing("a") == ([], 1)
        broker.logs[TopicPartition("b", 0)] = Log()
        assert await missing("b") == ([], 2)
        assert await missing("a", "b") == ([], 2)
        monkeypatch.setattr(task_clients, "_TOPICS_AGE_S", 0.0)
        assert await missing("a", "b") == ([], 3)
        assert await missing_topics_text(clients, ["a"]) == ""
        assert await missing_topics_text(clients, ["c"]) == "no broker knows the topic c"
        assert await missing_topics_text(clients, ["c", "d"]) == "no broker knows the topics c, d"
        await broker.stop()
        assert (await missing_topics_text(clients, ["a"])).startswith(f"no broker answered: {broker.address}: ")


async def test_the_producer_of_a_source_task_waits_until_a_dead_follower_is_given_up() -> None:
    """
    Brokers store a batch before its replicas are late. If they waited less than replica.lag.time.max.ms, each try
    would store the batch once more.
    """
    async with FakeBroker({"a": 1}) as broker, KafkaClients([str(broker.address)]).producer() as producer:
        assert producer.ack_timeout > 10_000
