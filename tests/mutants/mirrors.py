"""A mirror copies each topic in one direction, and fails where records would be missing."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant(
        "records of a topic that was stopped are skipped",
        "mirror/connector.py",
        "            self._consumer.seek(partition, found[partition][0].first_offset)\n",
        "            pass\n",
        "tests/unit/mirror/test_mirror_connector.py",
    ),
    Mutant(
        "a task copies a topic to the target after its turn",
        "mirror/connector.py",
        "        return {partition: columns for partition, columns in found.items() if partition not in stopped}\n",
        "        return dict(found)\n",
        "tests/unit/mirror/test_mirror_connector.py",
    ),
    Mutant(
        "a task does not read a claim that has changed",
        "mirror/directions.py",
        "if (end := self._target.claims_end()) != self._end:",
        "if (end := self._target.claims_end()) and self._end < 0:",
        "tests/unit/mirror/test_directions.py",
    ),
    Mutant(
        "a deleted claim counts until the topic of claims is compacted",
        "mirror/target.py",
        "        latest = dict(self.read(CLAIMS_TOPIC, 0))\n",
        "        latest = {key: value for key, value in self.read(CLAIMS_TOPIC, 0) if value}\n",
        "tests/unit/mirror/test_directions.py",
    ),
    Mutant(
        "a topic is turned although a producer writes to the source",
        "mirror/directions.py",
        "if not last[name].is_turned and last[name].ends != plan.ends:",
        "if not last[name].is_turned and last[name].ends < plan.ends:",
        "tests/unit/mirror/test_directions.py",
    ),
    Mutant(
        "records that the mirror has written are copied back",
        "mirror/connector.py",
        "starts[each.topic].get(each.partition, 0)",
        "0",
        "tests/unit/mirror/test_mirror_connector.py",
    ),
    Mutant(
        "a source topic that was created again is mirrored on",
        "mirror/connector.py",
        "            if offset < (position := self._next.get(partition, 0)):\n",
        "            if offset < (position := self._next.get(partition, 0)) < 0:\n",
        "tests/unit/mirror/test_mirror_connector.py",
    ),
)
