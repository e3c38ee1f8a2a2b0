"""Hide the secrets of settings by what their connectors declare."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.connector_interfaces import Connector
from kiel_groups.workers.plugins.secret_masks import masked
from kiel_groups.workers.plugins.secret_texts import HIDDEN
from kiel_groups.workers.plugins.standard_keys import definition_of, task_definition_of

__all__ = ["DeclaredMask"]


class DeclaredMask:
    """
    Hides secrets of connectors and of their tasks, on threads; a ``ConfigMask``.

    Args:
        resolve: Returns the class of a connector without importing it, and raises ConfigError if it cannot.
        runtime: The threads.
    """

    def __init__(self, resolve: Callable[[str], type[Connector]], runtime: Runtime) -> None:
        self._resolve = resolve
        self._runtime = runtime
        # Threads that compute share the processor with the event loop, so there is one at a time.
        self._turn = asyncio.Lock()

    async def __call__(self, connector_class: str, configs: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
        """Return settings without secrets. If the class cannot be found, only the standard settings are shown."""
        async with self._turn:
            # Ten thousand settings, or a megabyte, take seconds.
            return await self._runtime.in_thread(partial(self._masked, connector_class, configs), "masks")

    def _masked(self, connector_class: str, configs: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
        try:
            found = self._resolve(connector_class)
            definitions = (definition_of(found), task_definition_of(found))
        except ConfigError:
            return [masked(config, None) for config in configs]
        shown = []
        for config in configs:
            for_connector, for_task = (masked(config, definition) for definition in definitions)
            shown.append({name: HIDDEN if for_task[name] == HIDDEN else text for name, text in for_connector.items()})
        return shown
