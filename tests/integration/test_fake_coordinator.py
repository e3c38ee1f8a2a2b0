"""The fake coordinator answers like those of real brokers: every test runs on both, as 0.9.0.1 and as 3.9.1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.embedded.releases import kafka_release
from kiel_groups.wire.group_requests import GroupProtocol, ListedGroup
from tests.helpers.fake_and_real_coordinators import CoordinatorBackend, FakeCoordinators, RealCoordinators
from tests.helpers.raw_members import SESSION_MS, RawGroup, RawMember
from tests.helpers.servers import played_kafkas

pytestmark = pytest.mark.integration

#: The releases that the fake imitates.
RELEASES = ("0.9.0.1", "3.9.1")
SESSION_S = SESSION_MS / 1000
#: How much later than a timeout its effect may be seen, in seconds.
LATE_S = 4.0


@pytest.fixture(params=[kind + release for release in played_kafkas(RELEASES) for kind in ("fake ", "real ")])
def backend(
    request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster], unique: Callable[[str], str]
) -> Iterator[CoordinatorBackend]:
    """Provide a coordinator: the fake one, or that of a shared cluster."""
    kind, release = request.param.split()
    early = release.startswith("0.9")
    if kind == "fake":
        made: CoordinatorBackend = FakeCoordinators(early=early)
    else:
        zookeeper = "3.9.5" if kafka_release(release).uses_zookeeper else None
        cluster, topic = shared_clusters(zookeeper, release), unique("topic")
        asyncio.run(cluster.create_topic(topic, 1))
        made = RealCoordinators(cluster.brokers[0], topic, early=early)
    yield made
    made.close()


@pytest.fixture
def group(backend: CoordinatorBackend, unique: Callable[[str], str]) -> RawGroup:
    return RawGroup(backend, unique("group"))


def test_the_first_member_leads(group: RawGroup) -> None:
    """It learns its id, its generation, and what it has joined with itself."""
    member = group.member(metadata=b"mine")
    member.join()
    answer = member.joined()
    assert (answer.error.number, answer.generation, answer.protocol) == (0, 1, "range")
    assert answer.leader_id == answer.member_id
    assert answer.member_id.startswith("caller-")
    assert answer.members == {answer.member_id: b"mine"}
    member.sync({member.id: b"assignment"})
    assert member.synced() == (0, b"assignment")
    assert member.beat() == 0


def test_a_member_that_the_leader_does_not_name_gets_no_bytes(group: RawGroup) -> None:
    """The assignment is empty, without an error."""
    member = group.member()
    member.join()
    member.joined()
    member.sync({"another": b"x"})
    assert member.synced() == (0, b"")


def test_generations_of_an_emptied_group(group: RawGroup) -> None:
    """0.9 starts again at 1; later, the generation in which the group is empty counts, too."""
    generations = []
    for _ in range(3):
        member = group.member()
        group.settle(member)
        generations.append(member.generation)
        assert member.leave() == 0
    assert generations == ([1, 1, 1] if group.backend.early else [1, 3, 5])


def test_a_rebalance_from_the_join_of_another_member_to_the_assignments(group: RawGroup) -> None:
    """The present member is notified by a heartbeat, may commit until it has joined again, and not before its sync."""
    first, second = group.member(metadata=b"1"), group.member(metadata=b"2")
    group.settle(first)
    second.join()
    group.backend.run_for(0.5)
    assert second.is_joining
    assert first.beat() == 27
    assert (first.commit(7), first.stored()) == (0, (7, 0))
    first.join()
    leader, follower = first.joined(), second.joined()
    assert (leader.generation, follower.generation) == (2, 2)
    assert leader.members == {first.id: b"1", second.id: b"2"}
    assert (follower.members, follower.leader_id) == ({}, first.id)
    assert (first.commit(8), first.stored()) == (27, (7, 0))
    assert first.beat() == (27 if group.backend.early else 0)
    second.sync()
    group.backend.run_for(0.3)
    first.sync({first.id: b"one", second.id: b"two"})
    assert (first.synced(), second.synced()) == ((0, b"one"), (0, b"two"))
    assert (first.beat(), second.beat()) == (0, 0)


def test_a_former_generation(group: RawGroup) -> None:
    """Its heartbeats and commits are refused, and a sync, too."""
    first, second = group.member(), group.member()
    group.settle(first, second)
    assert first.beat(first.generation - 1) == 22
    assert first.commit(1, first.generation - 1) == 22
    first.generation -= 1
    first.sync()
    assert first.synced() == (22, b"")


def test_strangers(group: RawGroup) -> None:
    """A member id that the group does not have is unknown to every request."""
    member, stranger = group.member(), group.member()
    group.settle(member)
    stranger.id, stranger.generation = "nobody", member.generation
    assert (stranger.beat(), stranger.commit(1), stranger.leave()) == (25, 25, 25)
    stranger.sync()
    assert stranger.synced() == (25, b"")
    stranger.join()
    assert stranger.joined().error.number == 25


def test_a_group_that_does_not_exist(group: RawGroup) -> None:
    """A stranger's join, heartbeat, leave and sync are refused; a commit is one of an illegal generation."""
    stranger = group.member()
    stranger.id, stranger.generation = "nobody", 1
    assert (stranger.beat(), stranger.leave(), stranger.commit(1)) == (25, 25, 22)
    stranger.join()
    assert stranger.joined().error.number == 25
    assert stranger.described().state == "Dead"


