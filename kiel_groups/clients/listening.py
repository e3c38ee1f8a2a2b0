"""Calling the application's rebalance listener: one hook at a time, and its failures contained."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection
from typing import Any

from kiel_groups.clients.futures import spawn
from kiel_groups.listeners import RebalanceListener
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

__all__ = ["ListenerCalls"]

log = logging.getLogger(__name__)


class ListenerCalls:
    """
    The hooks of one listener, never two at once; without a listener every call ends at once.

    A loss does not wait for its turn: it cancels the hook that runs, whose partitions are gone.
    """

    def __init__(self, listener: RebalanceListener | None, metrics: Metrics) -> None:
        self._listener = listener
        self._metrics = metrics
        self._turn = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        if self._listener is not None:
            await self._in_turn(self._listener.on_partitions_revoked, partitions)

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        if self._listener is not None:
            await self._in_turn(self._listener.on_partitions_assigned, partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        if self._listener is None:
            return
        if self._running is not None:
            self._running.cancel()
        spawn(self._in_turn(self._listener.on_partitions_lost, partitions), "on_partitions_lost")

    async def _in_turn(self, hook: Callable[..., Any], partitions: Collection[TopicPartition]) -> None:
        async with self._turn:
            self._running = spawn(self._call(hook, sorted(partitions)), hook.__name__)
            try:
                await asyncio.wait({self._running})
            finally:
                self._running = None

    async def _call(self, hook: Callable[..., Any], partitions: Collection[TopicPartition]) -> None:
        try:
            result = hook(partitions)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError:
            log.warning("the listener's %s was cut short: the session is over", hook.__name__)
            raise
        except Exception:
            # The application's error; the hand-over goes on, or others would wait for these partitions.
            log.exception("the listener's %s failed", hook.__name__)
            self._metrics.count("listener_failures")
