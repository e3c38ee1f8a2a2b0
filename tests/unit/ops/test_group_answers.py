"""Groups and offsets, asked of scripted brokers: coordinators that start, move, refuse, or do not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kiel_groups.errors import BrokerError
from kiel_groups.members.brokers.transport import ClusterTransport
from kiel_groups.model import TopicPartition
from kiel_groups.ops import broker_reader as group_answers
from kiel_groups.ops.broker_reader import (
    OFFSETS_TOPIC,
    BrokerSession,
    CommittedOffsets,
    committed_offsets,
    describe_group,
    list_groups,
    offsets_of_groups,
)
from tests.helpers.coordinator_answers import (
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    OFFSET_FETCH,
    Reply,
    coordinator,
    described,
    listed,
    named,
    offsets,
    tool_script,
)
from tests.helpers.fake_broker import FakeBroker, Fault, Request

pytestmark = pytest.mark.unit

TOPICS = {"t": 2, OFFSETS_TOPIC: 1}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
KINDS = {FIND_COORDINATOR: "find", DESCRIBE_GROUPS: "describe", OFFSET_FETCH: "offsets"}
STARTING = {
    14: r"OFFSETS_LOAD_IN_PROGRESS \(14\)",
    15: r"CONSUMER_COORDINATOR_NOT_AVAILABLE \(15\)",
    16: r"NOT_COORDINATOR_FOR_CONSUMER \(16\)",
}
REFUSED = {24: r"INVALID_GROUP_ID \(24\)", 30: r"GROUP_AUTHORIZATION_FAILED \(30\)"}


@asynccontextmanager
async def session_with(*brokers: FakeBroker, timeout_s: float = 5.0) -> AsyncIterator[BrokerSession]:
    """Provide a session that starts at the first of the brokers, which know each other."""
    for broker in brokers:
        broker.peers = list(brokers)
    async with BrokerSession(str(brokers[0].address), timeout_s=timeout_s) as session:
        yield session


def answer_of(broker: FakeBroker, kind: int, code: int) -> Reply:
    """Return the broker's answer about group g to one kind of request: an error code, or what it knows."""
    match kind:
        case _ if kind == FIND_COORDINATOR:
            return coordinator(code) if code else named(broker)
        case _ if kind == DESCRIBE_GROUPS:
            return described({"g": code})
    return offsets(7, code)


def coordinating(broker: FakeBroker, **replies: list[int]) -> None:
    """Have a broker coordinate group g, and answer some kinds of requests with these codes before it does."""
    broker.script = tool_script(
        {kind: [answer_of(broker, kind, code) for code in [*replies.get(name, []), 0]] for kind, name in KINDS.items()}
    )


async def ask_all(session: BrokerSession) -> CommittedOffsets:
    """Ask for group g and its offsets."""
    assert (await describe_group(session, "g")).described.state == "Empty"
    return await committed_offsets(session, "g")


@pytest.mark.parametrize("code", STARTING)
@pytest.mark.parametrize("kind", KINDS.values())
async def test_a_coordinator_that_starts_or_moves_is_asked_again(kind: str, code: int) -> None:
    """Codes 14, 15 and 16 pass: the tool finds the coordinator anew, and repeats its request."""
    async with FakeBroker(TOPICS, 1) as broker:
        coordinating(broker, **{kind: [code, code]})
        async with session_with(broker) as session:
            assert await ask_all(session) == CommittedOffsets({T0: 7, T1: 7})
        asked = {name: broker.count(key) for key, name in KINDS.items()}
        again = {"find": 4, "describe": 1, "offsets": 1}
        assert asked == (again if kind == "find" else {**again, kind: 3})


@pytest.mark.parametrize("code", STARTING)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_coordinator_that_does_not_start_in_time_is_an_error(kind: int, code: int) -> None:
    """The error has the group and the code, and the broker that has answered as the coordinator."""
    async with FakeBroker(TOPICS, 1) as broker:
        coordinating(broker, **{KINDS[kind]: [code] * 1_000})
        who = "no broker has named" if kind == FIND_COORDINATOR else f"'g': broker 1 at {broker.address} does not coord"
        async with session_with(broker, timeout_s=0.2) as session:
            with pytest.raises(BrokerError, match=f"group .*{who}.*{STARTING[code]}"):
                await ask_all(session)
        assert broker.count(kind) > 1


