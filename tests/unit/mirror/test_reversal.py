"""The turn of a topic, back and forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.mirror import reversal as module
from kiel_groups.mirror.checkpoints import Checkpoint, MirroredPartition
from kiel_groups.mirror.mirror_view import MirrorView
from kiel_groups.mirror.reversal import PartitionReversal, TopicReversal, check_copied, plan_reversal, turn_round
from kiel_groups.mirror.values import BACK, FORWARD, RETURNING, STOPPED, Claim
from kiel_groups.model import TopicPartition
from kiel_groups.workers.stores.worker_group_view import WorkerGroup
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry
from tests.helpers.claimed_topics import CLAIM, FakeTarget, cluster_of

pytestmark = pytest.mark.unit


class FilledTarget(FakeTarget):
    """
    A target with a partition, which ends at an offset and has some records, and its checkpoints. Before a ``stable``
    offset, no transaction is open.
    """

    def __init__(self, claim: Claim, end: int, records: Sequence[int], *checkpoints: tuple[int, int]) -> None:
        super().__init__({"copy": claim})
        self._end, self._records, self.stable = end, records, end
        self._checkpoints = [Checkpoint(source, {0: target}) for source, target in checkpoints]

    def claims_of(self, _: str) -> Mapping[str, Claim]:
        return self.stored

    def logs(self, _: object) -> Mapping[TopicPartition, tuple[int, int]]:
        return {TopicPartition("copy", 0): (0, self._end)}

    def mirrored(self, _: str) -> Mapping[TopicPartition, MirroredPartition]:
        position = max((each.source for each in self._checkpoints), default=0)
        return {TopicPartition("a", 0): MirroredPartition(position, self._checkpoints)} if self._checkpoints else {}

    def with_records(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]:
        def has_records(start: int, end: int) -> bool:
            return start < end and (self.stable < end or any(start <= at < end for at in self._records))

        return {partition for partition, limits in ranges.items() if has_records(*limits)}


def view_of(*, exactly_once: bool = True, **stored: int) -> MirrorView:
    """Return a mirror with the stored positions of its partition: ``source``, and ``target`` for what flows back."""
    entry = ConnectorEntry({"exactly.once": str(exactly_once).lower()})
    group = WorkerGroup({}, ConfigSnapshot(1, {"m": entry}), {}, {}, ())
    places: dict[str, tuple[str | None, str, int]] = {"source": (None, "a", 0), "target": ("target", "copy", 0)}
    return MirrorView("m", group, stored={places[name]: {"offset": at} for name, at in stored.items()})


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the source by one whose only partition has this start and end, which tests may change."""
    found = [0, 7]
    partition = TopicPartition("a", 0)
    consumer = SimpleNamespace(
        topics=lambda: {"a"},
        partitions_for_topic=lambda _: {0},
        beginning_offsets=lambda _: {partition: found[0]},
        end_offsets=lambda _: {partition: found[1]},
    )
    monkeypatch.setattr(module, "SingleConsumer", lambda _: nullcontext(consumer))
    return found


def planned(target: FilledTarget, view: MirrorView, direction: str) -> TopicReversal:
    (plan,) = plan_reversal(cluster_of(target), view, "old:9092", ["a"], direction)
    return plan


@pytest.mark.parametrize(
    ("checkpoints", "stored", "exactly_once", "expected"),
    [
        ([(3, 3), (7, 9)], {"source": 3}, True, PartitionReversal(7, 0, 9)),
        ([(3, 3), (7, 9)], {"source": 7}, False, PartitionReversal(7, 0, 9)),
        # The next task would write the records from 3 on again, behind the start of the copies back.
        ([(3, 3), (7, 9)], {"source": 3}, False, PartitionReversal(7, 4, 9)),
        ([(3, 3), (7, 9)], {}, False, PartitionReversal(7, 7, 9)),
        # A bulk copy has covered the partition, which has got no record since.
        ([(7, 20)], {"source": 7}, True, PartitionReversal(7, 0, 20)),
        ([], {}, True, PartitionReversal(7, 7, 0)),
    ],
)
def test_what_is_left_to_mirror(
    checkpoints: Sequence[tuple[int, int]],
    stored: Mapping[str, int],
    exactly_once: bool,
    expected: PartitionReversal,
    source: list[int],
) -> None:
    """An at-least-once mirror must have stored its positions, too."""
    view = view_of(exactly_once=exactly_once, **stored)
    assert list(planned(FilledTarget(CLAIM, 9, [], *checkpoints), view, BACK).partitions) == [expected]


