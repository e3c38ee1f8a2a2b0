"""Servers that open a session for a joining member and then stop answering."""

from __future__ import annotations

import pytest

from kiel_groups.errors import NoZooKeeperError
from kiel_groups.members.zookeeper import group_member as member_role
from kiel_groups.members.zookeeper.group_member import GroupMember
from tests.sim.consumer import Consumer
from tests.sim.world import SESSION_TIMEOUT_MS, World, at_rest

pytestmark = pytest.mark.sim

#: The default of ``connect_timeout_ms``.
LIMIT_S = 15.0


def join_without_answers(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Consumer, list[Exception]]:
    """Start a member that gets no answers once it has a session. Return it and the errors of its attempts to join."""
    errors: list[Exception] = []
    start, admit = GroupMember.start, member_role.check_admission

    async def noting(member: GroupMember) -> None:
        try:
            await start(member)
        except Exception as error:
            errors.append(error)
            raise

    async def silent(*arguments: object) -> None:
        if newcomer.process.connections and not silenced:
            silenced.append(newcomer)
            newcomer.process.stall()
        await admit(*arguments)  # type: ignore[arg-type]

    silenced: list[Consumer] = []
    monkeypatch.setattr(member_role, "check_admission", silent)
    monkeypatch.setattr(GroupMember, "start", noting)
    newcomer = world.join(world.topics)
    return newcomer, errors


def test_a_join_without_an_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a join without an answer names the step that got no answer. The next attempt succeeds."""
    with at_rest(members=1, topics=(2,)) as world:
        newcomer, errors = join_without_answers(world, monkeypatch)
        world.run_for(LIMIT_S + 0.5)
        assert [type(error) for error in errors] == [NoZooKeeperError]
        assert "waiting for the group's settings and members" in str(errors[0])
        newcomer.process.resume()
        world.settle(30.0)
        assert len(newcomer.opened) == 1
        assert len(errors) == 1


def test_a_silent_zookeeper_is_announced_long_before_the_error(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the servers; it comes once, and not to a member whose servers answer or soon time out."""
    with at_rest(members=1, topics=(2,)) as world:
        assert "has answered for" not in caplog.text
        newcomer = world.join(world.topics)
        newcomer.process.stall()
        world.run_for(2.9)
        assert "has answered for" not in caplog.text
        world.run_for(LIMIT_S - 3.0)
        lines = [record.message for record in caplog.records if "has answered for" in record.message]
        assert len(lines) == 1
        assert lines[0].endswith(" has answered for 3 s; trying for 12 s more")
        newcomer.process.resume()
        world.settle(30.0)


def test_a_session_that_ends_during_a_join_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within ``connect_timeout_ms``, the loss of the session is no error: the member joins with another session."""
    with at_rest(members=1, topics=(2,)) as world:
        newcomer, errors = join_without_answers(world, monkeypatch)
        world.run_for(1.2 * SESSION_TIMEOUT_MS / 1000)
        newcomer.process.resume()
        world.settle(30.0)
        assert errors == []
        assert newcomer.metrics.total("joins_failed") == 1
        assert len(newcomer.opened) == 1
