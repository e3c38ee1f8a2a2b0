"""
Run members of kafka-python until standard input ends; then they leave.

Arguments: broker, group, topics with commas between them, the number of members, settings of the consumer as JSON, with
the assignors by name. The lines of output are those of ``event_lines``. Each member has a thread.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from benchmarks.members.event_lines import report

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}

#: How long a poll waits for records, in milliseconds: the accuracy of the time at which positions are known.
POLL_MS = 10


class Reporter(ConsumerRebalanceListener):
    """A listener that reports what its member is notified of, and remembers that an assignment is new."""

    def __init__(self, member: int) -> None:
        self._member = member
        self.new: list[TopicPartition] = []

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        report(self._member, "assigned", words(assigned))
        self.new = sorted(assigned)

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        report(self._member, "revoked", words(revoked))
        self.new = []

    def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        report(self._member, "lost", words(lost))
        self.new = []


def words(partitions: set[TopicPartition] | list[TopicPartition]) -> list[str]:
    return [f"{each.topic}:{each.partition}" for each in sorted(partitions)]


def run(number: int, topics: list[str], consumer: KafkaConsumer, over: threading.Event) -> None:
    """Be one member until ``over`` is set."""
    reporter = Reporter(number)
    report(number, "joining")
    consumer.subscribe(topics, listener=reporter)
    while not over.is_set():
        found = consumer.poll(POLL_MS)
        if reporter.new and all(consumer.position(each, timeout_ms=POLL_MS) is not None for each in reporter.new):
            report(number, "ready", words(reporter.new))
            reporter.new = []
        for partition, records in found.items():
            for record in records:
                report(number, "record", [f"{partition.topic}:{partition.partition}", record.offset])
    report(number, "leaving")
    consumer.close()
    report(number, "left")


def main(broker: str, group: str, topics: str, count: int, settings: dict[str, Any]) -> None:
    settings["partition_assignment_strategy"] = [ASSIGNORS[name] for name in settings.pop("assignors")]
    if "api_version" in settings:
        settings["api_version"] = tuple(settings["api_version"])
    over = threading.Event()

    def guarded(number: int) -> None:
        try:
            consumer = KafkaConsumer(
                bootstrap_servers=[broker], group_id=group, auto_offset_reset="earliest", **settings
            )
            run(number, topics.split(","), consumer, over)
        except Exception as error:
            report(number, "failed", [type(error).__name__, *str(error).split()])
            os._exit(1)

    members = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for member in members:
        member.start()
    sys.stdin.read()
    over.set()
    for member in members:
        member.join()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*given[:3], int(given[3]), json.loads(given[4]))
