"""
Provide blocking clients for programs without an event loop; each client runs a loop on its own thread.

Scripts, notebooks and threaded services import them; the Spark source runs event loops with ``LoopThread``.
These classes add no behaviour: every method calls its counterpart in ``kiel_groups.clients`` and waits for the outcome.
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