def test_an_empty_partition_is_mirrored(source: list[int]) -> None:
    """A partition whose records were all deleted before the mirror began has no checkpoint."""
    source[:] = [7, 7]
    assert list(planned(FilledTarget(CLAIM, 0, []), view_of(exactly_once=False), BACK).partitions) == [(7, 0, 0)]


@pytest.mark.parametrize(
    ("stored", "records", "stable", "left"),
    [
        ({"target": 12}, [9, 10, 11], 13, 0),
        ({"target": 11}, [9, 10, 11], 13, 2),
        ({}, [8], 13, 0),
        ({}, [9], 13, 4),
        ({"target": 12}, [9, 10, 11], 12, 1),
        ({"target": 14}, [9, 10, 11], 13, -1),
    ],
    ids=[
        "markers of transactions",
        "a record is left",
        "the mirror's own records",
        "nothing is copied back yet",
        "an open transaction",
        "created again",
    ],
)
def test_what_is_left_to_copy_back(
    stored: Mapping[str, int], records: Sequence[int], stable: int, left: int, source: list[int]
) -> None:
    """The copies to the target continue at the end of the source, behind what was copied back."""
    target = FilledTarget(CLAIM._replace(direction=BACK, starts=(9,)), 13, records, (4, 9))
    target.stable = stable
    assert list(planned(target, view_of(**stored), FORWARD).partitions) == [PartitionReversal(7, left, 7)]


@pytest.mark.parametrize(
    ("checkpoints", "copied_back", "others"),
    [
        ([(4, 9)], None, 3),
        ([(4, 9)], {"offset": 13, "end": 7}, 0),
        ([(4, 9)], {"offset": 13, "end": 5}, 2),
        # A former turn has copied records back, before the mirror has copied those up to 6.
        ([(6, 9)], {"offset": 9, "end": 3}, 1),
        ([(4, 9)], {"offset": 13}, None),
        ([], None, 6),
    ],
    ids=["nothing copied", "all copied", "others after the copies", "a former turn", "unknown", "empty at the turn"],
)
def test_records_of_the_source_that_nothing_copies_are_counted(
    checkpoints: Sequence[tuple[int, int]], copied_back: Mapping[str, int] | None, others: int | None, source: list[int]
) -> None:
    """The copies to the target continue behind records of a producer that still writes to the source."""
    source[0] = 1
    target = FilledTarget(CLAIM._replace(direction=BACK, starts=(9,)), 13, [], *checkpoints)
    back = {} if copied_back is None else {("target", "copy", 0): copied_back}
    plan = planned(target, replace(view_of(), stored=back), FORWARD)
    assert plan.others == ({TopicPartition("a", 0): others} if others else {})
    assert (plan.partitions, plan.is_turned) == ([PartitionReversal(7, 0, 7)], False)


@pytest.mark.parametrize(
    ("present", "wanted", "command"),
    [(RETURNING, BACK, "reverse --forward'"), (STOPPED, FORWARD, "reverse'")],
)
def test_an_interrupted_turn_is_completed_first(present: str, wanted: str, command: str, source: list[int]) -> None:
    """In the other direction, records that were copied back would be taken for new ones."""
    target = FilledTarget(CLAIM._replace(direction=present), 9, [])
    with pytest.raises(ConfigError, match=f"the topic a is stopped while 'kiel-groups mirror {command} turns it"):
        planned(target, view_of(), wanted)


def plan_of(target: FakeTarget, *partitions: tuple[int, int, int], direction: str = BACK) -> TopicReversal:
    """Return the plan for the topic of the target. A partition has its end, what is left, and its start."""
    return TopicReversal("copy", target.stored["copy"], direction, [PartitionReversal(*each) for each in partitions])


@pytest.mark.parametrize(
    ("left", "direction", "kind", "text"),
    [
        (2, BACK, KielGroupsError, "2 records of a:1 are left; stop the producers of the source, and run the mirror"),
        (2, FORWARD, KielGroupsError, "2 records of a:1 are left; stop the producers of the target, and run the mir"),
        (2, FORWARD, KielGroupsError, "; those of an open transaction are left until its producer ends it"),
        (-2, BACK, ConfigError, "the topic a of the source ends before the offset up to which it is mirrored"),
        (-2, FORWARD, ConfigError, "the topic copy of the target ends before the offset up to which it is copied"),
    ],
)
def test_a_topic_that_is_not_copied_is_not_turned(left: int, direction: str, kind: type[Exception], text: str) -> None:
    """Records that are left would never reach the other side."""
    target = FakeTarget({"copy": CLAIM._replace(direction=STOPPED)})
    with pytest.raises(kind, match=text):
        check_copied(plan_of(target, (3, 0, 3), (7, left, 0), direction=direction), "m")


