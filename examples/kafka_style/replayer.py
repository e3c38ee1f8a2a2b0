"""Print the records of a topic from a time on, until the present end of its log."""

import sys

from kiel_groups import TopicPartition
from kiel_groups.sync import SingleConsumer


def main(broker: str, topic: str, since_ms: int) -> None:
    with SingleConsumer(broker) as consumer:
        consumer.topics()
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found = consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        for partition in partitions:
            consumer.seek(partition, found[partition].offset)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.getmany(timeout_ms=500).values():
                for record in records:
                    print(record.partition, record.offset, record.value.decode(), flush=True)


if len(sys.argv) != 4:
    sys.exit("usage: replayer.py BROKER TOPIC MILLISECONDS")
main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
