"""
Offer the clients to programs without an event loop: they block, on a loop in a thread of its own.

Scripts, notebooks and threaded services import them.
These classes add no behaviour: every method calls that of ``kiel_groups.clients``, and waits for its outcome.
"""

from typing import TYPE_CHECKING

from kiel_groups.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from kiel_groups.sync.blocking_grouped import GroupedConsumer
    from kiel_groups.sync.blocking_producer import Producer
    from kiel_groups.sync.blocking_single import SingleConsumer
    from kiel_groups.sync.loop_thread import LoopThread

__all__ = ["GroupedConsumer", "SingleConsumer", "Producer", "LoopThread"]

_HOMES = {
    "GroupedConsumer": "kiel_groups.sync.blocking_grouped",
    "SingleConsumer": "kiel_groups.sync.blocking_single",
    "Producer": "kiel_groups.sync.blocking_producer",
    "LoopThread": "kiel_groups.sync.loop_thread",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