def test_commits_without_a_generation(group: RawGroup) -> None:
    """The coordinator takes them while the group has no members, and refuses them while it has."""
    member, outsider = group.member(), group.member()
    assert outsider.stored() == (-1, 0)
    assert (outsider.commit(3, -1), outsider.stored()) == (0, (3, 0))
    group.settle(member)
    assert (outsider.commit(4, -1), outsider.stored()) == (25, (3, 0))
    assert member.leave() == 0
    assert (outsider.commit(5, -1), outsider.stored()) == (0, (5, 0))


def test_a_follower_that_joins_again_unchanged_keeps_its_generation(group: RawGroup) -> None:
    """It is answered at once, and no other member has to rejoin."""
    leader, follower = group.member(), group.member()
    group.settle(leader, follower)
    follower.join()
    assert (follower.joined().generation, follower.joined().members) == (2, {})
    assert leader.beat() == 0
    follower.sync()
    assert follower.synced() == (0, b"1")


def test_a_follower_that_joins_again_with_a_change_causes_a_rebalance(group: RawGroup) -> None:
    """The leader learns of it by its heartbeat, and then what the follower has joined with."""
    leader, follower = group.member(), group.member()
    group.settle(leader, follower)
    follower.protocols = (GroupProtocol("range", b"changed"),)
    follower.join()
    group.backend.run_for(0.3)
    assert (leader.beat(), follower.is_joining) == (27, True)
    leader.join()
    assert leader.joined().members[follower.id] == b"changed"


def test_a_leader_that_joins_again_causes_a_rebalance(group: RawGroup) -> None:
    """Its metadata is the same as before."""
    leader, follower = group.member(), group.member()
    group.settle(leader, follower)
    leader.join()
    group.backend.run_for(0.3)
    assert (follower.beat(), leader.is_joining) == (27, True)
    follower.join()
    assert (leader.joined().generation, follower.joined().generation) == (3, 3)


def test_a_join_between_join_and_sync_has_the_others_join_again(group: RawGroup) -> None:
    """A member that waits for its assignment is notified by the answer to its sync."""
    leader, follower, late = group.member(), group.member(), group.member()
    leader.join()
    leader.joined()
    follower.join()
    group.backend.run_for(0.3)
    leader.join()
    assert (leader.joined().generation, follower.joined().generation) == (2, 2)
    follower.sync()
    group.backend.run_for(0.3)
    late.join()
    assert follower.synced() == (27, b"")
    leader.sync({})
    assert leader.synced() == (27, b"")
    for member in (leader, follower):
        member.join()
    assert {member.joined().generation for member in (leader, follower, late)} == {3}


