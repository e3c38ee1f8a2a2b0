"""Automatic commits continue after a commit has failed with any error."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients.delivery.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.config import BrokerConfig, FetchConfig, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.errors import KielGroupsError, SessionLostError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

PARTITION = TopicPartition("t", 0)


@pytest.mark.parametrize("error", [SessionLostError("over"), KielGroupsError("refused"), RuntimeError("a bug")])
async def test_the_automatic_commit_continues_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A failed automatic commit is counted, and the next commit is made after the next interval."""
    subscription = SubscriptionState()
    subscription.subscribe(["t"])
    settings = ConsumerSettings(
        brokers=BrokerConfig(hosts=(HostPort("127.0.0.1", 1),)),
        fetching=FetchConfig(),
        group=GroupConfig(group="g", auto_commit_interval_ms=1),
        zookeeper=ZooKeeperConfig(hosts="127.0.0.1:1"),
    )
    connected, again, tries = ConnectedConsumer(settings, subscription), asyncio.Event(), []

    async def commit(_metadata: str = "") -> frozenset[TopicPartition]:
        tries.append(error)
        if len(tries) == 1:
            raise error
        again.set()
        return frozenset({PARTITION})

    monkeypatch.setattr(connected.member, "commit_on_session", commit)
    monkeypatch.setattr(subscription.offsets, "has_uncommitted", lambda: True)
    committing = asyncio.ensure_future(connected._auto_commit.run())
    try:
        async with asyncio.timeout(5.0):
            await again.wait()
    finally:
        committing.cancel()
        await asyncio.wait({committing})
    assert settings.metrics.total("commits_failed") == 1
