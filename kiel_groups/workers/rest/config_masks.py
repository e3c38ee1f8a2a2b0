"""Hide the secrets of settings by what their connectors declare."""

from __future__ import annotations

from collections.abc import Mapping

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.plugin_registry import PluginRegistry
from kiel_groups.workers.plugins.secret_masks import masked
from kiel_groups.workers.plugins.secret_texts import HIDDEN
from kiel_groups.workers.plugins.standard_keys import definition_of, task_definition_of

__all__ = ["DeclaredMask"]


class DeclaredMask:
    """
    Hides secrets of connectors and of their tasks; a ``ConfigMask``.

    Args:
        registry: Finds the classes of the connectors.
    """

    def __init__(self, registry: PluginRegistry) -> None:
        self._registry = registry

    def __call__(self, connector_class: str, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return settings without secrets. If the class cannot be found, only the standard settings are shown."""
        try:
            found = self._registry.resolve(connector_class)
            definitions = (definition_of(found), task_definition_of(found))
        except ConfigError:
            return masked(config, None)
        for_connector, for_task = (masked(config, definition) for definition in definitions)
        return {name: HIDDEN if for_task[name] == HIDDEN else text for name, text in for_connector.items()}
