"""The phases of a member's session, from its opening to its end."""

from __future__ import annotations

from itertools import product

import pytest

from kiel_groups.members.zookeeper import group_session
from kiel_groups.members.zookeeper.group_member import MemberRole
from kiel_groups.members.zookeeper.group_session import MOVES, GroupSession, SessionPhase
from tests.helpers.recorded_moves import moves_in, record_moves
from tests.sim.consumer import Consumer
from tests.sim.world import SESSION_TIMEOUT_MS, World, at_rest

pytestmark = pytest.mark.sim

#: The default of ``connect_timeout_ms``.
LIMIT_S = 15.0


def session_of(consumer: Consumer) -> GroupSession[MemberRole]:
    """Return a member's current session."""
    session = consumer.member._member_session
    assert session is not None
    return session


def join_with_interruption(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> tuple[Consumer, list[GroupSession[MemberRole]]]:
    """
    Start a member whose first session ends together with the answer to its registration.

    Return it and the sessions of its attempts to join.
    """
    sessions: list[GroupSession[MemberRole]] = []
    move = GroupSession._continue_in

    def interrupted(session: GroupSession[MemberRole], phase: SessionPhase) -> None:
        if phase is SessionPhase.JOINED:
            sessions.append(session)
            if len(sessions) == 1:
                session.session.end("lost in the test")
        move(session, phase)

    monkeypatch.setattr(GroupSession, "_continue_in", interrupted)
    return world.join(world.topics), sessions


def test_a_session_makes_every_legal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that end in each of their phases make the moves of the table: no other one, and none is superfluous."""
    legal = moves_in(group_session)
    recorded = record_moves(monkeypatch, group_session)
    with at_rest(members=2, topics=(2,)) as world:
        leaving, lost = world.consumers
        leaving.leave()
        world.run_for(5.0)
        world.operator.delete_async(world.layout.member(lost.member.member_id or ""))
        world.run_for(SESSION_TIMEOUT_MS / 1000)
        world.settle(30.0)
        stalled = world.join(world.topics)
        stalled.process.stall()
        world.run_for(LIMIT_S + 0.5)
        stalled.process.resume()
        world.settle(30.0)
        join_with_interruption(world, monkeypatch)
        world.settle(30.0)
    assert recorded.seen == legal


def test_a_session_that_ends_with_the_last_answer_of_its_join_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The join fails as if the answer had not come, and the member joins with another session."""
    with at_rest(members=1, topics=(2,)) as world:
        newcomer, sessions = join_with_interruption(world, monkeypatch)
        world.settle(30.0)
        assert newcomer.metrics.total("joins_failed") == 1
        assert [session.phase for session in sessions] == [SessionPhase.ENDED, SessionPhase.JOINED]
        assert session_of(newcomer) is sessions[1]


def test_only_legal_moves_can_be_made() -> None:
    """Any other move of a session raises an error. To remain in a phase is no move."""
    with at_rest(members=1, topics=(2,)) as world:
        session = session_of(world.consumers[0])
        for source, target in product(SessionPhase, SessionPhase):
            session.phase = source
            if target is source or target in MOVES[source]:
                session._enter(target)
                assert session.phase is target
            else:
                with pytest.raises(AssertionError, match="SessionPhase"):
                    session._enter(target)
                assert session.phase is source
        session.phase = SessionPhase.JOINED
