"""Simulated groups of programs: no scenario breaks an invariant, and the cases of which groups must recover."""

from __future__ import annotations

import logging
import re
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

import pytest

from kiel_groups.errors import CredentialsError, GroupConfigError
from kiel_groups.group.znodes.contents import DONE, GroupSettings, MemberInfo
from kiel_groups.group.znodes.round_contents import RoundMember, RoundState
from kiel_groups.group.znodes.transactions import Answer, Create, Operation
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.zookeeper.session import Session
from tests.sim.programs.program_process import COMMON, STRANGE, Program
from tests.sim.programs.program_scenario import FAULTS, make_program_scenario
from tests.sim.programs.program_world import ProgramWorld, programs_at_rest
from tests.sim.report import GROUPS, shortened
from tests.sim.world import at_rest

pytestmark = pytest.mark.sim

#: How long a session that is not renewed may last, and the longest time between two checks of a member, in seconds.
EXPIRY_S, CHECK_S = 14.0, 42.0


@pytest.fixture
def world() -> Iterator[ProgramWorld]:
    """Provide a settled group of three programs."""
    with programs_at_rest(members=3) as made:
        yield made


def newest(world: ProgramWorld) -> int:
    """Return the newest generation."""
    assert world.checker.newest is not None
    return world.checker.newest.generation


def others(world: ProgramWorld, program: Program) -> list[Program]:
    return [each for each in world.running if each is not program]


# Scenarios


def test_scenarios_have_all_faults_and_sizes() -> None:
    """Three hundred scenarios have every fault, and groups of one to five programs."""
    scenarios = [make_program_scenario(seed) for seed in range(300)]
    assert min(scenario.faults for scenario in scenarios) >= 5
    assert {scenario.members for scenario in scenarios} == {1, 2, 3, 4, 5}
    assert {event.operation for scenario in scenarios for event in scenario.events} >= FAULTS.keys()


def test_a_scenario_that_passes_is_not_shortened() -> None:
    """A scenario without a violation is returned unchanged, for a replay."""
    scenario = make_program_scenario(5)
    assert shortened(scenario, GROUPS["programs"]) is scenario


# Members that come, go, and fail


def test_a_killed_program_is_replaced_when_its_session_expires(world: ProgramWorld) -> None:
    """The others share the items of a killed program as soon as its session has expired."""
    killed = world.running[1]
    killed.kill()
    world.settle(EXPIRY_S)
    assert len(world.running) == 2
    assert newest(world) == 2


def test_a_frozen_program_loses_its_assignment(world: ProgramWorld, caplog: pytest.LogCaptureFixture) -> None:
    """A program that is stopped past its session hears that its assignment is lost, and joins again."""
    frozen = world.running[1]
    before, completed = frozen.member_id, frozen.completed
    frozen.process.freeze()
    world.run_for(EXPIRY_S)
    assert newest(world) == 2
    frozen.process.thaw()
    world.settle(EXPIRY_S)
    assert frozen.metrics.total("memberships_lost") == 1
    assert frozen.completed == completed + 1
    assert frozen.member_id not in ("", before)
    # The log names what happened on ZooKeeper, once, and no codes of brokers.
    lines = [record.message for record in caplog.records if "could not prove" in record.message]
    assert len(lines) == 1
    # What it hears first depends on which of its threads continues first.
    reasons = "the lease ran out|expired or closed by the server"
    assert re.search(rf"could not prove its membership: its ZooKeeper session is over: ({reasons})", lines[0])
    messages = " ".join(record.message for record in caplog.records)
    assert f"the membership of {before} is over; its assignment is lost" in messages
    assert not [word for word in ("UNKNOWN_MEMBER", "partition", "delivery", "coordinator") if word in messages]


@pytest.mark.parametrize("moment", ["on_begun", "on_published"])
def test_a_round_whose_leader_is_killed_is_repeated(world: ProgramWorld, moment: str) -> None:
    """The next leader begins another round, whether or not the killed one had published its assignments."""
    leader = world.leader
    setattr(world, moment, lambda _: leader.kill())
    world.join()
    world.run_for(5.0)
    assert leader.process.killed
    world.settle(EXPIRY_S)
    assert world.checker.newest is not None
    assert world.checker.newest.leader == world.leader.member_id


