"""
Provide blocking clients for programs without an event loop, such as scripts, notebooks and threaded services.

Each client runs an event loop on a thread of its own. Its methods call their counterparts in ``kiel_groups.clients``.
Most methods wait for the outcome. Hooks that are plain functions run on further threads. The Spark source and sink use
only ``LoopThread``.
"""

from typing import TYPE_CHECKING

from kiel_groups.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from kiel_groups.sync.blocking_consumers import GroupedConsumer, SingleConsumer
    from kiel_groups.sync.blocking_producer import Producer
    from kiel_groups.sync.loop_thread import LoopThread

__all__ = ["GroupedConsumer", "SingleConsumer", "Producer", "LoopThread"]

_HOMES = {
    "kiel_groups.sync.blocking_consumers": ("GroupedConsumer", "SingleConsumer"),
    "kiel_groups.sync.blocking_producer": ("Producer",),
    "kiel_groups.sync.loop_thread": ("LoopThread",),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
