"""Automatic commits continue after a commit has failed with any error."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients.connected_consumer import PAUSE_S, AutoCommit, ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.coordination import ZooKeeperCoordination
from kiel_groups.config import BrokerConfig, FetchConfig, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.errors import KielGroupsError, SessionLostError
from kiel_groups.group.partition_offsets import StartPosition
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from tests.helpers.waiting import run_ready_tasks

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
        coordination=ZooKeeperCoordination(ZooKeeperConfig(hosts="127.0.0.1:1")),
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


async def test_each_cause_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """
    Every failure is counted and retried. It is logged at first, when its cause changes, and again after a success; an
    interval without anything to commit is no success.
    """
    subscription, metrics = SubscriptionState(), Metrics()
    subscription.subscribe(["t"])
    subscription.offsets.open({PARTITION: StartPosition(0, 0, 1)})
    state = subscription.offsets.of(PARTITION)
    assert state is not None
    over, refused, bug = SessionLostError("over"), KielGroupsError("refused"), RuntimeError("a bug")
    outcomes = [over, over, "nothing", over, refused, refused, bug, bug, "stored", bug, over]
    done = asyncio.Event()

    async def commit() -> None:
        if not outcomes:
            # On a busy machine, the next interval may end before the test does.
            await asyncio.Event().wait()
        outcome = outcomes.pop(0)
        # The tracker has something to commit in every interval but those before which "nothing" is next.
        state.finished = 0 if outcomes[:1] == ["nothing"] and outcomes.pop(0) else 1
        if not state.finished:
            asyncio.get_running_loop().call_later(0.01, setattr, state, "finished", 1)
        if not outcomes:
            done.set()
        if isinstance(outcome, Exception):
            raise outcome

    state.finished = 1
    config = GroupConfig(group="g", auto_commit_interval_ms=1)
    running = asyncio.ensure_future(AutoCommit(config, subscription, commit, metrics).run())
    async with asyncio.timeout(5.0):
        await done.wait()
    await run_ready_tasks()
    running.cancel()
    await asyncio.wait({running})
    assert metrics.total("commits_failed") == 9
    assert [record.getMessage() for record in caplog.records] == [
        "group g: nothing was committed: over; trying again every 0.001 s",
        "an automatic commit failed in group g: refused; trying again every 0.001 s",
        "an automatic commit failed in group g; trying again every 0.001 s",
        "an automatic commit failed in group g; trying again every 0.001 s",
        "group g: nothing was committed: over; trying again every 0.001 s",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [False, False, True, True, False]


async def test_commits_on_request_have_a_pause_between_them() -> None:
    """
    The first request is served at once. Those of a program that calls ``consume()`` without a pause share a commit.
    """
    subscription = SubscriptionState()
    subscription.subscribe(["t"])
    subscription.offsets.open({PARTITION: StartPosition(0, 0, 1)})
    state = subscription.offsets.of(PARTITION)
    assert state is not None
    state.finished = 1
    loop, made_s, made = asyncio.get_running_loop(), list[float](), asyncio.Event()

    async def commit() -> None:
        made_s.append(loop.time())
        made.set()

    automatic = AutoCommit(GroupConfig(group="g"), subscription, commit, Metrics())
    running = asyncio.ensure_future(automatic.run())
    async with asyncio.timeout(5.0):
        while len(made_s) < 3:
            made.clear()
            automatic.commit_soon()
            await run_ready_tasks()
            automatic.commit_soon()
            await made.wait()
    running.cancel()
    await asyncio.wait({running})
    assert made_s[1] - made_s[0] >= PAUSE_S
    assert made_s[2] - made_s[1] >= PAUSE_S
