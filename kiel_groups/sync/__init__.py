"""The clients for programs without an event loop: they block, on a loop in a thread of its own."""

from typing import TYPE_CHECKING

from kiel_groups.lazily import lazily

if TYPE_CHECKING:
    from kiel_groups.sync.loop_thread import LoopThread

__all__ = ["LoopThread"]

_HOMES = {
    "LoopThread": "kiel_groups.sync.loop_thread",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)
