"""Topics created, grown and deleted by scripted brokers: another controller, refusals, and answers that do not come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from kiel_groups.errors import BrokerError, ConfigError, KielGroupsError, RequestTimeoutError, UnknownTopicError
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions import broker_topics as topic_admin
from kiel_groups.ops.actions.broker_topics import create_topic, delete_topic, grow_topic
from kiel_groups.ops.broker_reader import BrokerSession
from tests.helpers.coordinator_answers import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    Reply,
    grown,
    tool_script,
    topic_errors,
)
from tests.helpers.fake_broker import METADATA, FakeBroker, Fault, Log, Request

pytestmark = pytest.mark.unit


class Change(NamedTuple):
    """A change of a topic: its request, and the topics before and after it."""

    key: int
    make: Callable[[BrokerSession], Awaitable[None]]
    done: str
    before: dict[str, int]
    after: dict[str, int]

    def answer(self, code: int) -> bytes:
        """Encode the controller's answer."""
        return grown(t=code) if self.key == CREATE_PARTITIONS else topic_errors(t=code)

    def brokers(self) -> tuple[FakeBroker, FakeBroker]:
        """Return two brokers with the topics before the change."""
        return FakeBroker(self.before, 1), FakeBroker(self.before, 2)

    def controller(self, *brokers: FakeBroker, code: int | Fault = 0) -> Callable[[Request], bytes | Fault]:
        """Return the reply of a controller that makes the change known to brokers, and then answers so."""

        def reply(request: Request) -> bytes | Fault:
            for broker in brokers:
                broker.logs = {TopicPartition(t, n): Log() for t, count in self.after.items() for n in range(count)}
            return code if isinstance(code, Fault) else self.answer(code)

        return reply