def turned(
    target: FakeTarget,
    again: Callable[[], Sequence[TopicReversal]] | None = None,
    pause: Callable[[], object] = lambda: None,
    direction: str = BACK,
) -> None:
    plan = plan_of(target, (7, 0, 8), (0, 0, 0), direction=direction)
    turn_round(cluster_of(target), "m", [plan], again or (lambda: [plan_of(target, *plan.partitions)]), pause)


@pytest.mark.parametrize("direction", [FORWARD, STOPPED], ids=["first", "after a crash"])
def test_a_topic_stops_before_it_is_turned(direction: str) -> None:
    """Records after the mirrored ones on the target flow back. After a crash, a second call completes the turn."""
    target = FakeTarget({"copy": CLAIM._replace(direction=direction), "other": CLAIM._replace(topic="b")})
    turned(target, lambda: [plan_of(target, (7, 0, 9), (0, 0, 0))])
    assert target.stored["copy"].turn == CLAIM._replace(direction=BACK, starts=(9, 0)).turn
    assert target.stored["copy"].ends == (7, 0)
    assert target.stored["other"] == CLAIM._replace(topic="b")
    assert target.history == [direction, STOPPED, BACK]


def test_a_topic_is_turned_forward_again() -> None:
    """The mirror continues on the source after what it has copied back, and knows where it began to copy back."""
    target = FakeTarget({"copy": CLAIM._replace(direction=BACK, starts=(4, 0))})
    turned(target, lambda: [plan_of(target, (7, 0, 7), (0, 0, 0), direction=FORWARD)], direction=FORWARD)
    assert target.stored["copy"].turn == CLAIM._replace(starts=(4, 0), resumes=(7, 0)).turn
    assert target.history == [BACK, RETURNING, FORWARD]


def raising(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("partition", "pause", "kind"),
    [
        ((9, 0, 9), lambda: None, KielGroupsError),
        ((9, 2, 9), lambda: None, KielGroupsError),
        ((7, 0, 8), raising(KeyboardInterrupt()), KeyboardInterrupt),
    ],
    ids=["a producer writes, and is mirrored", "a producer writes", "Ctrl-C"],
)
@pytest.mark.parametrize(("origin", "between", "wanted"), [(FORWARD, STOPPED, BACK), (BACK, RETURNING, FORWARD)])
def test_a_turn_that_fails_leaves_the_mirror_as_it_was(
    partition: tuple[int, int, int],
    pause: Callable[[], Any],
    kind: type[BaseException],
    origin: str,
    between: str,
    wanted: str,
) -> None:
    """The mirror continues in its direction."""
    target = FakeTarget({"copy": CLAIM._replace(direction=origin)})
    with pytest.raises(kind):
        turned(target, lambda: [plan_of(target, partition, (0, 0, 0), direction=wanted)], pause, wanted)
    assert target.history == [origin, between, origin]


def failing(target: FakeTarget) -> None:
    """Begin a turn that fails, so that the topic continues."""
    with pytest.raises(KeyboardInterrupt):
        turned(target, pause=raising(KeyboardInterrupt()))


def stopping(target: FakeTarget) -> None:
    """Stop the topic, as a command does that is killed in its pause."""
    target.change_claims(lambda claims: {"copy": claims["copy"]._replace(direction=STOPPED, turner="killed")})


@pytest.mark.parametrize(
    ("others", "direction"),
    [
        ([turned], BACK),
        ([failing], FORWARD),
        ([stopping], STOPPED),
        # The mirror has copied records meanwhile, so this command's starts are no longer those of the topic.
        ([failing, stopping], STOPPED),
        ([failing, turned], BACK),
    ],
)
def test_of_several_commands_one_turns_a_topic(others: Sequence[Callable[[FakeTarget], None]], direction: str) -> None:
    """The command that has stopped the topic last turns it. The others fail, and change nothing of its turn."""
    target, expected = FakeTarget({"copy": CLAIM}), list[Claim]()

    def pause() -> None:
        for other in others:
            other(target)
        expected.append(target.stored["copy"])

    # Records that have flowed back meanwhile are no records of a producer.
    again = (20, 13, 8) if direction == BACK else (7, 0, 8)
    with pytest.raises(KielGroupsError, match=r"another command.* has changed the direction of the topic a meanwhile"):
        turned(target, lambda: [plan_of(target, again, (0, 0, 0))], pause)
    assert [target.stored["copy"]] == expected
    assert expected[0].direction == direction