def test_a_join_that_is_repeated_before_the_sync_gets_the_same_answer(group: RawGroup) -> None:
    """A member that has not received the first answer joins the same generation."""
    member = group.member()
    member.join()
    first = member.joined()
    member.join()
    again = member.joined()
    assert (again.generation, again.members) == (1, first.members)


def test_protocols(group: RawGroup) -> None:
    """The coordinator chooses one that all members offer, and refuses a member without one, or of another type."""
    first, second, third = group.member("a", "b"), group.member("c", "b"), group.member("a")
    group.settle(first, second)
    third.join()
    assert third.joined().error.number == 23
    other = group.member("b")
    other.type = "connect"
    other.join()
    assert other.joined().error.number == 23
    assert first.described().protocol == "b"


def test_the_protocol_with_the_most_votes(group: RawGroup) -> None:
    """Each member votes for its first protocol among those that all members offer."""
    members = [group.member("a", "b"), group.member("b", "a"), group.member("b", "a")]
    group.settle(*members)
    assert members[0].described().protocol == "b"


@pytest.mark.parametrize("session_ms", [5_999, 30_001])
def test_session_timeouts_that_are_refused(group: RawGroup, session_ms: int) -> None:
    """Six seconds are the least; 0.9 takes 30 s at most, and later releases half an hour."""
    member = group.member()
    member.session_ms = session_ms
    member.join()
    taken = session_ms > SESSION_MS and not group.backend.early
    assert member.joined().error.number == (0 if taken else 26)


def test_a_group_without_a_name(backend: CoordinatorBackend) -> None:
    """Its join is refused."""
    member = RawMember(backend, "")
    member.join()
    assert member.joined().error.number == 24


def test_an_expired_session(group: RawGroup) -> None:
    """The member is removed when it has not beaten for its session timeout; 0.9 tells it so after the rebalance."""
    lasting, silent = group.member(), group.member()
    joined_s = group.backend.now_s()
    group.settle(lasting, silent)
    began_s = group.backend.now_s()
    while (code := lasting.beat()) == 0:
        assert group.backend.now_s() < began_s + SESSION_S + LATE_S
        group.backend.run_for(0.2)
    assert code == 27
    assert group.backend.now_s() >= joined_s + SESSION_S - 1.0
    assert silent.beat() == (27 if group.backend.early else 25)
    lasting.join()
    assert lasting.joined().members.keys() == {lasting.id}
    lasting.sync({lasting.id: b"all"})
    assert lasting.synced() == (0, b"all")
    assert (silent.beat(), silent.commit(1), silent.leave()) == (25, 25, 25)


def test_heartbeats_renew_a_session_and_commits_do_so_after_0_9(
    backend: CoordinatorBackend, unique: Callable[[str], str]
) -> None:
    """A member that only beats stays for longer than its session timeout; one that only commits does not in 0.9."""
    members = []
    for _ in range(2):
        group = RawGroup(backend, unique("group"))
        members.append(group.member())
        group.settle(members[-1])
    beating, committing = members
    # Often, because a pause of the machine for some seconds delays each of them.
    until_s, code = backend.now_s() + SESSION_S * 1.4, 0
    while backend.now_s() < until_s:
        backend.run_for(0.5)
        assert beating.beat() == 0
        code = committing.commit(1)
        assert backend.early or code == 0
    assert code == (22 if backend.early else 0)


def test_a_member_that_does_not_join_again_is_out_although_it_beats(group: RawGroup) -> None:
    """With JoinGroup v0, the rebalance waits for the longest session timeout."""
    busy, newcomer = group.member(), group.member()
    group.settle(busy)
    began_s = group.backend.now_s()
    newcomer.join()
    group.backend.run_for(0.3)
    while newcomer.is_joining:
        assert group.backend.now_s() < began_s + SESSION_S + LATE_S
        assert busy.beat() in (25, 27)
        group.backend.run_for(0.2)
    assert newcomer.joined().members.keys() == {newcomer.id}
    assert group.backend.now_s() >= began_s + SESSION_S - 1.0