@pytest.mark.parametrize("leads", [False, True])
def test_a_program_that_does_not_give_back_delays_a_round_for_a_limited_time(world: ProgramWorld, leads: bool) -> None:
    """
    After the rebalance timeout, the round continues without a program that hangs in ``prepare``. It joins a later one.

    If the leader hangs, its session ends, and another member leads.
    """
    hanging = world.leader if leads else others(world, world.leader)[0]
    hanging.hangs = True
    world.join()
    world.run_for(13.0)
    assert world.checker.published == 1
    if leads:
        world.run_for(4.0)
        assert hanging.metrics.total("memberships_lost") == 1
    else:
        world.run_for(6.0)
        assert hanging.held is not None
        assert world.checker.published == 2
        assert world.leader.metrics.total("rounds_incomplete") == 1
    hanging.end_hang()
    world.settle(EXPIRY_S)
    assert len(world.running) == 4


def test_a_leader_is_killed_while_its_program_assigns(world: ProgramWorld) -> None:
    """The round was gathered, and is not published; the next leader begins another one."""
    leader, assigning = world.leader, world.checker.assigning

    def kill(program: Program, joined: JoinedGroup) -> None:
        world.timeline.after(0.0, program.kill)
        world.checker.assigning = assigning  # type: ignore[method-assign]

    world.checker.assigning = kill  # type: ignore[method-assign]
    leader.hangs_assigning = True
    leader.request_rejoin()
    world.run_for(2.0)
    assert leader.process.killed
    assert world.checker.published == 1
    world.settle(EXPIRY_S)
    assert newest(world) == 3


def test_a_leader_whose_program_hangs_while_it_assigns_is_replaced(world: ProgramWorld) -> None:
    """After the rebalance timeout its session ends, and another member leads; it joins when its program returns."""
    leader = world.leader
    leader.hangs_assigning = True
    leader.request_rejoin()
    world.run_for(16.0)
    assert world.leader is not leader
    assert world.checker.published == 2
    leader.end_hang()
    world.settle(EXPIRY_S)
    assert len(world.running) == 3


@pytest.mark.parametrize("leads", [False, True])
def test_a_rejoin_during_a_round_causes_the_next_one(world: ProgramWorld, leads: bool) -> None:
    """A request to rejoin that comes during a round is granted after it, with fresh metadata."""
    program = world.leader if leads else others(world, world.leader)[0]
    offered = program.offered_count
    world.on_begun = lambda _: world.timeline.after(0.0, program.request_rejoin)
    program.request_rejoin()
    world.settle()
    assert newest(world) == 3
    assert program.offered_count == offered + 2


def test_a_member_that_closes_leaves_at_once(world: ProgramWorld) -> None:
    """The others share its items within a second; no task and no znode of the member is left."""
    left = others(world, world.leader)[0]
    left.leave()
    world.run_for(1.0)
    assert left.closed
    world.settle(1.0)
    assert len(world.ensemble.tree.children(world.layout.members)) == 2


def test_a_leader_whose_program_cannot_assign_stops(world: ProgramWorld) -> None:
    """The leader's member stops with the error of its ``perform_assignment``, and another one leads."""
    leader = world.leader
    leader.fails = True
    world.join()
    world.run_for(3.0)
    assert world.leader is not leader
    world.settle()
    assert leader.metrics.total("member_failures") == 1


def test_a_member_that_registers_during_a_round_takes_part_in_it() -> None:
    """
    A round may be complete when a member that registered during it sends its join.

    The member then takes that round's assignment, and does not wait for the next round, which no member has requested.
    """
    with programs_at_rest(members=2, complete_s=3.0) as world:
        world.on_begun = lambda _: world.timeline.after(0.05, world.join)
        world.running[0].request_rejoin()
        world.run_for(0.5)
        world.settle()
        assert len(world.running) == 3


# Protocols


def test_a_member_without_a_common_protocol_is_refused(world: ProgramWorld) -> None:
    """It stops with an error, and its session ends: no later round waits for it."""
    stopped: list[Exception] = []
    world.checker.stopped = lambda program, error: stopped.append(error)  # type: ignore[method-assign]
    stranger = world.join(STRANGE)
    world.on_begun = lambda _: stranger.process.block(0.0)
    world.run_for(0.9)
    (error,) = stopped
    assert isinstance(error, GroupConfigError)
    assert "it offers odd; the others have eager, plain in common" in str(error)
    assert len(world.ensemble.tree.children(world.layout.members)) == 3
    stranger.kill()
    world.settle()


def test_the_protocol_is_chosen_by_votes() -> None:
    """Two of three members prefer ``plain``, and all know it."""
    with programs_at_rest(members=1) as world:
        for _ in range(2):
            world.join(COMMON[::-1])
        world.settle()
        assert world.checker.newest is not None
        assert world.checker.newest.protocol == "plain"


# Operators


