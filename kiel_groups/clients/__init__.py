"""
Read and write topics on Tornado: the consumer of a group, the single consumer, and the producer.

Applications and ``sync`` import its names; the command line, ``ops``, the demo and Spark also the packages below.
Only these names are public. No method blocks the event loop; ``kiel_groups.sync`` has blocking counterparts.
"""

from typing import TYPE_CHECKING

from kiel_groups.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from kiel_groups.clients.grouped import GroupedConsumer
    from kiel_groups.clients.produce.partitioners import hash_partitioner, random_partitioner
    from kiel_groups.clients.produce.sender import RecordMetadata
    from kiel_groups.clients.producer import Producer
    from kiel_groups.clients.single import SingleConsumer
    from kiel_groups.constants import BEGINNING, END

__all__ = [
    "GroupedConsumer",
    "SingleConsumer",
    "Producer",
    "RecordMetadata",
    "hash_partitioner",
    "random_partitioner",
    "BEGINNING",
    "END",
]

_HOMES = {
    "GroupedConsumer": "kiel_groups.clients.grouped",
    "SingleConsumer": "kiel_groups.clients.single",
    "Producer": "kiel_groups.clients.producer",
    "RecordMetadata": "kiel_groups.clients.produce.sender",
    "hash_partitioner": "kiel_groups.clients.produce.partitioners",
    "random_partitioner": "kiel_groups.clients.produce.partitioners",
    "BEGINNING": "kiel_groups.constants",
    "END": "kiel_groups.constants",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