def test_a_rebalance_timeout(group: RawGroup) -> None:
    """With JoinGroup v1, the rebalance waits for the longest rebalance timeout, for members that beat meanwhile."""
    if group.backend.early:
        pytest.skip("0.9 has no JoinGroup v1")
    busy, newcomer = group.member(), group.member()
    busy.rebalance_ms = newcomer.rebalance_ms = 7_500
    group.settle(busy)
    began_s = group.backend.now_s()
    newcomer.join()
    group.backend.run_for(0.3)
    while newcomer.is_joining:
        assert group.backend.now_s() < began_s + 7.5 + LATE_S
        assert busy.beat() in (25, 27)
        group.backend.run_for(0.2)
    assert group.backend.now_s() >= began_s + 7.0
    assert newcomer.joined().members.keys() == {newcomer.id}


def test_leaving_during_a_join(group: RawGroup) -> None:
    """0.9 does not answer the join any more; later, the member is unknown."""
    first, second, third = group.member(), group.member(), group.member()
    group.settle(first, second)
    third.join()
    group.backend.run_for(0.3)
    second.join()
    group.backend.run_for(0.3)
    assert second.leave() == 0
    group.backend.run_for(0.3)
    first.join()
    assert first.joined().members.keys() == {first.id, third.joined().member_id}
    if group.backend.early:
        assert second.is_joining
    else:
        assert second.joined().error.number == 25


@pytest.fixture
def naming(group: RawGroup) -> RawGroup:
    """Provide a group whose coordinator knows JoinGroup v4."""
    if group.backend.early:
        pytest.skip("0.9 has no JoinGroup v4")
    return group


def named_first(group: RawGroup) -> RawMember:
    """Return a new member that the coordinator has named, and that has not joined with its id."""
    member = group.member()
    member.is_named_first = True
    member.join()
    answer = member.joined()
    assert (answer.error.number, answer.generation, answer.members) == (79, -1, {})
    assert answer.member_id.startswith("caller-")
    return member


def test_a_member_that_is_named_first(naming: RawGroup) -> None:
    """With JoinGroup v4, a new member gets its id at once. It is no member until it has joined with the id."""
    member = named_first(naming)
    named = member.id
    assert (member.beat(), member.commit(1, 1), member.described().members) == (25, 25, ())
    member.join()
    answer = member.joined()
    assert (answer.error.number, answer.generation, answer.member_id, answer.leader_id) == (0, 1, named, named)
    member.sync({named: b"assignment"})
    assert member.synced() == (0, b"assignment")
    member.join()
    assert member.joined().generation == 2


def test_a_named_member_leaves_before_it_has_joined(naming: RawGroup) -> None:
    """The coordinator forgets its id."""
    member = named_first(naming)
    assert (member.leave(), member.leave()) == (0, 25)
    member.join()
    assert member.joined().error.number == 25


def test_a_named_member_leaves_during_its_first_join(naming: RawGroup) -> None:
    """The join is refused, and the others need not wait for the member."""
    present = naming.member()
    naming.settle(present)
    member = named_first(naming)
    member.join()
    naming.backend.run_for(0.3)
    assert (present.beat(), member.is_joining) == (27, True)
    assert member.leave() == 0
    assert member.joined().error.number == 25
    present.join()
    assert present.joined().members.keys() == {present.id}


def test_a_rebalance_waits_for_a_named_member(naming: RawGroup) -> None:
    """It begins with the join of another one, and ends when the named one has joined or left."""
    present = naming.member()
    naming.settle(present)
    leaving, joining = named_first(naming), named_first(naming)
    assert present.beat() == 0
    present.join()
    naming.backend.run_for(0.5)
    assert (present.is_joining, leaving.leave()) == (True, 0)
    naming.backend.run_for(0.5)
    assert present.is_joining
    joining.join()
    assert present.joined().members.keys() == {present.id, joining.joined().member_id}


def test_a_rebalance_waits_for_the_session_of_a_named_member(naming: RawGroup) -> None:
    """Its session begins with the first answer; after that, its id is unknown."""
    present = naming.member()
    present.rebalance_ms = 60_000
    naming.settle(present)
    member, began_s = named_first(naming), naming.backend.now_s()
    present.join()
    assert present.joined().members.keys() == {present.id}
    assert SESSION_S - 1.0 <= naming.backend.now_s() - began_s <= SESSION_S + LATE_S
    member.join()
    assert member.joined().error.number == 25