def test_a_deleted_state_is_replaced_by_a_new_generation(world: ProgramWorld) -> None:
    """After an operator has deleted the state and all assignments, the next generation is no earlier one."""
    tree, path = world.ensemble.tree, world.layout.group_state
    for slot in list(tree.children(path)):
        world.operator.delete(f"{path}/{slot}")
    world.operator.delete(path)
    world.run_for(CHECK_S)
    world.settle()
    assert newest(world) == 2


def test_a_leader_reuses_no_generation_that_it_has_read() -> None:
    """If the leader's own znode and the state are both damaged, the generations grow all the same."""
    with programs_at_rest(members=1) as world:
        world.running[0].request_rejoin()
        world.settle()
        world.operator.set(world.layout.member(world.running[0].member_id), b"garbage")
        path = world.layout.group_state
        for slot in list(world.ensemble.tree.children(path)):
            world.operator.delete(f"{path}/{slot}")
        world.operator.delete(path)
        world.join()
        world.run_for(1.0)
        world.settle()
        assert newest(world) == 3


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3])
def test_a_state_that_is_garbled_during_a_round_begins_another(delay_s: float) -> None:
    """The leader notices that the state of its round is gone, also while its program assigns."""
    with programs_at_rest(members=2, complete_s=1.0, prepare_s=0.2) as world:
        garble = lambda _: world.timeline.after(  # noqa: E731
            delay_s, world.operator.set_async, world.layout.group_state, b"[]"
        )
        world.on_begun = garble
        world.running[0].request_rejoin()
        world.run_for(1.0)
        world.settle(10.0)
        assert newest(world) >= 3


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("data", [b"", b"[]", b'{"version":1}', b"\xff"])
def test_a_garbled_member_znode_is_written_again(world: ProgramWorld, data: bytes, leads: bool) -> None:
    """A member whose znode cannot be read is no member of the next round; it writes its znode again, and rejoins."""
    program = world.leader if leads else others(world, world.leader)[0]
    before = program.member_id
    path = world.layout.member(before)
    world.operator.set(path, data)
    world.run_for(CHECK_S)
    world.settle()
    assert RoundMember.parse(before, world.ensemble.tree.znodes[path].data, path).joined == newest(world)
    assert program.member_id == before


def test_a_garbled_znode_of_a_member_that_waits_is_written_again() -> None:
    """A member that was garbled before its first round joins after its next check."""
    with programs_at_rest(members=1) as world:
        world.leader.hangs = True
        joining = world.join()
        world.run_for(0.1)
        world.operator.set(world.layout.member(joining.znode_id), b"garbage")
        world.leader.end_hang()
        world.run_for(CHECK_S)
        world.settle()
        assert len(world.running) == 2


def test_a_deleted_member_znode_ends_the_membership(world: ProgramWorld) -> None:
    """The program gives its assignment back, or loses it, and the member joins again with another id."""
    program = others(world, world.leader)[0]
    before = program.member_id
    world.operator.delete(world.layout.member(before))
    world.run_for(5.0)
    world.settle()
    assert program.member_id != before
    assert program.completed == 2


def test_a_deleted_election_znode_changes_the_leader_at_most(world: ProgramWorld) -> None:
    """Without its election znode, a leader cannot begin a round; it or another one leads the next."""
    for name in list(world.ensemble.tree.children(world.layout.election)):
        world.operator.delete(f"{world.layout.election}/{name}")
    world.join()
    world.run_for(CHECK_S)
    world.settle()
    assert len(world.running) == 4


def test_a_deleted_assignment_is_not_missed_before_the_next_round(world: ProgramWorld) -> None:
    """The program keeps the assignment that it has read; the next round creates the znode again."""
    program = world.running[1]
    path = world.layout.assignment(program.member_id)
    world.operator.delete(path)
    world.run_for(CHECK_S)
    assert newest(world) == 1
    program.request_rejoin()
    world.settle()
    assert path in world.ensemble.tree.znodes


# ZooKeeper


