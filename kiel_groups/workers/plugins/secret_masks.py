"""Hide secrets of configurations from users and logs, and put them back into configurations that return hidden."""

from __future__ import annotations

from collections.abc import Mapping

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.config_definition import MOST_HINTS, ConfigDefinition
from kiel_groups.workers.plugins.secret_texts import HIDDEN, may_be_secret, quoted_forms, without_secrets
from kiel_groups.workers.plugins.standard_keys import SINK_KEYS, SOURCE_KEYS, STANDARD_KEYS

__all__ = ["masked", "secret_values", "with_secrets"]

#: Undeclared settings with these texts are no secrets, whatever their names are, nor are shorter texts.
_NO_SECRETS = frozenset({"true", "false", "none", "null"})
_SHORTEST_SECRET = 4


def masked(config: Mapping[str, str], definition: ConfigDefinition | None) -> dict[str, str]:
    """
    Return a configuration as REST answers and log lines may show it: ``[hidden]`` in place of each secret.

    Secrets are settings of the type ``password``, undeclared settings that may be secrets, and in all other texts the
    users, passwords and parameters of URLs.

    Args:
        config: The texts by name.
        definition: The declared settings. If it is None, because the connector's class cannot be used, every
            setting but the standard ones is hidden.
    """
    return {
        name: HIDDEN if _is_secret(name, text, definition) else without_secrets(text) for name, text in config.items()
    }


def secret_values(config: Mapping[str, str], definition: ConfigDefinition) -> set[str]:
    """
    Return the secrets of a configuration in all forms in which the errors of a plugin quote them.

    They are hidden wherever they occur, so short texts do not count unless they are declared as passwords.
    """
    found: set[str] = set()
    undeclared = 0
    for name, text in config.items():
        if name in definition:
            is_secret = definition[name].type == "password"
        elif len(text) < _SHORTEST_SECRET or text.lower() in _NO_SECRETS:
            is_secret = False
        else:
            undeclared += 1
            is_secret = _is_secret(name, text, definition, near=undeclared <= MOST_HINTS)
        if is_secret:
            found |= quoted_forms(text)
    return found


def with_secrets(config: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
    """
    Return a configuration with the stored texts in place of those that ``masked`` has returned.

    So a user may read a configuration, change a part of it, and write it back.

    Args:
        config: What the user has given.
        stored: The present configuration; empty if there is none.

    Raises:
        ConfigError: A text has ``[hidden]`` and is not what is shown of the stored one: the secret is unknown.
    """
    return {name: _revealed(name, text, stored.get(name)) for name, text in config.items()}


def _revealed(name: str, text: str, stored: str | None) -> str:
    """Return a text that a user has given, or the stored one if the user has given back what was shown of it."""
    if HIDDEN not in text:
        return text
    if stored is None:
        raise ConfigError(f"{name}: {HIDDEN} given, which means the stored value, but none is stored; give the value")
    if (given := text.strip()) != HIDDEN and given != without_secrets(stored).strip():
        raise ConfigError(
            f"{name}: {HIDDEN} given within a changed text; give the text with its secrets, or {HIDDEN} alone to keep"
            " the stored one"
        )
    return stored


def _is_secret(name: str, text: str, definition: ConfigDefinition | None, *, near: bool = True) -> bool:
    if any(name in keys for keys in (STANDARD_KEYS, SOURCE_KEYS, SINK_KEYS)):
        return False
    if definition is None:
        return True
    if name in definition:
        return definition[name].type == "password"
    nearest = definition.nearest(name) if near else None
    mistyped = nearest is not None and definition[nearest].type == "password"
    return mistyped or may_be_secret(name, text)
