"""Consumer groups for Kafka 0.8.x: a partition allocator on ZooKeeper and Tornado consumers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiel_groups.clients import GroupedConsumer, Producer, SingleConsumer
    from kiel_groups.errors import KielGroupsError
    from kiel_groups.listeners import RebalanceListener
    from kiel_groups.model import Record, TopicPartition

__all__ = [
    "GroupedConsumer",
    "SingleConsumer",
    "Producer",
    "Record",
    "TopicPartition",
    "RebalanceListener",
    "KielGroupsError",
    "__version__",
]

__version__ = "0.1.0"

# Loaded when first asked for (PEP 562): importing every room costs a command line 0.3 s before it prints a version.
_HOMES = {
    "GroupedConsumer": "kiel_groups.clients",
    "SingleConsumer": "kiel_groups.clients",
    "Producer": "kiel_groups.clients",
    "Record": "kiel_groups.model",
    "TopicPartition": "kiel_groups.model",
    "RebalanceListener": "kiel_groups.listeners",
    "KielGroupsError": "kiel_groups.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