CHANGES = {
    "create": Change(
        CREATE_TOPICS, lambda session: create_topic(session, "t", 2, 1, {}), "created", {"a": 1}, {"t": 2}
    ),
    "grow": Change(CREATE_PARTITIONS, lambda session: grow_topic(session, "t", 3), "grown", {"t": 2}, {"t": 3}),
    "delete": Change(DELETE_TOPICS, lambda session: delete_topic(session, "t"), "deleted", {"t": 2}, {"a": 1}),
}
each_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let changes take a third of a second."""
    monkeypatch.setattr(topic_admin, "_LIMIT_S", 0.3)
    monkeypatch.setattr(topic_admin, "_ANSWER_S", 0.0)


async def make(
    change: Change, *brokers: FakeBroker, replies: list[Reply | list[Reply]], timeout_s: float = 5.0
) -> None:
    """Make a change through the first of the brokers, which know each other and reply to its request so."""
    for broker, reply in zip(brokers, replies, strict=True):
        broker.peers = list(brokers)
        broker.script = broker.script or tool_script({change.key: reply})
    async with BrokerSession(str(brokers[0].address), timeout_s=timeout_s) as session:
        await change.make(session)


@each_change
async def test_a_change_is_made_by_the_controller(change: Change) -> None:
    """A broker that is not the controller refuses, so the next one is asked; a controller that is elected, too."""
    first, second = change.brokers()
    async with first, second:
        refusal, done = change.answer(41), change.controller(first, second)
        await make(change, first, second, replies=[refusal, [refusal, refusal, done]])
        assert (first.count(change.key), second.count(change.key)) == (3, 3)


@each_change
@pytest.mark.usefixtures("short_limit")
async def test_a_cluster_without_a_controller_is_an_error_that_names_its_brokers(change: Change) -> None:
    """While a controller is missing, the change is tried for 30 seconds."""
    first, second = change.brokers()
    async with first, second:
        with pytest.raises(BrokerError) as raised:
            await make(change, first, second, replies=[change.answer(41)] * 2)
        assert str(raised.value) == (
            f"topic 't' was not {change.done}: no broker has answered as the controller: broker 1 at {first.address}:"
            f" NOT_CONTROLLER (41), broker 2 at {second.address}: NOT_CONTROLLER (41)"
        )
        assert first.count(change.key) > 1


@each_change
@pytest.mark.usefixtures("short_limit")
async def test_a_controller_that_is_stuck_is_named(change: Change) -> None:
    """A stuck broker gets no change, and the error says that it does not answer."""
    first, second = change.brokers()
    async with first, second:
        known = tool_script({change.key: change.answer(41)})
        second.script = lambda request: Fault.SILENT if request.api_key == METADATA else known(request)
        with pytest.raises(BrokerError) as raised:
            await make(change, first, second, replies=[change.answer(41)] * 2, timeout_s=0.2)
        assert f"{second.address}: no answer to a MetadataRequest within 200 ms" in str(raised.value)
        assert f"topic 't' was not {change.done}" in str(raised.value)
        assert second.count(change.key) == 0


@each_change
@pytest.mark.usefixtures("short_limit")
async def test_a_change_without_an_answer_is_recognized_as_done(change: Change) -> None:
    """
    A controller may make a change and stop before its answer. The next one refuses the repeated request, because the
    topic is as the change would make it: then the change is done.
    """
    conflict = {CREATE_TOPICS: 36, CREATE_PARTITIONS: 37, DELETE_TOPICS: 3}[change.key]
    first, second = change.brokers()
    async with first, second:
        done = change.controller(first, second, code=Fault.CLOSE)
        await make(change, first, second, replies=[done, change.answer(conflict)])
        assert second.count(change.key) == 1


@each_change
@pytest.mark.usefixtures("short_limit")
async def test_a_change_whose_outcome_is_unknown_is_an_error_that_says_so(change: Change) -> None:
    """If no controller answers, nothing is said of the topic that may be wrong."""
    first, second = change.brokers()
    async with first, second:
        with pytest.raises(BrokerError, match=f"topic 't' may have been {change.done}: no broker has answered as"):
            await make(change, first, second, replies=[Fault.CLOSE, change.answer(41)])


@pytest.mark.parametrize(
    ("name", "code", "kind", "message"),
    [
        ("create", 36, ConfigError, "topic 't' exists already; delete it first, or choose another name"),
        ("create", 38, BrokerError, r"topic 't' was not created: INVALID_REPLICATION_FACTOR \(38\): there are fewer"),
        ("create", 44, BrokerError, r"topic 't' was not created: POLICY_VIOLATION \(44\): the brokers' create.topic"),
        ("grow", 37, BrokerError, r"topic 't' was not grown: INVALID_PARTITIONS \(37\): a topic has one partition"),
        ("grow", 60, BrokerError, r"topic 't' was not grown: REASSIGNMENT_IN_PROGRESS \(60\): replicas of the topic"),
        ("delete", 3, UnknownTopicError, "topic 't' does not exist at brokers 127.0.0.1:"),
        ("delete", 42, BrokerError, r"topic 't' was not deleted: INVALID_REQUEST \(42\): .*delete.topic.enable=true"),
        ("delete", 29, BrokerError, r"topic 't' was not deleted: TOPIC_AUTHORIZATION_FAILED \(29\): this client has"),
        ("create", 7, RequestTimeoutError, "the controller has not created it within 30 s, and may do so later$"),
        ("delete", 7, RequestTimeoutError, "not deleted it within 30 s, and may do so later; before Kafka 1.0, brok"),
    ],
)
async def test_a_refused_change_is_an_error_at_once(name: str, code: int, kind: type[Exception], message: str) -> None:
    """The error says what the controller has against the change; the request is not repeated."""
    change = CHANGES[name]
    async with FakeBroker(change.before) as broker:
        with pytest.raises(kind, match=message) as raised:
            await make(change, broker, replies=[change.answer(code)])
        assert isinstance(raised.value, KielGroupsError)
        assert broker.count(change.key) == 1


@each_change
async def test_brokers_that_do_not_know_the_request_are_too_old(change: Change) -> None:
    """The error says from which release on brokers take the request, and what to do."""
    async with FakeBroker(change.before) as broker:
        broker.script = tool_script({}, without=[change.key])
        with pytest.raises(ConfigError, match=r"on request from Kafka [0-9.]+ on, and these are older; give '--coord"):
            await make(change, broker, replies=[b""])
        assert broker.count(change.key) == 0


@each_change
async def test_a_change_is_complete_when_every_broker_knows_it(change: Change) -> None:
    """A broker that knows the change later is asked again until it does."""
    first, second = change.brokers()
    async with first, second:
        refusal, done = change.answer(41), change.controller(first)
        making = asyncio.ensure_future(make(change, first, second, replies=[done, refusal]))
        asked = second.count(METADATA) + 4
        await second.wait_for_requests(METADATA, asked)
        assert not making.done()
        change.controller(second)(Request(change.key, 0, b""))
        await making


@each_change
@pytest.mark.parametrize("is_stuck", [False, True])
@pytest.mark.usefixtures("short_limit")
async def test_a_broker_that_does_not_learn_of_a_change_is_named(change: Change, is_stuck: bool) -> None:
    """The error says that the change was made, and which broker does not know it or does not answer."""
    first, second = change.brokers()
    async with first, second:
        refusal, done = change.answer(41), change.controller(first)

        def reply(request: Request) -> bytes | Fault:
            if is_stuck:
                second.script = lambda request: Fault.SILENT
            return done(request)

        with pytest.raises(BrokerError) as raised:
            await make(change, first, second, replies=[reply, refusal], timeout_s=0.2)
        reason = f"{second.address}: no answer to a MetadataRequest within 200 ms" if is_stuck else "see its log"
        assert str(raised.value) == (
            f"topic 't' was {change.done}, and broker 2 at {second.address} does not know that after 0.3 s: {reason}"
        )


@each_change
async def test_a_broker_that_leaves_the_cluster_is_not_waited_for(change: Change) -> None:
    """A broker that is not listed any more does not have to know a change."""
    first, second = change.brokers()
    async with first, second:
        done = change.controller(first)

        def reply(request: Request) -> bytes | Fault:
            second.script = lambda request: Fault.CLOSE
            first.peers = [first]
            return done(request)

        await make(change, first, second, replies=[reply, change.answer(41)])
        assert second.count(change.key) == 0


async def test_impossible_changes_cost_no_request() -> None:
    """What the metadata rules out is an error before the controller is asked."""
    impossible: list[tuple[Callable[[BrokerSession], Awaitable[None]], str]] = [
        (lambda session: create_topic(session, "t", 1, 1, {}), "topic 't' exists already"),
        (lambda session: create_topic(session, "u", 1, 2, {}), "replication: 2 given; expected at most 1"),
        (
            lambda session: create_topic(session, "u", 0, 1, {}),
            "partitions: 0 given for topic 'u'; expected 1 to 50,000",
        ),
        (lambda session: create_topic(session, "u", 10**11, 1, {}), "partitions: 100,000,000,000 given for topic 'u'"),
        (lambda session: grow_topic(session, "tt", 3), r"topic 'tt' does not exist .*\(did you mean 't'\?\)"),
        (lambda session: grow_topic(session, "t", 2), "has 2 partitions already; --partitions 2 given, expected more"),
    ]
    async with FakeBroker({"t": 2}, script=tool_script({})) as broker:
        async with BrokerSession(str(broker.address), timeout_s=5) as session:
            for change, message in impossible:
                with pytest.raises(ConfigError, match=message):
                    await change(session)
        assert {request.api_key for request in broker.requests}.isdisjoint({each.key for each in CHANGES.values()})
