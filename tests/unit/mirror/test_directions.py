"""The directions of topics: their claims, the check of a task, and the turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from kiel_groups.errors import ConfigError, KielGroupsError, ProtocolError, TaskStoppedError
from kiel_groups.mirror import directions as module
from kiel_groups.mirror.directions import (
    DirectionCheck,
    PartitionReversal,
    TopicReversal,
    check_mirrored,
    turn_round,
)
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import BACK, FORWARD, STOPPED, Claim
from tests.helpers.connector_contexts import RecordingTaskContext

pytestmark = pytest.mark.unit

CLAIM = Claim("m", "a", "old:9092", 17)


class FakeTarget:
    """A target with some claims. Each change of a claim makes the topic of claims longer; errors are raised first."""

    servers = "new:9092"

    def __init__(self, claims: Mapping[str, Claim], *errors: Exception) -> None:
        self.stored, self._errors = dict(claims), list(errors)
        self.end, self.reads = 1, 0
        self.history = [self.stored["copy"].direction] if "copy" in claims else []

    def claims_end(self) -> int:
        if self._errors:
            raise self._errors.pop(0)
        return self.end

    def claims(self) -> dict[str, Claim]:
        self.reads += 1
        return dict(self.stored)

    def store(self, claim: Claim) -> None:
        self.stored["copy"] = claim
        self.end += 1

    def change_claims(self, change: Callable[[Mapping[str, Claim]], Mapping[str, Claim]]) -> dict[str, Claim]:
        changed = change(self.stored)
        self.stored |= changed
        self.end += len(changed)
        self.history += [claim.direction for claim in changed.values()]
        return dict(self.stored)


def cluster_of(target: FakeTarget) -> TargetCluster:
    return cast("TargetCluster", target)


def check_of(target: FakeTarget, context: RecordingTaskContext) -> DirectionCheck:
    return DirectionCheck(cluster_of(target), "m", {"copy": FORWARD}, context)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"[]",
        b"{}",
        b'{"mirror": "m", "topic": "a"}',
        b'{"mirror": "m", "topic": "a", "source": 7}',
        b'{"mirror": "m", "topic": "a", "source": "s", "direction": "up"}',
        b'{"mirror": "m", "topic": "a", "source": "s", "starts": 7}',
        b'{"mirror": "m", "topic": "a", "source": "s", "starts": [-1]}',
        b'{"mirror": "m", "topic": "a", "source": "s", "more": 1}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_hostile_claim_is_one_line(data: bytes) -> None:
    """The error says which record of the topic of claims has to be deleted, and how."""
    with pytest.raises(
        ProtocolError, match=r"^the claim with the key b'\"copy\"' in kiel-mirror-claims cannot be read: "
    ):
        Claim.parse(data, b'"copy"')


def test_claims_are_read_as_they_were_written() -> None:
    """A later record replaces a claim, and a null value deletes it, before the topic is compacted."""
    target = TargetCluster({"bootstrap.servers": "new:9092"})
    turned = CLAIM._replace(direction=BACK, starts=(3, 0))
    records: list[tuple[bytes, bytes | None]] = [
        (b'"copy"', CLAIM.encode()),
        (b'"other"', CLAIM.encode()),
        (b'"copy"', turned.encode()),
        (b'"other"', None),
    ]
    vars(target).update(read=lambda *_: records)
    assert target.claims() == {"copy": turned}
    records.append((b"{", CLAIM.encode()))
    with pytest.raises(ProtocolError, match="has a key that is not JSON"):
        target.claims()


def test_a_task_reads_claims_when_one_has_changed() -> None:
    """Most checks ask for the end of the topic of claims only."""
    target, context = FakeTarget({"copy": CLAIM}), RecordingTaskContext()
    check = check_of(target, context)
    is_due = [check.is_due]
    assert [check.turned(), check.turned(), target.reads] == [frozenset(), frozenset(), 1]
    assert [*is_due, check.is_due] == [True, False]
    for claim, expected in (
        (CLAIM._replace(direction=STOPPED), {"copy"}),
        (CLAIM, set()),
        (CLAIM._replace(direction=BACK), {"copy"}),
        (CLAIM._replace(mirror="other"), {"copy"}),
    ):
        target.store(claim)
        assert check.turned() == expected
    target.stored.clear()
    target.end += 1
    assert check.turned() == {"copy"}
    assert context.problems == []


def test_a_task_waits_for_a_target_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer, no record is written. The status shows why."""
    monkeypatch.setattr(module, "_PAUSE_S", 0)
    context = RecordingTaskContext()
    gone = [KielGroupsError("the target new:9092: cannot look: timed out")] * 2
    assert check_of(FakeTarget({"copy": CLAIM}, *gone), context).turned() == frozenset()
    assert context.problems == ["the target new:9092: cannot look: timed out; trying again", ""]
    with pytest.raises(TaskStoppedError):
        check_of(FakeTarget({}, *gone), RecordingTaskContext(stop_after=0)).turned()
    with pytest.raises(ConfigError, match="no rights"):
        check_of(FakeTarget({}, ConfigError("no rights")), context).turned()