@pytest.mark.parametrize("code", REFUSED)
@pytest.mark.parametrize("kind", [FIND_COORDINATOR, DESCRIBE_GROUPS])
async def test_a_refused_group_is_an_error_at_once(kind: int, code: int) -> None:
    """A name that is not allowed, or a missing right, does not pass: the request is not repeated."""
    async with FakeBroker(TOPICS, 1) as broker:
        coordinating(broker, **{KINDS[kind]: [code] * 1_000})
        async with session_with(broker) as session:
            with pytest.raises(BrokerError, match=rf"group .?g.*{REFUSED[code]}: \w+") as raised:
                await ask_all(session)
        assert (raised.value.code, broker.count(kind)) == (code, 1)


@pytest.mark.parametrize("code", REFUSED)
async def test_refused_offsets_are_a_problem_beside_the_others(code: int) -> None:
    """The offsets of other partitions are shown, and the problem counts the refused ones."""
    async with FakeBroker(TOPICS, 1) as broker:
        script = {FIND_COORDINATOR: named(broker), OFFSET_FETCH: [offsets(7, {T1: code}), offsets(7, code)]}
        broker.script = tool_script(script)
        async with session_with(broker) as session:
            some, none = [await committed_offsets(session, "g") for _ in range(2)]
    name = REFUSED[code].replace("\\", "")
    assert some == CommittedOffsets({T0: 7}, f"the offsets of 1 partition are refused, first t:1: {name}")
    assert none == CommittedOffsets({}, f"the offsets of 2 partitions are refused, first t:0: {name}")


@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.CLOSE])
@pytest.mark.parametrize("kind", [DESCRIBE_GROUPS, OFFSET_FETCH])
async def test_a_coordinator_that_does_not_answer_is_named(kind: int, fault: Fault) -> None:
    """The error says which broker coordinates the group, and how it has failed."""
    async with FakeBroker(TOPICS, 1) as broker, FakeBroker(TOPICS, 2) as coordinates:
        coordinating(broker)
        assert broker.script is not None
        common = broker.script
        broker.script = lambda request: named(coordinates) if request.api_key == FIND_COORDINATOR else common(request)
        coordinates.script = tool_script({FIND_COORDINATOR: named(coordinates), kind: fault})
        ask = describe_group if kind == DESCRIBE_GROUPS else committed_offsets
        async with session_with(broker, coordinates, timeout_s=0.2) as session:
            with pytest.raises(BrokerError) as raised:
                await ask(session, "g")
    place = f"broker 2 at {coordinates.address}, does not answer: {coordinates.address}: "
    assert str(raised.value).startswith(f"group 'g': its coordinator, {place}")


def listing(groups: list[str], codes: list[int]) -> dict[int, Reply | list[Reply]]:
    """Return the answers of a broker that coordinates groups, and answers with error codes before it lists them."""
    return {
        LIST_GROUPS: [listed(code, *(groups if code == 0 else [])) for code in codes],
        DESCRIBE_GROUPS: described(dict.fromkeys(groups, 0)),
    }


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault.SILENT, "{}: no answer to a ListGroupsRequest within 300 ms"),
        (Fault.CLOSE, "{}: the connection broke: closed by the other side"),
        (listed(15), "CONSUMER_COORDINATOR_NOT_AVAILABLE (15): the group has no coordinator yet"),
        (listed(31), "CLUSTER_AUTHORIZATION_FAILED (31): this client has no right to the cluster; grant it on"),
    ],
)
async def test_a_broker_that_does_not_list_its_groups_is_named(fault: bytes | Fault, reason: str) -> None:
    """The groups of the other brokers are listed, and one problem says which broker's are missing, and why."""
    async with FakeBroker(TOPICS, 1) as broker, FakeBroker(TOPICS, 2) as other:
        broker.script = tool_script(listing(["a", "b"], [0]))
        other.script = tool_script({LIST_GROUPS: fault})
        async with session_with(broker, other, timeout_s=0.3) as session:
            found = await list_groups(session)
    assert [(each.described.group, each.coordinator) for each in found.groups] == [("a", 1), ("b", 1)]
    (problem,) = found.problems
    expected = f"the groups of broker 2 at {other.address} are not known: {reason.format(other.address)}"
    assert problem.startswith(expected)


