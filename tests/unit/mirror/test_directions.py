"""The directions of topics: their claims, and the check of a task."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial

import pytest

from kiel_groups.errors import ConfigError, KielGroupsError, ProtocolError, TaskStoppedError
from kiel_groups.mirror import directions as module
from kiel_groups.mirror.directions import DirectionCheck
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import BACK, FORWARD, STOPPED, Claim, LostTopicsError
from tests.helpers.claimed_topics import CLAIM, FakeTarget, cluster_of
from tests.helpers.connector_contexts import RecordingTaskContext

pytestmark = pytest.mark.unit


def check_of(target: FakeTarget, context: RecordingTaskContext) -> DirectionCheck:
    return DirectionCheck(cluster_of(target), "m", {"copy": CLAIM, "new": None}, context)


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
        b'{"mirror": "m", "topic": "a", "source": "s", "resumes": ["1"]}',
        b'{"mirror": "m", "topic": "a", "source": "s", "target_id": 7}',
        b'{"mirror": "m", "topic": "a", "source": "s", "ends": [-1]}',
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
    turned = CLAIM._replace(direction=BACK, starts=(3, 0), resumes=(7,), target_id="first", ends=(9, 4))
    records: list[tuple[bytes, bytes | None]] = [
        (b'"copy"', CLAIM.encode()),
        (b'"other"', CLAIM.encode()),
        (b'"copy"', turned.encode()),
        (b'"other"', None),
    ]
    reads: list[object] = []
    vars(target).update(read=lambda *_: reads.append(_) or records, ends=lambda *_: [len(records)])
    assert target.claims() == {"copy": turned}
    # They are read again when their topic has become longer.
    assert target.latest_claims() is target.latest_claims()
    assert len(reads) == 2
    records.append((b'"other"', CLAIM.encode()))
    assert target.latest_claims() == {"copy": turned, "other": CLAIM}
    records.append((b"{", CLAIM.encode()))
    with pytest.raises(ProtocolError, match="has a key that is not JSON"):
        target.claims()


def test_a_task_reads_claims_when_one_has_changed() -> None:
    """A topic is copied while its claim has not changed since the start."""
    target, context = FakeTarget({"copy": CLAIM}), RecordingTaskContext()
    check = check_of(target, context)
    is_due = [check.is_due]
    assert [check.turned(), check.turned()] == [{"new"}, {"new"}]
    assert [*is_due, check.is_due] == [True, False]
    for claim, expected in (
        (CLAIM._replace(direction=STOPPED), {"copy"}),
        (CLAIM._replace(source="old:9093"), set()),
        (CLAIM._replace(direction=BACK), {"copy"}),
        # Turned back and forward while the task was frozen: it does not know which records were copied back.
        (CLAIM._replace(starts=(5,), resumes=(7,)), {"copy"}),
        (CLAIM._replace(mirror="other"), {"copy"}),
    ):
        target.store(claim)
        assert check.turned() == {*expected, "new"}
    target.stored = {}
    assert check.turned() == {"copy", "new"}
    assert context.problems == []


def test_a_topic_that_was_created_again_is_lost() -> None:
    """Its log may be as long as the former one. A claim without an id, of brokers that have none, is not compared."""
    target, claim = FakeTarget({"copy": CLAIM}), CLAIM._replace(target_id="first")
    target.other = {"copy": "it has another id"}
    for known, is_lost in ((CLAIM, False), (claim, True)):
        check = DirectionCheck(cluster_of(target), "m", {"copy": known, "new": None}, RecordingTaskContext())
        assert check.turned() == {"new"}
        # Records that were read are checked before they are written.
        for look in (partial(check.check_ids, ["copy", "new"]), partial(check.turned, {"copy"})):
            with pytest.raises(LostTopicsError, match="another id") if is_lost else nullcontext():
                look()


def test_a_task_waits_for_a_target_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer, no record is written. The status shows why."""
    monkeypatch.setattr(module, "_PAUSE_S", 0)
    context = RecordingTaskContext()
    gone = [KielGroupsError("the target new:9092: cannot look: timed out")] * 2
    assert check_of(FakeTarget({"copy": CLAIM}, *gone), context).turned() == {"new"}
    assert context.problems == ["the target new:9092: cannot look: timed out; trying again", ""]
    with pytest.raises(TaskStoppedError):
        check_of(FakeTarget({}, *gone), RecordingTaskContext(stop_after=0)).turned()
    with pytest.raises(ConfigError, match="no rights"):
        check_of(FakeTarget({}, ConfigError("no rights")), context).turned()


def test_a_claim_of_an_earlier_release_counts() -> None:
    """A claim without a direction is one of a topic that is copied to the target."""
    data = json.dumps({"mirror": "m", "topic": "a", "source": "old:9092"}).encode()
    assert Claim.parse(data, b'"copy"') == Claim("m", "a", "old:9092", 0, FORWARD, ())
