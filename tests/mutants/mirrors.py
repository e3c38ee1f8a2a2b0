"""A mirror copies each topic in one direction, and fails where records would be missing."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant(
        "records of a topic that was stopped are skipped",
        "mirror/task.py",
        "            self._consumer.seek(partition, found[partition][0].first_offset)\n",
        "            pass\n",
        "tests/unit/mirror/test_mirror_task.py",
    ),
    Mutant(
        "a task copies a topic to the target after its turn",
        "mirror/task.py",
        "        return {partition: columns for partition, columns in found.items() if partition not in stopped}\n",
        "        return dict(found)\n",
        "tests/unit/mirror/test_mirror_task.py",
    ),
    Mutant(
        "a task does not read a claim that has changed",
        "mirror/target.py",
        "        if end != self._claims_end:\n",
        "        if self._claims_end < 0:\n",
        "tests/unit/mirror/test_directions.py",
    ),
    Mutant(
        "a deleted claim counts until the topic of claims is compacted",
        "mirror/values.py",
        "for key, value in dict(records).items() if value}",
        "for key, value in records if value}",
        "tests/unit/mirror/test_directions.py",
    ),
    Mutant(
        "a topic is turned although a producer writes to the source",
        "mirror/reversal.py",
        "if not last[name].is_turned and last[name].ends != plan.ends:",
        "if not last[name].is_turned and last[name].ends < plan.ends:",
        "tests/unit/mirror/test_reversal.py",
    ),
    Mutant(
        "a turn ignores that another command has stopped or turned the topic meanwhile",
        "mirror/reversal.py",
        "                if claim.turner != turner:\n",
        "                if claim.direction == FORWARD:\n",
        "tests/unit/mirror/test_reversal.py",
    ),
    Mutant(
        "records of an open transaction of the target count as none",
        "mirror/target.py",
        "if stable[partition] < end}",
        "if stable[partition] < 0}",
        "tests/unit/mirror/test_target_faults.py",
    ),
    Mutant(
        "a topic is turned although a task may write its records again",
        "mirror/reversal.py",
        "    if not view.is_exactly_once:\n",
        "    if False:\n",
        "tests/unit/mirror/test_reversal.py",
    ),
    Mutant(
        "a task continues after a turn and a turn back, and mirrors what was copied back",
        "mirror/directions.py",
        "claim.turn != expected.turn",
        "claim.direction != expected.direction",
        "tests/unit/mirror/test_directions.py",
    ),
    Mutant(
        "a task continues with a topic of the target that was created again",
        "mirror/task.py",
        "        check.check_ids(topics)\n",
        "",
        "tests/unit/mirror/test_mirror_task.py",
    ),
    Mutant(
        "after a turn forward, what was copied back is mirrored",
        "mirror/task.py",
        "                begun[partition] = resumed\n",
        "                pass\n",
        "tests/unit/mirror/test_mirror_task.py",
    ),
    Mutant(
        "records that the mirror has written are copied back",
        "mirror/connector.py",
        "plan.back[each.topic].start(each.partition)",
        "0",
        "tests/unit/mirror/test_mirror_connector.py",
    ),
    Mutant(
        "a source topic that was created again is mirrored on",
        "mirror/task.py",
        "            if offset < (position := self._next.get(partition, 0)):\n",
        "            if offset < (position := self._next.get(partition, 0)) < 0:\n",
        "tests/unit/mirror/test_mirror_task.py",
    ),
    Mutant(
        "a topic that has grown on the source does not grow on the target",
        "mirror/topics.py",
        "        and 0 < present.get(topic.target, 0) < topic.partitions\n",
        "        and topic.partitions < 0\n",
        "tests/unit/mirror/test_mirror_connector.py",
    ),
    Mutant(
        "records after one that is refused are written with it",
        "mirror/writer.py",
        "        if self._settings.is_exactly_once:\n            yield batches\n",
        "        if True:\n            yield batches\n",
        "tests/unit/mirror/test_writer.py",
    ),
    Mutant(
        "an offset is translated by a checkpoint after it",
        "mirror/checkpoints.py",
        "    lower = [checkpoint for checkpoint in usable if checkpoint.source <= offset]\n",
        "    lower = [checkpoint for checkpoint in usable if checkpoint.source <= offset + 1]\n",
        "tests/property/test_mirror_checkpoints_laws.py",
    ),
    Mutant(
        "where keys are hashed, one source partition decides where a group continues",
        "mirror/checkpoints.py",
        "            at = max(min(needed), starts[number])\n",
        "            at = max(max(needed), starts[number])\n",
        "tests/property/test_mirror_checkpoints_laws.py",
    ),
    Mutant(
        "a task without its claim writes a checkpoint",
        "mirror/writer.py",
        "        while not (self._settings.is_exactly_once or self._context.is_owner):\n",
        "        while False:\n",
        "tests/unit/mirror/test_writer.py",
    ),
    Mutant(
        "a group that has read further on the target is moved back",
        "mirror/group_offsets.py",
        "return offset.target is not None and present is not None and present > offset.target",
        "return False",
        "tests/unit/mirror/test_group_offsets.py",
    ),
    Mutant(
        "a copy of earlier records hides a missing one",
        "mirror/comparison.py",
        "if copied and (place is None or",
        "if copied and (place is None and",
        "tests/unit/mirror/test_comparison.py",
    ),
    Mutant(
        "records that are missing in the middle count as not mirrored yet",
        "mirror/comparison.py",
        "source.offsets[0] >= self._position):",
        "source.offsets[0] >= 0):",
        "tests/unit/mirror/test_comparison.py",
    ),
)
