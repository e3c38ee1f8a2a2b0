"""Hide secrets of configurations from users and logs, and put them back into configurations that return hidden."""

from __future__ import annotations

from collections.abc import Mapping

from kiel_groups.workers.plugins.config_definition import ConfigDefinition
from kiel_groups.workers.plugins.config_types import HIDDEN
from kiel_groups.workers.plugins.standard_keys import SINK_KEYS, SOURCE_KEYS, STANDARD_KEYS

__all__ = ["masked", "with_secrets"]

#: Parts of names that secrets usually have. They matter for settings that no connector declares.
_TELLTALES = (
    "password",
    "passwd",
    "secret",
    "token",
    "authorization",
    "credential",
    "api.key",
    "apikey",
    "private.key",
)


def masked(config: Mapping[str, str], definition: ConfigDefinition | None) -> dict[str, str]:
    """
    Return a configuration as REST answers and log lines may show it: ``[hidden]`` in place of each secret.

    A setting that is not declared is hidden, too, if it may be a mistyped secret.

    Args:
        config: The texts by name.
        definition: The declared settings. If it is None, because the connector's class cannot be imported, every
            setting but the standard ones is hidden.
    """
    return {name: HIDDEN if _is_secret(name, definition) else text for name, text in config.items()}


def with_secrets(config: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
    """
    Return a configuration with the stored texts in place of ``[hidden]``.

    So a user may read a configuration, change a part of it, and write it back.

    Args:
        config: What the user has given.
        stored: The present configuration; empty if there is none. A text that it lacks stays ``[hidden]``.
    """
    return {name: stored.get(name, text) if text == HIDDEN else text for name, text in config.items()}


def _is_secret(name: str, definition: ConfigDefinition | None) -> bool:
    if any(name in keys for keys in (STANDARD_KEYS, SOURCE_KEYS, SINK_KEYS)):
        return False
    if definition is None:
        return True
    if name in definition:
        return definition[name].type == "password"
    near = definition.nearest(name)
    mistyped = near is not None and definition[near].type == "password"
    return mistyped or any(telltale in name.lower().replace("_", ".") for telltale in _TELLTALES)
