"""The clients for programs without an event loop: they block, on a loop in a thread of its own."""

from typing import TYPE_CHECKING

from kiel_groups.lazily import lazily

if TYPE_CHECKING:
    from kiel_groups.sync.grouped import GroupedConsumer
    from kiel_groups.sync.loop_thread import LoopThread
    from kiel_groups.sync.producer import Producer
    from kiel_groups.sync.single import SingleConsumer

__all__ = ["GroupedConsumer", "SingleConsumer", "Producer", "LoopThread"]

_HOMES = {
    "GroupedConsumer": "kiel_groups.sync.grouped",
    "SingleConsumer": "kiel_groups.sync.single",
    "Producer": "kiel_groups.sync.producer",
    "LoopThread": "kiel_groups.sync.loop_thread",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)
