"""
Read and write topics on Tornado: the consumer of a group, the single consumer, and the producer.

Applications and ``sync`` import the names of this package, and only these names are public. The command line, ``ops``,
the demo and Spark also import from the subpackages. No method blocks the event loop; ``kiel_groups.sync`` has blocking
counterparts.
"""

from typing import TYPE_CHECKING

from kiel_groups.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from kiel_groups.clients.grouped import GroupedConsumer
    from kiel_groups.clients.produce.outcomes import RecordMetadata
    from kiel_groups.clients.produce.partitioners import hash_partitioner, random_partitioner
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
    "kiel_groups.clients.grouped": ("GroupedConsumer",),
    "kiel_groups.clients.single": ("SingleConsumer",),
    "kiel_groups.clients.producer": ("Producer",),
    "kiel_groups.clients.produce.outcomes": ("RecordMetadata",),
    "kiel_groups.clients.produce.partitioners": ("hash_partitioner", "random_partitioner"),
    "kiel_groups.constants": ("BEGINNING", "END"),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
