"""
Provide consumer groups for Kafka 0.8.x: a partition allocator on ZooKeeper, and Tornado consumers.

Applications import the names below, and modules of this package import each other directly. ``import kiel_groups``
loads neither Tornado nor kazoo: the module of a name is imported when the name is first used.
"""

from kiel_groups.lazy_imports import TYPE_CHECKING, lazy_exports

if TYPE_CHECKING:
    from kiel_groups.clients import GroupedConsumer, Producer, SingleConsumer
    from kiel_groups.errors import KielGroupsError
    from kiel_groups.listeners import RebalanceListener
    from kiel_groups.members.brokers.hooks import JoinedGroup, MemberHooks
    from kiel_groups.members.programs.generic_member import GenericMember
    from kiel_groups.model import Batch, OffsetAndMetadata, OffsetAndTimestamp, PartitionBatch, Record, TopicPartition
    from kiel_groups.wire.group_requests import GroupProtocol
    from kiel_groups.wire.message_sets.record_columns import RecordColumns

__all__ = [
    "GroupedConsumer",
    "SingleConsumer",
    "Producer",
    "GenericMember",
    "MemberHooks",
    "JoinedGroup",
    "GroupProtocol",
    "Record",
    "Batch",
    "PartitionBatch",
    "RecordColumns",
    "TopicPartition",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "RebalanceListener",
    "KielGroupsError",
    "__version__",
]

__version__ = "0.1.0"

_HOMES = {
    "kiel_groups.clients": ("GroupedConsumer", "SingleConsumer", "Producer"),
    "kiel_groups.members.programs.generic_member": ("GenericMember",),
    "kiel_groups.members.brokers.hooks": ("MemberHooks", "JoinedGroup"),
    "kiel_groups.wire.group_requests": ("GroupProtocol",),
    "kiel_groups.model": (
        "Record",
        "Batch",
        "PartitionBatch",
        "TopicPartition",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
    ),
    "kiel_groups.wire.message_sets.record_columns": ("RecordColumns",),
    "kiel_groups.listeners": ("RebalanceListener",),
    "kiel_groups.errors": ("KielGroupsError",),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