def test_leaving(group: RawGroup) -> None:
    """The others rebalance at once, and the former member is a stranger."""
    first, second = group.member(), group.member()
    group.settle(first, second)
    assert second.leave() == 0
    assert (first.beat(), second.leave()) == (27, 25)
    assert second.beat() == (27 if group.backend.early else 25)
    first.join()
    assert (first.joined().generation, first.joined().members.keys()) == (3, {first.id})


def test_descriptions(group: RawGroup) -> None:
    """They say the state, and of a stable group the protocol and what each member has."""
    first, second = group.member(metadata=b"1"), group.member(metadata=b"2")
    group.settle(first)
    stable = first.described()
    assert (stable.state, stable.protocol_type, stable.protocol) == ("Stable", "test", "range")
    assert [(each.member_id, each.metadata, each.assignment) for each in stable.members] == [(first.id, b"1", b"0")]
    assert ListedGroup(group.name, "test") in first.listed()
    second.join()
    group.backend.run_for(0.3)
    assert first.described().state == "PreparingRebalance"
    first.join()
    first.joined(), second.joined()
    early = group.backend.early
    assert first.described().state == ("AwaitingSync" if early else "CompletingRebalance")
    assert (first.leave(), second.leave()) == (0, 0)
    assert first.described().state == ("Dead" if early else "Empty")


@pytest.fixture(params=[kind + release for release in played_kafkas(RELEASES) for kind in ("fake ", "real ")])
def restarting(request: pytest.FixtureRequest, start_cluster: Callable[..., Cluster]) -> Iterator[CoordinatorBackend]:
    """Provide a coordinator that may be restarted, and that waits for more members at the first join."""
    kind, release = request.param.split()
    early = release.startswith("0.9")
    if kind == "fake":
        made: CoordinatorBackend = FakeCoordinators(early=early, initial_delay_s=2.0)
    else:
        made = _restarting(start_cluster, release, early=early)
    yield made
    made.close()


def _restarting(start_cluster: Callable[..., Cluster], release: str, *, early: bool) -> RealCoordinators:
    zookeeper = "3.9.5" if kafka_release(release).uses_zookeeper else None
    overrides = {} if early else {"group.initial.rebalance.delay.ms": 2_000}
    cluster = start_cluster(zookeeper=zookeeper, kafka=release, broker_overrides=overrides)
    asyncio.run(cluster.create_topic("topic", 1))
    broker = cluster.servers[-1]

    def restart() -> None:
        asyncio.run(broker.kill())
        asyncio.run(broker.start())

    return RealCoordinators(cluster.brokers[0], "topic", early=early, restart=restart)


def test_an_initial_delay_and_a_restart(restarting: CoordinatorBackend, unique: Callable[[str], str]) -> None:
    """The first join waits for more members, not in 0.9. A restarted coordinator knows members, generation, offsets."""
    group = RawGroup(restarting, unique("group"))
    first, second = group.member(), group.member()
    first.session_ms = second.session_ms = 30_000
    began_s = restarting.now_s()
    first.join()
    first.joined()
    is_delayed = restarting.now_s() - began_s >= 1.9
    # A real broker of 0.9, which has no such delay, may stand still.
    assert is_delayed is not restarting.early or isinstance(restarting, RealCoordinators)
    assert is_delayed or restarting.early
    second.join()
    restarting.run_for(0.5)
    first.join()
    assert (first.joined().generation, second.joined().generation) == (2, 2)
    leader = first if first.joined().leader_id == first.id else second
    leader.sync({first.id: b"1", second.id: b"2"})
    assert (leader.synced()[0], leader.commit(5)) == (0, 0)
    restarting.restart()
    again = group.member()
    again.id, again.generation = second.id, second.generation
    assert (again.beat(), again.beat(1), again.stored()) == (0, 22, (5, 0))
    again.sync()
    assert again.synced() == (0, b"2")
    assert again.commit(6) == 0
