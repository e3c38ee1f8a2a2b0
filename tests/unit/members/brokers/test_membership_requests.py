"""Joins and syncs that wait for other members: they end if their coordinator turns out to be another broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from kiel_groups.config import CoordinatorConfig, GroupConfig
from kiel_groups.errors import BrokerError
from kiel_groups.members.brokers.coordinator import BrokerCoordinator, SyncAnswer
from kiel_groups.members.brokers.hooks import CoordinatedContext, MemberHooks
from kiel_groups.members.brokers.transport import BeatAnswer, FindError
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.metrics import Metrics
from kiel_groups.model import GenerationToken
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import GroupProtocol, JoinGroupResponse, SyncGroupResponse
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

COORDINATOR, NEXT = 1, 2
TOKEN = GenerationToken(3, "m")
ASSIGNED = SyncGroupResponse(NO_ERROR, b"assignment")
ANSWER = SyncAnswer(NO_ERROR, b"assignment")


class HangingCoordinator:
    """A transport whose coordinator answers a sync only when the test says so; ``found`` is what other brokers say."""

    def __init__(self, found: int | FindError) -> None:
        self.found = found
        self.doubted: list[int | None] = []
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.is_given_up = False

    async def find(self, doubted: int | None = None) -> int:
        self.doubted.append(doubted)
        if len(self.doubted) == 3 and not self.answer.done():
            self.answer.set_result(ASSIGNED)
        if isinstance(self.found, FindError):
            raise self.found
        return self.found

    async def send(self, coordinator: int, request: object, timeout_s: float, *, aside: bool = False) -> Any:
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.is_given_up = True
            raise

    def beat(self, *_: object, answered: Callable[[BeatAnswer], None]) -> None:
        raise AssertionError("no heartbeat is sent here")

    def close_beats(self) -> None:
        raise AssertionError("no heartbeat is sent here")


def requests_to(transport: HangingCoordinator, hooks: object = None) -> BrokerCoordinator:
    """Return the requests of a member that asks for its coordinator every 10 ms."""
    context = CoordinatedContext(
        group=GroupConfig(group="g"),
        timing=CoordinatorConfig(session_timeout_ms=30, heartbeat_interval_ms=10),
        transport=cast(Any, transport),
        versions=GroupVersions((0, 9)),
        metrics=Metrics(),
        runtime=Runtime(),
    )
    return BrokerCoordinator(context, cast(MemberHooks, hooks), lambda *_: None)


async def test_a_sync_ends_when_another_broker_coordinates() -> None:
    """A frozen coordinator would hold a sync for its rebalance timeout. Another broker names its successor before."""
    transport = HangingCoordinator(NEXT)
    with pytest.raises(BrokerError, match="broker 1 does not coordinate it now: broker 2 does"):
        await requests_to(transport).sync(COORDINATOR, TOKEN, {})
    await asyncio.sleep(0)
    assert transport.is_given_up
    assert transport.doubted == [COORDINATOR]


async def test_a_sync_ends_when_no_broker_coordinates() -> None:
    """Another broker says that the group has no coordinator: the one that holds the sync is none any more."""
    transport = HangingCoordinator(FindError("NOT_AVAILABLE (15)", code=15))
    with pytest.raises(BrokerError, match="broker 1 does not coordinate it now: NOT_AVAILABLE"):
        await requests_to(transport).sync(COORDINATOR, TOKEN, {})


@pytest.mark.parametrize("found", [COORDINATOR, FindError("no broker has answered")], ids=["same", "silence"])
async def test_a_sync_waits_for_the_other_members_of_its_group(found: int | FindError) -> None:
    """While the coordinator is the same, or no other broker answers, the sync waits however long that takes."""
    transport = HangingCoordinator(found)
    assert await requests_to(transport).sync(COORDINATOR, TOKEN, {}) == ANSWER
    assert len(transport.doubted) == 3


class ReadingHooks:
    """Hooks that read something before each join; the read ends when the test sets ``is_read``."""

    protocol_type = "connect"

    def __init__(self) -> None:
        self.is_read = asyncio.Event()

    async def protocols(self) -> list[GroupProtocol]:
        await self.is_read.wait()
        return [GroupProtocol("default", b"metadata")]


async def test_a_join_waits_for_what_its_hooks_read() -> None:
    """If the hooks have to read what the member offers, the join is sent after that, with what they return."""
    transport, hooks = HangingCoordinator(COORDINATOR), ReadingHooks()
    transport.answer.set_result(JoinGroupResponse(NO_ERROR, 3, "default", "m", "m", {"m": b"metadata"}))
    requests = requests_to(transport, hooks)
    joining = asyncio.ensure_future(requests.join(COORDINATOR, ""))
    await run_ready_tasks()
    assert (joining.done(), requests._offered) == (False, ())
    hooks.is_read.set()
    assert (await joining).token == TOKEN
    assert requests._offered == (GroupProtocol("default", b"metadata"),)


async def test_a_member_that_is_given_up_while_its_hooks_read_does_not_join() -> None:
    """A member that is given up before its hooks have read what it offers sends no join."""
    transport, hooks = HangingCoordinator(COORDINATOR), ReadingHooks()
    requests = requests_to(transport, hooks)
    joining = asyncio.ensure_future(requests.join(COORDINATOR, ""))
    await run_ready_tasks()
    requests.abandon()
    hooks.is_read.set()
    with pytest.raises(asyncio.CancelledError):
        await joining
    assert requests._offered == ()