def plan_of(target: FakeTarget, *partitions: tuple[int, int, int]) -> TopicReversal:
    """Return the plan for the topic of the target. A partition has its end, its position and its start."""
    return TopicReversal("copy", target.stored["copy"], [PartitionReversal(*each) for each in partitions])


@pytest.mark.parametrize(
    ("partition", "kind", "text"),
    [
        ((7, 5, 0), KielGroupsError, "has not mirrored everything: 2 records of a:1 are left; stop the producers"),
        ((5, 7, 0), ConfigError, "the topic a of the source ends before the offset up to which it is mirrored"),
    ],
)
def test_a_topic_that_is_not_mirrored_is_not_turned(
    partition: tuple[int, int, int], kind: type[Exception], text: str
) -> None:
    """Records that are left would never reach the target."""
    plan = plan_of(FakeTarget({"copy": CLAIM}), (3, 3, 3), partition)
    with pytest.raises(kind, match=text):
        check_mirrored(plan)


def turned(
    target: FakeTarget, again: Callable[[], Sequence[TopicReversal]], pause: Callable[[], object] = lambda: None
) -> None:
    turn_round(cluster_of(target), [plan_of(target, (7, 7, 8), (0, 0, 0))], again, pause)


@pytest.mark.parametrize("direction", [FORWARD, STOPPED], ids=["first", "after a crash"])
def test_a_topic_stops_before_it_is_turned(direction: str) -> None:
    """Records after the mirrored ones on the target flow back. After a crash, a second call completes the turn."""
    target = FakeTarget({"copy": CLAIM._replace(direction=direction), "other": CLAIM._replace(topic="b")})
    turned(target, lambda: [plan_of(target, (7, 7, 9), (0, 0, 0))])
    assert target.stored == {
        "copy": CLAIM._replace(direction=BACK, starts=(9, 0)),
        "other": CLAIM._replace(topic="b"),
    }
    assert target.history == [FORWARD, STOPPED, BACK][[FORWARD, STOPPED].index(direction) :]


def raising(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("partition", "pause", "kind"),
    [
        ((9, 9, 9), lambda: None, KielGroupsError),
        ((9, 7, 9), lambda: None, KielGroupsError),
        ((7, 7, 8), raising(KeyboardInterrupt()), KeyboardInterrupt),
    ],
    ids=["a producer writes, and is mirrored", "a producer writes", "Ctrl-C"],
)
def test_a_turn_that_fails_leaves_the_mirror_as_it_was(
    partition: tuple[int, int, int], pause: Callable[[], Any], kind: type[BaseException]
) -> None:
    """The mirror continues, and no record flows back."""
    target = FakeTarget({"copy": CLAIM})
    with pytest.raises(kind):
        turned(target, lambda: [plan_of(target, partition, (0, 0, 0))], pause)
    assert target.history == [FORWARD, STOPPED, FORWARD]


def test_of_two_commands_one_turns_a_topic() -> None:
    """The starts of the first one stay. A command whose topic continues meanwhile fails, and turns nothing."""
    target = FakeTarget({"copy": CLAIM})
    first = CLAIM._replace(direction=BACK, starts=(8, 0))

    def other() -> None:
        target.stored["copy"] = first

    # Records that have flowed back meanwhile are no records of a producer.
    turned(target, lambda: [plan_of(target, (20, 7, 8), (0, 0, 0))], other)
    assert target.stored["copy"] == first

    target = FakeTarget({"copy": CLAIM})

    def continues() -> None:
        target.stored["copy"] = CLAIM

    with pytest.raises(KielGroupsError, match="another command has changed the directions meanwhile"):
        turned(target, lambda: [plan_of(target, (7, 7, 8), (0, 0, 0))], continues)
    assert target.stored["copy"] == CLAIM


def test_a_claim_of_an_earlier_release_counts() -> None:
    """A claim without a direction is one of a topic that is copied to the target."""
    data = json.dumps({"mirror": "m", "topic": "a", "source": "old:9092"}).encode()
    assert Claim.parse(data, b'"copy"') == Claim("m", "a", "old:9092", 0, FORWARD, ())
