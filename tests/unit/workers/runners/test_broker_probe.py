"""The question to the brokers when a worker starts, on a scripted broker."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.wire.api.metadata_v0 import MetadataRequest
from kiel_groups.workers.runners import broker_probe
from kiel_groups.workers.runners.broker_probe import probe_brokers
from tests.helpers.fake_broker import FakeBroker

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
