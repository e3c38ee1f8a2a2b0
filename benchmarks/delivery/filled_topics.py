"""Fill the topics that consumers read, with sets of an exact number of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.delivery.cells import Cell
from benchmarks.delivery.log_lines import log_lines
from benchmarks.delivery.set_writer import SetWriter
from kiel_groups.embedded import Cluster
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.encoder import encode_message_set

__all__ = ["FilledTopic", "filled_topic"]

#: Different sets of a topic; its partitions repeat them. No set is compressed together with another.
_DIFFERENT_SETS = 16
_REQUEST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FilledTopic:
    """A topic, the number of its records, and the bytes of its log divided by those of its values."""

    name: str
    records: int
    log_share: float


@contextmanager
def filled_topic(cluster: Cluster, cell: Cell, *, quick: bool) -> Iterator[FilledTopic]:
    """
    Create and fill the topic of a cell on the only broker, and delete it at the end.

    The broker unpacks each compressed set and packs it again, with its own codec, to set the offsets.
    """
    asyncio.run(cluster.create_topic(cell.name, cell.partitions))
    writer = SetWriter(cluster.brokers[0])
    sets = message_sets(cell)
    waiting: dict[TopicPartition, bytes] = {}
    for number in range(cell.sets_each(quick=quick)):
        for partition in range(cell.partitions):
            waiting[TopicPartition(cell.name, partition)] = sets[(number + partition) % len(sets)]
            if sum(map(len, waiting.values())) > _REQUEST_BYTES:
                writer.append(waiting)
                waiting.clear()
        writer.append(waiting)
        waiting.clear()
    writer.close()
    records = cell.records(quick=quick)
    log_bytes = sum(file.stat().st_size for file in cluster.kafka[0].folder.rglob(f"{cell.name}-*/*.log"))
    yield FilledTopic(cell.name, records, log_bytes / (records * cell.value_bytes))
    asyncio.run(cluster.delete_topic(cell.name))


def message_sets(cell: Cell) -> list[bytes]:
    """Return the different sets of a cell."""
    codec = None if cell.codec == "none" else cell.codec
    count = cell.messages_per_set
    return [
        encode_message_set([None] * count, log_lines(count, cell.value_bytes, seed), codec)
        for seed in range(_DIFFERENT_SETS)
    ]
