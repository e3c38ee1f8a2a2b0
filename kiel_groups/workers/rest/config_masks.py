"""Hide the secrets of settings by what their connectors declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.connector_interfaces import Connector
from kiel_groups.workers.plugins.secret_masks import masked
from kiel_groups.workers.plugins.secret_texts import HIDDEN
from kiel_groups.workers.plugins.standard_keys import definition_of, task_definition_of

__all__ = ["DeclaredMask"]


class DeclaredMask:
    """
    Hides secrets of connectors and of their tasks; a ``ConfigMask``.

    Args:
        resolve: Returns the class of a connector, and raises ConfigError if it cannot. It is called on the event loop.
    """

    def __init__(self, resolve: Callable[[str], type[Connector]]) -> None:
        self._resolve = resolve

    def __call__(self, connector_class: str, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return settings without secrets. If the class cannot be found, only the standard settings are shown."""
        try:
            found = self._resolve(connector_class)
            definitions = (definition_of(found), task_definition_of(found))
        except ConfigError:
            return masked(config, None)
        for_connector, for_task = (masked(config, definition) for definition in definitions)
        return {name: HIDDEN if for_task[name] == HIDDEN else text for name, text in for_connector.items()}
