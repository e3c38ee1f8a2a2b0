"""One member of a group that brokers coordinate: cases of each rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiel_groups.group.member_state import (
    Answered,
    Assign,
    Assigned,
    AssignFailed,
    CoordinatorCode,
    CoordinatorFound,
    Drain,
    Drained,
    Effect,
    Ended,
    Event,
    Fail,
    FindCoordinator,
    FindFailed,
    GivenUp,
    GroupRequest,
    Holding,
    Join,
    JoinAnswered,
    Leave,
    LeaveAnswered,
    LeaveAtOnce,
    Lose,
    MemberState,
    Open,
    Pause,
    PauseOver,
    Phase,
    Reaction,
    Rejoin,
    RequestEnded,
    RequestStarted,
    SendLeave,
    Sync,
    SyncAnswered,
    reaction_to,
    step,
)
from tests.helpers.coordinated_states import (
    AGAIN,
    BUSY,
    CLOSING,
    CODES,
    FOUND,
    GONE,
    HAPPY,
    JOINED,
    LEFT,
    NAMED,
    NEW,
    REBALANCING,
    WAITING,
)

pytestmark = pytest.mark.unit

C = CoordinatorCode
UNJOINED, JOINING, SYNCING, STABLE, LEAVING, ENDED = Phase
NOTHING, ASSIGNED, DRAINING = Holding
HEARTBEAT, COMMIT, FETCH = GroupRequest.HEARTBEAT, GroupRequest.COMMIT, GroupRequest.FETCH


def beat(code: int | None, generation: int = 5, member_id: str = "m") -> Answered:
    return Answered(HEARTBEAT, code, generation, member_id)


def joining(state: MemberState, member_id: str, **changes: object) -> MemberState:
    """Return a state in which the next join is sent."""
    joined = replace(state, phase=JOINING, join=state.join + 1, rejoin_due=False, member_id=member_id)
    return replace(joined, **changes)  # type: ignore[arg-type]


CASES: dict[str, tuple[MemberState, Event, MemberState, tuple[Effect, ...]]] = {
    # Rule 1: the coordinator
    "a member that is to join looks for the coordinator": (
        NEW,
        Rejoin(),
        replace(NEW, rejoin_due=True, discovery=1, is_discovering=True),
        (FindCoordinator(1),),
    ),
    "a member that knows the coordinator joins": (FOUND, Rejoin(), joining(FOUND, ""), (Join(1, ""),)),
    "the coordinator that was found is joined": (
        replace(NEW, rejoin_due=True, discovery=1, is_discovering=True),
        CoordinatorFound(1, 1),
        joining(FOUND, ""),
        (Join(1, ""),),
    ),
    "a late answer to an earlier question is ignored": (
        replace(NEW, rejoin_due=True, discovery=2, is_discovering=True),
        CoordinatorFound(1, 1),
        replace(NEW, rejoin_due=True, discovery=2, is_discovering=True),
        (),
    ),
    "a late failure of an earlier question is ignored": (
        replace(NEW, rejoin_due=True, discovery=2, is_discovering=True),
        FindFailed(1, None),
        replace(NEW, rejoin_due=True, discovery=2, is_discovering=True),
        (),
    ),
    "a search that failed is repeated after a pause": (
        replace(NEW, rejoin_due=True, discovery=1, is_discovering=True),
        FindFailed(1, C.NOT_AVAILABLE),
        replace(NEW, rejoin_due=True, discovery=1, pause=1, is_pausing=True, failures=1),
        (Pause(1, 1),),
    ),
    "after the pause, the next search begins": (
        replace(NEW, rejoin_due=True, discovery=1, pause=1, is_pausing=True, failures=1),
        PauseOver(1),
        replace(NEW, rejoin_due=True, discovery=2, is_discovering=True, pause=1, failures=1),
        (FindCoordinator(2),),
    ),
    "the end of an earlier pause is ignored": (
        replace(NEW, rejoin_due=True, discovery=1, pause=2, is_pausing=True, failures=2),
        PauseOver(1),
        replace(NEW, rejoin_due=True, discovery=1, pause=2, is_pausing=True, failures=2),
        (),
    ),
    "a member without rights to the group stops": (
        replace(NEW, rejoin_due=True, discovery=1, is_discovering=True),
        FindFailed(1, C.GROUP_AUTHORIZATION_FAILED),
        replace(NEW, phase=ENDED, rejoin_due=True, discovery=1),
        (Fail(GroupRequest.FIND, C.GROUP_AUTHORIZATION_FAILED), Ended()),
    ),
    "a membership continues while its coordinator is looked for": (
        HAPPY,
        beat(C.NOT_COORDINATOR),
        replace(HAPPY, coordinator=None, discovery=2, is_discovering=True),
        (FindCoordinator(2),),
    ),
    "a confirmed membership forgets earlier failures": (replace(HAPPY, failures=7), beat(0), HAPPY, ()),
    "an answer of a coordinator that loads confirms nothing": (
        replace(HAPPY, failures=7),
        beat(C.LOADING),
        replace(HAPPY, failures=7),
        (),
    ),
    # Rules 2 and 3: what comes before a join
    "a rebalance drains the partitions": (HAPPY, beat(C.REBALANCE_IN_PROGRESS), REBALANCING, (Drain(),)),
    "a second notice of the rebalance drains nothing again": (
        REBALANCING,
        beat(C.REBALANCE_IN_PROGRESS),
        REBALANCING,
        (),
    ),
    "drained partitions are followed by the join": (
        REBALANCING,
        Drained(),
        joining(HAPPY, "m", holding=NOTHING),
        (Join(2, "m"),),
    ),
    "a request in flight is counted": (HAPPY, RequestStarted(), replace(HAPPY, in_flight=1), ()),
    "a join waits for requests in flight": (replace(REBALANCING, in_flight=1), Drained(), BUSY, ()),
    "a join follows the last request in flight": (
        BUSY,
        RequestEnded(),
        joining(HAPPY, "m", holding=NOTHING),
        (Join(2, "m"),),
    ),
    "removal loses the partitions, and the next join has no id": (
        HAPPY,
        beat(C.UNKNOWN_MEMBER),
        joining(GONE, ""),
        (Lose(), Join(2, "")),
    ),
    "removal during a drain loses the partitions": (
        REBALANCING,
        Answered(COMMIT, C.ILLEGAL_GENERATION, 5, "m"),
        joining(GONE, ""),
        (Lose(), Join(2, "")),
    ),
    "removal after a drain loses nothing": (
        BUSY,
        Answered(COMMIT, C.UNKNOWN_MEMBER, 5, "m"),
        replace(GONE, rejoin_due=True, in_flight=1),
        (),
    ),
    # Rule 4: the answer to a join
    "a leader assigns": (
        WAITING,
        JoinAnswered(1, 0, 5, "m", is_leader=True),
        JOINED,
        (Assign(1),),
    ),
    "a follower syncs": (WAITING, JoinAnswered(1, 0, 5, "m"), JOINED, (Sync(1),)),
    "an answer to an earlier join is ignored": (
        replace(WAITING, join=2),
        JoinAnswered(1, 0, 5, "m"),
        replace(WAITING, join=2),
        (),
    ),
    "an unknown member id is left out at once": (
        replace(WAITING, member_id="m", generation=5),
        JoinAnswered(1, C.UNKNOWN_MEMBER),
        joining(FOUND, "", join=2),
        (Join(2, ""),),
    ),
    "a refusal even without a member id is followed by a pause": (
        WAITING,
        JoinAnswered(1, C.UNKNOWN_MEMBER),
        replace(FOUND, rejoin_due=True, join=1, pause=1, is_pausing=True, failures=1),
        (Pause(1, 1),),
    ),
    "a new member that the coordinator has named joins at once with its id": (
        WAITING,
        JoinAnswered(1, C.MEMBER_ID_REQUIRED, member_id="m"),
        NAMED,
        (Join(2, "m"),),
    ),
    "a member that is named again joins after a pause": (
        NAMED,
        JoinAnswered(2, C.MEMBER_ID_REQUIRED, member_id="n"),
        replace(FOUND, rejoin_due=True, member_id="n", join=2, pause=1, is_pausing=True, failures=1),
        (Pause(1, 1),),
    ),
    "a member that is named without an id joins after a pause": (
        WAITING,
        JoinAnswered(1, C.MEMBER_ID_REQUIRED),
        replace(FOUND, rejoin_due=True, join=1, pause=1, is_pausing=True, failures=1),
        (Pause(1, 1),),
    ),
    "a new id ends a former generation": (
        replace(WAITING, member_id="m", generation=5),
        JoinAnswered(1, C.MEMBER_ID_REQUIRED, member_id="n"),
        replace(FOUND, rejoin_due=True, member_id="n", join=1, pause=1, is_pausing=True, failures=1),
        (Pause(1, 1),),
    ),
    "an id that the coordinator has just given and does not know is left out after a pause": (
        NAMED,
        JoinAnswered(2, C.UNKNOWN_MEMBER),
        replace(FOUND, rejoin_due=True, join=2, pause=1, is_pausing=True, failures=1),
        (Pause(1, 1),),
    ),
    "a member that was named has its generation after the second join": (
        NAMED,
        JoinAnswered(2, 0, 5, "m"),
        replace(JOINED, join=2),
        (Sync(2),),
    ),
    "a join that failed keeps the member's id": (
        replace(WAITING, member_id="m", generation=5),
        JoinAnswered(1, C.LOADING),
        AGAIN,
        (Pause(1, 1),),
    ),
    "a join without an answer looks for the coordinator after a pause": (
        replace(WAITING, member_id="m", generation=5),
        JoinAnswered(1, None),
        replace(AGAIN, coordinator=None),
        (Pause(1, 1),),
    ),
    "a refused join is not repeated": (
        WAITING,
        JoinAnswered(1, C.INCONSISTENT_PROTOCOL),
        replace(WAITING, phase=ENDED, rejoin_due=True),
        (Fail(GroupRequest.JOIN, C.INCONSISTENT_PROTOCOL), Ended()),
    ),
    # Rules 5 and 6: the sync
    "the assignments of all members are followed by the sync": (JOINED, Assigned(1), JOINED, (Sync(1),)),
    "the assignments of an earlier join are not sent": (
        replace(JOINED, join=2),
        Assigned(1),
        replace(JOINED, join=2),
        (),
    ),
    "a leader whose assignor failed leaves": (
        JOINED,
        AssignFailed(1),
        replace(JOINED, phase=LEAVING, is_leaving=True),
        (SendLeave("m"),),
    ),
    "a failed assignment of an earlier join is ignored": (
        replace(JOINED, join=2),
        AssignFailed(1),
        replace(JOINED, join=2),
        (),
    ),
    "the assignment is opened": (JOINED, SyncAnswered(1, 0), HAPPY, (Open(),)),
    "a rebalance during the sync is joined with the same id": (
        JOINED,
        SyncAnswered(1, C.REBALANCE_IN_PROGRESS),
        joining(JOINED, "m"),
        (Join(2, "m"),),
    ),
    "a sync of an unknown member is followed by a join without an id": (
        JOINED,
        SyncAnswered(1, C.UNKNOWN_MEMBER),
        joining(FOUND, "", join=2),
        (Join(2, ""),),
    ),
    "after any other failure of a sync, the member joins again": (JOINED, SyncAnswered(1, 8), AGAIN, (Pause(1, 1),)),
    "a new subscription during a join takes effect after it": (
        WAITING,
        Rejoin(),
        replace(WAITING, rejoin_due=True),
        (),
    ),
    "a new subscription during a join gives the assignment back at once": (
        replace(JOINED, rejoin_due=True),
        SyncAnswered(1, 0),
        REBALANCING,
        (Open(), Drain()),
    ),
    # Rule 7: answers of the past
    "a late answer of an earlier generation is ignored": (HAPPY, beat(C.UNKNOWN_MEMBER, generation=4), HAPPY, ()),
    "the answer to a former sync is ignored": (
        replace(JOINED, join=2),
        SyncAnswered(1, 0),
        replace(JOINED, join=2),
        (),
    ),
    "a late answer for an earlier member id is ignored": (HAPPY, beat(C.UNKNOWN_MEMBER, member_id="old"), HAPPY, ()),
    "a late answer during a join is ignored": (
        replace(WAITING, member_id="m", generation=5),
        beat(C.UNKNOWN_MEMBER),
        replace(WAITING, member_id="m", generation=5),
        (),
    ),
    # Rule 8: the end
    "a member that never joined just ends": (FOUND, Leave(), replace(FOUND, phase=ENDED, is_leaving=True), (Ended(),)),
    "a member that joins for the first time just ends": (
        WAITING,
        Leave(),
        replace(WAITING, phase=ENDED, is_leaving=True),
        (Ended(),),
    ),
    "a member that was named leaves during its first join": (
        NAMED,
        Leave(),
        replace(NAMED, phase=LEAVING, is_leaving=True),
        (SendLeave("m"),),
    ),
    "a leaving member drains its partitions": (HAPPY, Leave(), CLOSING, (Drain(),)),
    "a leaving member leaves when its partitions are drained": (CLOSING, Drained(), LEFT, (SendLeave("m"),)),
    "a member that joins again leaves at once": (
        replace(WAITING, member_id="m", generation=5),
        Leave(),
        replace(WAITING, phase=LEAVING, member_id="m", generation=5, is_leaving=True),
        (SendLeave("m"),),
    ),
    "a member in a pause leaves with its generation": (
        AGAIN,
        Leave(),
        replace(AGAIN, phase=LEAVING, is_leaving=True),
        (SendLeave("m"),),
    ),
    "the answer to the leave request ends the member": (LEFT, LeaveAnswered(), replace(LEFT, phase=ENDED), (Ended(),)),
    "a removed member has nothing to leave": (
        CLOSING,
        beat(C.UNKNOWN_MEMBER),
        replace(GONE, phase=ENDED, rejoin_due=True, is_leaving=True),
        (Lose(), Ended()),
    ),
    "a leaving member looks for the coordinator for its last commit": (
        CLOSING,
        Answered(COMMIT, None, 5, "m"),
        replace(CLOSING, coordinator=None, discovery=2, is_discovering=True),
        (FindCoordinator(2),),
    ),
    "a leaving member looks for no coordinator for the leave request": (
        replace(CLOSING, coordinator=None, discovery=2, is_discovering=True),
        Drained(),
        replace(LEFT, phase=ENDED, coordinator=None, discovery=2, is_discovering=True),
        (Ended(),),
    ),
    "a member that leaves at once loses its partitions": (HAPPY, LeaveAtOnce(), LEFT, (Lose(), SendLeave("m"))),
    "a member that leaves at once does not wait for its drain": (
        CLOSING,
        LeaveAtOnce(),
        LEFT,
        (Lose(), SendLeave("m")),
    ),
    "a leave under way is not repeated": (LEFT, LeaveAtOnce(), LEFT, ()),
    # The watchdog
    "a membership that was given up is lost, and the member does not join": (
        HAPPY,
        GivenUp(),
        GONE,
        (Lose(),),
    ),
    "a join that was given up is not continued": (
        replace(WAITING, rejoin_due=True),
        GivenUp(),
        replace(FOUND, join=1),
        (),
    ),
    "a first join that was given up loses its id": (NAMED, GivenUp(), replace(FOUND, join=2), ()),
    "a member that was given up joins on request": (GONE, Rejoin(), joining(GONE, ""), (Join(2, ""),)),
}


@pytest.mark.parametrize("case", CASES)
def test_rule(case: str) -> None:
    """Each case is one step of a member: an event, the state after it, and the effects in order."""
    before, event, after, effects = CASES[case]
    assert step(before, event) == (after, effects)


@pytest.mark.parametrize("tries", [1, 5])
def test_a_rebalance_is_prepared_once(tries: int) -> None:
    """However many tries the join and the sync of a rebalance take, the partitions are drained once, and lost never."""
    state, prepared = step(HAPPY, beat(C.REBALANCE_IN_PROGRESS))
    state, effects = step(state, Drained())
    prepared += effects
    for _ in range(tries):
        for event in (
            JoinAnswered(state.join, C.LOADING),
            PauseOver(state.pause + 1),
            JoinAnswered(state.join + 1, 0, 6, "m"),
            SyncAnswered(state.join + 1, C.UNKNOWN_MEMBER),
        ):
            state, effects = step(state, event)
            prepared += effects
        assert state.phase is JOINING
    state, effects = step(state, JoinAnswered(state.join, 0, 7, "n"))
    state, more = step(state, SyncAnswered(state.join, 0))
    prepared += effects + more
    assert [type(effect) for effect in prepared if isinstance(effect, Drain | Lose | Open)] == [Drain, Open]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("request_", [HEARTBEAT, COMMIT, FETCH], ids=lambda request: request.value)
def test_each_answer_beside_the_membership(request_: GroupRequest, code: int | None) -> None:
    """Each reaction to a heartbeat, a commit or a read of offsets has its effects, whatever the code."""
    expected: dict[Reaction, tuple[Effect, ...]] = {
        Reaction.PROCEED: (),
        Reaction.FIND: (FindCoordinator(2),),
        Reaction.REJOIN: (Drain(),),
        Reaction.LOST: (Lose(), Join(2, "")),
        Reaction.FAIL: (Lose(), Fail(request_, code or 0), Ended()),
    }
    after, effects = step(HAPPY, Answered(request_, code, 5, "m"))
    assert effects == expected[reaction_to(request_, code)]
    assert (after.phase is ENDED) is any(isinstance(effect, Ended) for effect in effects)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("request_", [GroupRequest.JOIN, GroupRequest.SYNC], ids=lambda request: request.value)
def test_each_answer_to_a_join_and_a_sync(request_: GroupRequest, code: int | None) -> None:
    """Each reaction to a join or a sync has its effects, whatever the code."""
    is_join = request_ is GroupRequest.JOIN
    before = replace(WAITING, member_id="m", generation=5) if is_join else JOINED
    expected: dict[Reaction, tuple[Effect, ...]] = {
        Reaction.PROCEED: (Sync(1),) if is_join else (Open(),),
        Reaction.WAIT: (Pause(1, 1),),
        Reaction.FIND: (Pause(1, 1),),
        Reaction.REJOIN: (Join(2, "m"),),
        Reaction.TAKE_ID: (Pause(1, 1),),
        Reaction.NEW_ID: (Join(2, ""),),
        Reaction.FAIL: (Fail(request_, code or 0), Ended()),
    }
    reaction = reaction_to(request_, code)
    after, effects = step(before, JoinAnswered(1, code, 6, "m") if is_join else SyncAnswered(1, code))
    assert effects == expected[reaction]
    assert (after.coordinator is None) is (reaction is Reaction.FIND)


@pytest.mark.parametrize(
    ("state", "before", "while_draining"),
    [
        (NEW, False, False),
        (WAITING, False, False),
        (JOINED, False, False),
        (HAPPY, True, True),
        (replace(HAPPY, coordinator=None), False, False),
        (REBALANCING, False, True),
        (CLOSING, True, True),
        (replace(CLOSING, rejoin_due=True), False, True),
        (LEFT, False, False),
    ],
)
def test_heartbeats_are_sent_while_they_count(state: MemberState, before: bool, while_draining: bool) -> None:
    """A stable member beats. Before JoinGroup v1, its heartbeats do not count from the moment a rejoin is due."""
    assert state.beats(while_draining=False) is before
    assert state.beats(while_draining=True) is while_draining


@pytest.mark.parametrize(
    ("state", "is_member", "may_commit"),
    [
        (NEW, False, False),
        (NAMED, False, False),
        (JOINED, True, False),
        (HAPPY, True, True),
        (REBALANCING, True, True),
        (BUSY, True, False),
        (AGAIN, True, False),
        (replace(HAPPY, phase=ENDED), False, False),
    ],
)
def test_commits_are_held_back_between_join_and_sync(state: MemberState, is_member: bool, may_commit: bool) -> None:
    """Only a member with the assignment of its generation may commit; it is a member from the join on."""
    assert (state.is_member, state.may_commit) == (is_member, may_commit)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (NEW, None),
        (WAITING, None),
        (NAMED, 1),
        (replace(NAMED, coordinator=None), None),
        (HAPPY, 1),
        (LEFT, 1),
        (replace(LEFT, phase=ENDED), None),
    ],
)
def test_a_member_with_an_id_leaves_from_its_coordinator(state: MemberState, expected: int | None) -> None:
    """A member without an id, without a known coordinator or after its end has nothing to leave."""
    assert state.leaves_from == expected
