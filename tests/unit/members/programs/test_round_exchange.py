"""What the leader of a round and the member in its process tell each other."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.group.rounds import Choice
from kiel_groups.members.programs.rounds import RoundExchange
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

CHOICE = Choice("p", {"m": b""}, {})


async def test_the_member_brings_the_assignments_of_the_round() -> None:
    """The member is told when the round is gathered, and its assignments end the leader's wait."""
    told: list[int] = []
    exchange = RoundExchange(lambda: told.append(1))
    assert exchange.choice_of(3) is None
    waiting = asyncio.ensure_future(exchange.assignments_of(3, CHOICE))
    await run_ready_tasks()
    assert told == [1]
    assert exchange.choice_of(3) == CHOICE
    assert exchange.choice_of(4) is None
    exchange.assign(3, {"m": b"1"})
    exchange.assign(3, {"m": b"2"})
    assert await waiting == {"m": b"1"}
    assert exchange.choice_of(3) is None


async def test_assignments_of_another_round_are_dropped() -> None:
    """A member that brings the assignments of a former round does not end the wait of a later one."""
    exchange = RoundExchange(lambda: None)
    exchange.assign(3, {})
    waiting = asyncio.ensure_future(exchange.assignments_of(3, CHOICE))
    await run_ready_tasks()
    exchange.assign(2, {"m": b"old"})
    await run_ready_tasks()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert exchange.choice_of(3) is None
    exchange.assign(3, {})