@pytest.mark.parametrize("code", STARTING)
async def test_a_broker_that_reads_its_groups_is_asked_again(code: int) -> None:
    """A broker that has just become a coordinator lists its groups when it has read them."""
    async with FakeBroker(TOPICS, 1) as broker:
        broker.script = tool_script(listing(["a"], [code, code, 0]))
        async with session_with(broker) as session:
            found = await list_groups(session)
    assert ([each.described.group for each in found.groups], found.problems) == (["a"], ())
    assert broker.count(LIST_GROUPS) == 3


async def test_groups_that_are_refused_or_have_moved() -> None:
    """A refused group is a problem that names it; one that has moved meanwhile is described by its new coordinator."""
    async with FakeBroker(TOPICS, 1) as broker, FakeBroker(TOPICS, 2) as other:
        codes = {"a": 0, "moved": 16, "secret": 30}
        broker.script = tool_script({LIST_GROUPS: listed(0, *codes), DESCRIBE_GROUPS: described(codes)})
        other.script = tool_script(listing(["moved"], [0]))
        async with session_with(broker, other) as session:
            found = await list_groups(session)
    assert [(each.described.group, each.coordinator) for each in found.groups] == [("a", 1), ("moved", 2)]
    assert found.problems == (
        f"broker 1 at {broker.address} does not describe 1 group, first 'secret': GROUP_AUTHORIZATION_FAILED (30)",
    )


async def test_groups_without_a_coordinator_are_a_problem() -> None:
    """Groups whose partition of the offsets has no leader are listed by no broker."""
    async with FakeBroker(TOPICS, 1) as broker:
        broker.leaders[TopicPartition(OFFSETS_TOPIC, 0)] = -1
        broker.script = tool_script(listing([], [0]))
        async with session_with(broker) as session:
            found = await list_groups(session)
    assert found.problems == (
        "1 partition has no leader in the topic __consumer_offsets: the groups in them have no coordinator; start its"
        " brokers",
    )


async def test_the_offsets_of_groups_are_read_at_the_same_time_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group costs two requests. The offsets come in the order of the groups, with an error as the problem."""
    monkeypatch.setattr(group_answers, "_MOST_AT_ONCE", 3)
    send, running, most = ClusterTransport.send, 0, 0

    async def counted_send(brokers: ClusterTransport, *args: object, **kwargs: object) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await send(brokers, *args, **kwargs)  # type: ignore[arg-type]
        finally:
            running -= 1

    monkeypatch.setattr(ClusterTransport, "send", counted_send)

    def stored(request: Request) -> bytes:
        return offsets(int(request.body[2:3]), 30 if request.body[2:3] == b"5" else 0)(request)

    async with FakeBroker(TOPICS, 1) as broker:
        broker.script = tool_script({FIND_COORDINATOR: named(broker), OFFSET_FETCH: stored})
        async with session_with(broker) as session:
            found = await offsets_of_groups(session, map(str, range(9)))
        assert (broker.count(FIND_COORDINATOR), broker.count(OFFSET_FETCH)) == (9, 9)
    assert [each.offsets.get(T1) for each in found] == [0, 1, 2, 3, 4, None, 6, 7, 8]
    assert [number for number, each in enumerate(found) if each.problem] == [5]
    assert most == 3


async def test_a_group_whose_offsets_cannot_be_read_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error of one group is its problem; the offsets of the others are returned."""

    def find(request: Request) -> bytes:
        return coordinator(30) if request.body[2:] == b"secret" else named(broker)

    async with FakeBroker(TOPICS, 1) as broker:
        broker.script = tool_script({FIND_COORDINATOR: find, OFFSET_FETCH: offsets(7)})
        async with session_with(broker) as session:
            known, secret = await offsets_of_groups(session, ["known", "secret"])
    assert known == CommittedOffsets({T0: 7, T1: 7})
    assert secret.offsets == {}
    assert "group secret: no broker has named the group's coordinator: GROUP_AUTHORIZATION_FAILED" in secret.problem
