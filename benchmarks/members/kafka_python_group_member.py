"""
Run members of kafka-python.

They join at a line of input, and leave at its end. Arguments: broker, group, topics with commas between them, the
number of members, settings of the consumer as JSON, with the assignors by name. The lines of output are those of
``event_lines``. Each member has a thread. Without commits, members of other clients deliver the first record again
after each rebalance; those of kafka-python do so because their programs ask for it.
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

#: How long a poll waits for records, in milliseconds, and so how soon the end of the input is noticed.
POLL_MS = 100


class Reporter(ConsumerRebalanceListener):
    """A listener that reports what its member is notified of. Without commits, it has first records delivered again."""

    def __init__(self, member: int, consumer: KafkaConsumer) -> None:
        self._member = member
        self._consumer = consumer
        self._revoked: set[TopicPartition] = set()

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        report(self._member, "assigned", words(assigned))
        if not self._consumer.config["enable_auto_commit"]:
            # Unlike the other clients, this one keeps its position in a partition that it gets again.
            for partition in self._revoked & set(assigned):
                self._consumer.seek(partition, 0)

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        report(self._member, "revoked", words(revoked))
        self._revoked = set(revoked)

    def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        report(self._member, "lost", words(lost))


def words(partitions: set[TopicPartition]) -> list[str]:
    return [f"{each.topic}:{each.partition}" for each in sorted(partitions)]


def run(number: int, topics: list[str], consumer: KafkaConsumer, over: threading.Event) -> None:
    """Be one member until ``over`` is set."""
    report(number, "joining")
    consumer.subscribe(topics, listener=Reporter(number, consumer))
    while not over.is_set():
        for partition, records in consumer.poll(POLL_MS).items():
            for record in records:
                report(number, "record", [f"{partition.topic}:{partition.partition}", record.offset])
    report(number, "leaving")
    consumer.close()
    report(number, "left")


def main(broker: str, group: str, topics: str, count: int, settings: dict[str, Any]) -> None:
    settings["partition_assignment_strategy"] = [ASSIGNORS[name] for name in settings.pop("assignors")]
    if "api_version" in settings:
        settings["api_version"] = tuple(settings["api_version"])
    over, to_join = threading.Event(), threading.Event()

    def guarded(number: int) -> None:
        try:
            consumer = KafkaConsumer(
                bootstrap_servers=[broker], group_id=group, auto_offset_reset="earliest", **settings
            )
            report(number, "prepared")
            to_join.wait()
            run(number, topics.split(","), consumer, over)
        except Exception as error:
            report(number, "failed", [type(error).__name__, *str(error).split()])
            os._exit(1)

    members = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for member in members:
        member.start()
    sys.stdin.readline()
    to_join.set()
    sys.stdin.read()
    over.set()
    for member in members:
        member.join()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*given[:3], int(given[3]), json.loads(given[4]))