def test_a_round_whose_acl_is_refused_is_a_line_without_a_traceback(
    world: ProgramWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ZooKeeper does not accept the ACL of new znodes: a leader leaves, as without a right, and joins again later."""
    transact, state = Session.transact, world.layout.group_state

    def refused(session: Session, operations: Iterable[Operation]) -> Coroutine[Any, Any, Answer]:
        for each in (listed := list(operations)):
            if isinstance(each, Create):
                parent = each.path.rpartition("/")[0]
                raise CredentialsError(f"ZooKeeper refused to create a znode in {parent}: it does not accept the ACL")
        return transact(session, listed)

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(Session, "transact", refused)
        for slot in list(world.ensemble.tree.children(state)):
            world.operator.delete(f"{state}/{slot}")
        world.operator.delete(state)
        world.run_for(30.0)
    lines = [record for record in caplog.records if "does not accept the ACL" in record.getMessage()]
    # The state of the round, and then the member znode of the next session.
    assert 1 <= len(lines) <= 2 * len(world.consumers)
    assert not any(record.exc_info for record in caplog.records)
    world.settle(30.0)


def test_lost_answers_do_not_stop_a_round(world: ProgramWorld) -> None:
    """Each member in turn loses the answer to its next transaction during a round."""
    for program in world.running:
        program.process.lose("reply")
        world.leader.request_rejoin()
        world.settle()
    assert newest(world) >= 4


def test_a_group_recovers_when_zookeeper_is_back(world: ProgramWorld) -> None:
    """While ZooKeeper is gone, no gate is open after half the session timeout; then all join again."""
    for server in world.ensemble.servers:
        world.ensemble.crash(server)
    world.run_for(6.0)
    assert not any(program.held and program.held.is_open(world.timeline.now_s) for program in world.consumers)
    world.run_for(20.0)
    for server in world.ensemble.servers:
        world.ensemble.heal(server)
    world.settle(30.0)
    assert len(world.running) == 3


# Other kinds of groups


@pytest.mark.parametrize(
    ("config", "refusal"),
    [
        (
            GroupSettings(store="zookeeper", mode="group", auto_offset_reset="earliest").encode(),
            r"group g: its members are consumers; choose another group$",
        ),
        (
            b"garbage",
            r"group g: its settings cannot be read: .*/config: .*\. Choose another group, or delete that znode",
        ),
    ],
    ids=["consumers", "garbage"],
)
def test_a_generic_member_does_not_join_a_group_of_consumers(config: bytes, refusal: str) -> None:
    """
    The settings of a group of consumers refuse a program, which has written nothing.

    Only settings that no member can read may be deleted.
    """
    with programs_at_rest(members=0) as world:
        world.operator.create(world.layout.config, config, makepath=True)
        stopped: list[Exception] = []
        world.checker.stopped = lambda program, error: stopped.append(error)  # type: ignore[method-assign]
        before = set(world.ensemble.tree.znodes)
        world.join()
        world.run_for(0.9)
        (error,) = stopped
        assert isinstance(error, GroupConfigError)
        assert re.match(refusal, str(error))
        assert set(world.ensemble.tree.znodes) == before


@pytest.mark.parametrize("path", ["/consumers/g/ids/java", "/consumers/g/offsets/t", "/kiel/groups/g/members/m"])
def test_a_generic_member_does_not_take_the_name_of_other_clients(path: str) -> None:
    """Groups of other clients have no settings. Tools would show programs in place of their offsets and members."""
    with programs_at_rest(members=0) as world:
        world.operator.create(path, b"", makepath=True)
        stopped: list[Exception] = []
        world.checker.stopped = lambda program, error: stopped.append(error)  # type: ignore[method-assign]
        before = set(world.ensemble.tree.znodes)
        world.join()
        world.run_for(0.9)
        (error,) = stopped
        assert str(error) == "group g: its members are consumers; choose another group"
        assert set(world.ensemble.tree.znodes) == before


def test_a_member_of_another_type_does_not_join(world: ProgramWorld) -> None:
    """A program of another type is refused, whatever protocols it knows."""
    stopped: list[Exception] = []
    world.checker.stopped = lambda program, error: stopped.append(error)  # type: ignore[method-assign]
    Program.protocol_type = "other"
    try:
        world.join()
        world.run_for(0.9)
    finally:
        Program.protocol_type = "programs"
    assert "its members are of the type 'programs', and this one is of the type 'other'" in str(stopped[0])


def test_a_consumer_does_not_join_a_group_of_programs() -> None:
    """A consumer cannot read the settings of a group of programs, and stops; a znode of a program is unknown to it."""
    with at_rest(members=1, topics=(2,)) as world:
        settings = b'{"version":2,"protocol_type":"programs"}'
        world.operator.set(world.layout.config, settings)
        world.history.forbids_joining = True
        before = world.ensemble.tree.children(world.layout.members)
        world.join(world.topics)
        world.run_for(10.0)
        assert world.ensemble.tree.children(world.layout.members) == before
        state = RoundState(generation=1, state=DONE, leader="m").encode()
        with pytest.raises(Exception, match="version"):
            MemberInfo.parse("m", state, "/path with another version")
