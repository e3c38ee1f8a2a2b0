"""Offsets translated by the checkpoints of a mirror, for any history of kills, freezes and compactions."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.mirror.checkpoints import parse_checkpoints, translate
from kiel_groups.mirror.values import BEGINNING_SLOT
from kiel_groups.model import TopicPartition
from tests.helpers.examples import examples

pytestmark = pytest.mark.property

RECORDS, TOPICS = 40, {"a": "copy"}


class History:
    """
    Two source partitions of a topic, mirrored at least once by tasks that are killed or frozen.

    The checkpoints and ``ends``, the ends of the target's logs, are those at one moment. Then the mirror continues, and
    ``target`` has what it has written at last.

    Args:
        seed: Chooses what happens.
        hashed: The partitions of the target if keys are hashed anew, or 0.
    """

    def __init__(self, seed: int, hashed: int) -> None:
        self._random, self._hashed = random.Random(seed), hashed
        #: The source partitions and offsets of the records of each target partition.
        self.target: dict[int, list[tuple[int, int]]] = {number: [] for number in range(hashed or 2)}
        self.checkpoints: list[tuple[bytes, bytes]] = []
        stored = [self._mirror(number) for number in range(2)]
        self._compact()
        self.ends = {number: len(records) for number, records in self.target.items()}
        for number, position in enumerate(stored):
            for offset in range(position, RECORDS):
                self._write(number, offset)

    def _write(self, partition: int, offset: int) -> None:
        number = (partition * 7 + offset) % self._hashed if self._hashed else partition
        self.target[number].append((partition, offset))

    def _mirror(self, partition: int) -> int:
        """Mirror a partition for a while, and return the position that was stored last."""
        stored: int | None = None
        frozen: list[int] = []
        while (stored or 0) < RECORDS and self._random.random() < 0.9:
            position, ends, is_new = stored or 0, dict[str, int](), stored is None
            for count in range(1, self._random.randrange(2, 12)):
                batch = range(position, min(position + self._random.randrange(1, 6), RECORDS))
                for offset in batch:
                    if frozen and self._random.random() < 0.5:
                        self._write(partition, frozen.pop(0))
                    self._write(partition, offset)
                    ends = {str(number): len(records) for number, records in self.target.items() if records}
                    if self._random.random() < 0.05:
                        # Killed, or frozen: then the task sends the rest of the batch when it has no claim.
                        frozen += list(range(offset + 1, batch.stop)) * self._random.randrange(2)
                        break
                else:
                    position = batch.stop
                    known: Mapping[str, object] = {"target": ends.get(str(partition))}
                    if self._hashed:
                        known = {"target": None, "targets": {each: ends[each] for each in ends if ends[each]}}
                    if is_new:
                        begin = {"target": None, "targets": {}} if self._hashed else {"target": 0}
                        self._store(partition, BEGINNING_SLOT, {"source": 0, **begin})
                        is_new = False
                    self._store(partition, (count & -count).bit_length() - 1, {"source": position, **known})
                    if self._random.random() < 0.7:
                        stored = position
                    continue
                break
        return stored or 0

    def _store(self, partition: int, slot: int, value: Mapping[str, object]) -> None:
        self.checkpoints.append((json.dumps(["a", partition, slot]).encode(), json.dumps(value).encode()))

    def _compact(self) -> None:
        newest = {key: at for at, (key, _) in enumerate(self.checkpoints)}
        cleaned = self._random.randrange(len(self.checkpoints) + 1)
        self.checkpoints = [each for at, each in enumerate(self.checkpoints) if at >= cleaned or newest[each[0]] == at]


@settings(max_examples=examples(400))
@given(st.integers(0, 1 << 32), st.sampled_from([0, 3]), st.tuples(st.integers(0, RECORDS), st.integers(0, RECORDS)))
def test_a_translated_offset_skips_no_record(seed: int, hashed: int, offsets: tuple[int, int]) -> None:
    """Each record from the offset of a group on is on the target, or will be, from the translated offset on."""
    history = History(seed, hashed)
    mirrored = parse_checkpoints(history.checkpoints)
    logs = {TopicPartition("copy", number): (0, end) for number, end in history.ends.items()}
    group = {TopicPartition("a", number): offset for number, offset in enumerate(offsets)}
    rows = translate(group, TOPICS, mirrored, logs)
    assert {each.partition for each in rows} >= group.keys()
    if any(each.target is None for each in rows):
        assert hashed or any(each not in mirrored for each in group)
        return
    starts = {each.partition.partition: each.target or 0 for each in rows}
    read = {record for number, records in history.target.items() for record in records[starts[number] :]}
    for partition, offset in group.items():
        assert {(partition.partition, number) for number in range(offset, RECORDS)} <= read


def test_what_cannot_be_translated_says_why() -> None:
    """An offset that has no checkpoint at or below it is not guessed."""

    def record(partition: int, slot: int, source: int, target: int | None) -> tuple[bytes, bytes]:
        return (
            json.dumps(["a", partition, slot]).encode(),
            json.dumps({"source": source, "target": target}).encode(),
        )

    mirrored = parse_checkpoints(
        [record(0, 0, 100, 90), record(0, 1, 50, 40), record(1, 0, 7, None), record(2, 0, 9, 900), record(4, -1, 5, 0)]
    )
    logs = {TopicPartition("copy", number): (10 * number, 95) for number in (0, 1, 2, 4)}
    group = {TopicPartition("a", number): 60 for number in range(5)} | {TopicPartition("b", 0): 1}
    rows = translate(group, TOPICS, mirrored, logs)
    assert [(each.target, each.again, each.refusal, each.note) for each in rows] == [
        (40, 10, "", ""),
        (None, None, "no checkpoint yet", ""),
        (None, None, "the checkpoints are of a former target topic", ""),
        (None, None, "the target has no such partition", ""),
        (40, 55, "", "the mirror is 55 behind"),
        (None, None, "the topic is not mirrored", ""),
    ]
    (behind,) = translate({TopicPartition("a", 0): 130}, TOPICS, mirrored, logs)
    assert (behind.target, behind.again, behind.note) == (90, 30, "the mirror is 30 behind")
    (early,) = translate({TopicPartition("a", 0): 49}, TOPICS, mirrored, logs)
    assert (early.target, early.refusal) == (None, "before 50, where the mirror begins")
