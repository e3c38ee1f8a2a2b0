"""Which partition leaders a member reads from ZooKeeper, and for which it relies on the brokers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.config import HostPort
from kiel_groups.errors import CoordinationError, SessionLostError
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.znodes.transactions import Check
from kiel_groups.members.zookeeper.owner_znodes import PartitionLeaders
from kiel_groups.model import TopicPartition
from tests.helpers.contexts import member_context

pytestmark = pytest.mark.unit

T0 = TopicPartition("t", 0)


class RecordingHandler:
    """A handler that records the leaders that it is notified of."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[TopicPartition, int], dict[int, HostPort]]] = []

    def leaders_changed(self, leaders: dict[TopicPartition, int], brokers: dict[int, HostPort]) -> None:
        self.calls.append((dict(leaders), dict(brokers)))


class FakeZnodes:
    """The znodes of topics and brokers, and a record of the order of the reads."""

    broker_protocol = "PLAINTEXT"

    def __init__(self, nodes: dict[str, bytes]) -> None:
        self.nodes = nodes
        self.versions: dict[str, int] = {}
        self.steps: list[str] = []

    async def prove(self) -> None:
        self.steps.append("proof")

    async def holds(self, checks: Sequence[Check]) -> bool:
        self.steps.append(f"{len(checks)} checks")
        return all(self.versions.get(check.path, 0) == check.version for check in checks)

    async def children(self, path: str) -> list[str]:
        self.steps.append("children")
        return [name.removeprefix(f"{path}/") for name in self.nodes if name.startswith(path)]

    async def get_many(self, paths: Sequence[str]) -> list[Any]:
        self.steps.append(f"{len(paths)} reads")
        return [
            SimpleNamespace(data=self.nodes[path], version=self.versions.get(path, 0)) if path in self.nodes else None
            for path in paths
        ]


class FakeTopics:
    """The topics, all created once."""

    created = 1

    def creation(self, topic: str) -> int:
        return self.created


async def test_leaders_without_a_registration_are_left_to_the_brokers() -> None:
    """
    A member leaves a partition's leader to the brokers if the leader is not registered or has the id −1, or if the
    partition's state is missing or unreadable. All reads follow one proof.
    """
    states = [b'{"leader":1,"leader_epoch":4,"isr":[1]}', b'{"leader":7}', b'{"leader":-1}', b"garbage"]
    znodes = FakeZnodes(
        {
            **{f"/brokers/topics/t/partitions/{number}/state": data for number, data in enumerate(states)},
            "/brokers/ids/1": b'{"host":"one","port":9092}',
            "/brokers/ids/2": b"garbage",
        }
    )
    handler = RecordingHandler()
    context = member_context(znodes, OffsetTracker(), handler)
    leaders = PartitionLeaders(context, cast(Any, znodes), cast(Any, FakeTopics()))
    await leaders.pass_on([TopicPartition("t", number) for number in range(5)])
    assert handler.calls == [({T0: 1}, {1: HostPort("one", 9092)})]
    assert znodes.steps == ["proof", "5 reads", "children", "2 reads"]
    assert context.metrics.counter("znodes_unreadable") == 1
    await leaders.pass_on([])
    assert handler.calls[1:] == [({}, {})], "no leader is named of a partition that is not owned"
    assert len(znodes.steps) == 4, "and nothing is read"


async def test_unchanged_leaders_are_not_read_again() -> None:
    """One transaction checks the leaders that were read, until one changes, the partitions do, or a topic is new."""
    state = "/brokers/topics/t/partitions/{}/state"
    nodes = {state.format(number): b'{"leader":1,"leader_epoch":4,"isr":[1]}' for number in range(3)}
    znodes = FakeZnodes(nodes | {"/brokers/ids/1": b'{"host":"one","port":9092}'})
    handler, topics = RecordingHandler(), FakeTopics()
    leaders = PartitionLeaders(member_context(znodes, OffsetTracker(), handler), cast(Any, znodes), cast(Any, topics))
    partitions = [TopicPartition("t", number) for number in range(2)]

    async def steps() -> list[str]:
        znodes.steps.clear()
        await leaders.pass_on(partitions)
        assert handler.calls[-1] == (dict.fromkeys(partitions, 1), {1: HostPort("one", 9092)})
        return znodes.steps[:-2]

    read = ["proof", "2 reads"]
    assert await steps() == read
    assert await steps() == ["2 checks"]
    znodes.versions[state.format(1)] = 1
    assert await steps() == ["2 checks", *read]
    assert await steps() == ["2 checks"]
    topics.created = 2
    assert await steps() == read, "the znodes of a new topic have the versions of the old one"
    partitions.append(TopicPartition("t", 2))
    assert await steps() == ["proof", "3 reads"]


async def test_leaders_that_an_acl_hides_are_left_to_the_brokers(caplog: pytest.LogCaptureFixture) -> None:
    """
    If an ACL hides the partition states, the member warns once, and leaves all leaders to the brokers. The loss of the
    session is raised.
    """
    errors: list[CoordinationError] = [CoordinationError("NoAuth"), CoordinationError("NoAuth")]

    class HiddenStates(FakeZnodes):
        async def get_many(self, paths: Sequence[str]) -> list[Any]:
            raise errors.pop(0)

    znodes, handler = HiddenStates({"/brokers/ids/1": b""}), RecordingHandler()
    context = member_context(znodes, OffsetTracker(), handler)
    leaders = PartitionLeaders(context, cast(Any, znodes), cast(Any, FakeTopics()))
    for _ in range(2):
        await leaders.pass_on([T0])
    assert handler.calls == [({}, {}), ({}, {})]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert context.metrics.counter("leaders_unreadable") == 2
    errors.append(SessionLostError("over"))
    with pytest.raises(SessionLostError):
        await leaders.pass_on([T0])
