"""Check the settings of connectors and tasks, and hide secrets in settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kiel_groups.errors import ConfigError
from kiel_groups.secret_texts import HIDDEN, error_texts, may_be_secret, quoted_forms, without_secrets
from kiel_groups.workers.plugins.config_definition import (
    MOST_HINTS,
    CheckedConfig,
    ConfigDefinition,
    ConfigKey,
    Settings,
    full_name,
)
from kiel_groups.workers.plugins.interfaces import Connector
from kiel_groups.workers.plugins.standard_keys import (
    SINK_KEYS,
    SOURCE_KEYS,
    STANDARD_KEYS,
    TOPIC_NAME,
    TOPIC_NAMES,
    definition_of,
    standard_settings,
    task_definition_of,
)

#: Undeclared settings with these texts are no secrets, whatever their names are, nor are shorter texts.
_NO_SECRETS = frozenset({"true", "false", "none", "null"})
_SHORTEST_SECRET = 4


def masked(config: Mapping[str, str], definition: ConfigDefinition | None) -> dict[str, str]:
    """
    Return a configuration as REST answers and log lines may show it: ``[hidden]`` in place of each secret.

    Secrets are settings of the type ``password``, and undeclared settings that may be secrets. In all other texts, the
    secrets are the users, passwords and parameters of URLs.

    Args:
        config: The texts by name.
        definition: The declared settings. None means that the connector's class cannot be used: then all settings
            except the standard settings are hidden.
    """
    return {
        name: HIDDEN if _is_secret(name, text, definition) else without_secrets(text) for name, text in config.items()
    }


def secret_values(config: Mapping[str, str], definition: ConfigDefinition) -> set[str]:
    """
    Return the secrets of a configuration, in all forms in which errors of a plugin may quote them.

    The caller hides these texts wherever they occur. So short texts are omitted, unless they are declared as passwords.
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
    Return a configuration in which stored texts replace the texts that ``masked`` shows for them.

    So a user may read a masked configuration, change a part of it, and write it back.

    Args:
        config: The settings that the user has given.
        stored: The present configuration; empty for a new connector.

    Raises:
        ConfigError: A text contains ``[hidden]``, but is not the masked form of a stored text. So the secret is
            unknown.
    """
    return {name: _revealed(name, text, stored.get(name)) for name, text in config.items()}


def _revealed(name: str, text: str, stored: str | None) -> str:
    """Return the stored text if the user has given its masked form, else the given text."""
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


def checked_config(connector_class: type[Connector], config: Mapping[str, str | None]) -> CheckedConfig:
    """
    Check the settings of a connector: each setting by itself, then all legal settings together by ``Connector.check``.

    Illegal settings raise no error. An error of ``Connector.check`` is reported as an error of ``connector.class``.
    """
    definition = definition_of(connector_class)
    checked = definition.check(config)
    if checked.errors:
        return checked
    secrets = secret_values({name: text for name, text in config.items() if text is not None}, definition)
    try:
        given = {str(name): _texts(texts) for name, texts in connector_class.check(checked.values).items()}
        found = {
            name: tuple(without_secrets(text, secrets) for text in texts) for name, texts in given.items() if texts
        }
    except Exception as error:  # code of a plugin
        text = error_texts(error, secrets).summary
        raised = f"connector.class: {connector_class.__name__}.check raised {type(error).__name__}: {text}"
        found = {"connector.class": (raised,)}
    return replace(checked, errors=found)


def _texts(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """
    Convert the errors that ``Connector.check`` has returned for a setting to a tuple of texts. A str is one error.
    """
    return tuple(map(str, [given] if isinstance(given, str) else given)) if given else ()


def task_settings(
    connector_class: type[Connector], connector_config: Mapping[str, str], task_config: Mapping[str, str]
) -> Settings:
    """
    Return the typed settings of a task.

    Args:
        connector_class: The class of the task's connector.
        connector_config: The settings of the connector. The task has the standard settings among them.
        task_config: The settings that ``Connector.task_configs`` has returned for the task.

    Raises:
        ConfigError: A setting is missing or not legal; the text has all errors.
    """
    return task_definition_of(connector_class).parse({**task_config, **standard_settings(connector_config)})


def validation_report(connector_class: type[Connector], config: Mapping[str, str | None]) -> dict[str, Any]:
    """
    Check settings, and return Kafka Connect's answer to ``PUT /connector-plugins/PLUGIN/config/validate``.

    If settings are not declared, the answer also has ``warnings`` and ``mistyped``, which Kafka Connect does not have.

    Args:
        connector_class: The class that the user has asked about.
        config: The settings to check, even if some are missing.
    """
    definition = definition_of(connector_class)
    checked = checked_config(connector_class, config)
    shown = masked({name: text for name, text in config.items() if text is not None}, definition)
    entries = [_entry(key, definition, checked) for key in definition]
    # A connector may also complain about a setting that it does not declare.
    entries += [
        {"definition": None, "value": _value(name, shown.get(name), texts)}
        for name, texts in checked.errors.items()
        if name not in definition
    ]
    report = {
        "name": full_name(connector_class),
        "error_count": sum(len(texts) for texts in checked.errors.values()),
        "groups": definition.groups,
        "configs": entries,
    }
    further = {"warnings": list(checked.warnings), "mistyped": dict(checked.mistyped)}
    return report | {name: found for name, found in further.items() if found}


def named_topics(connector_class: type[Connector], config: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Return the topic names in the settings of a connector, by the name of the declared setting."""
    definition = definition_of(connector_class)
    values = definition.check(config).values
    keys = [key.name for key in definition if key.validator in (TOPIC_NAME, TOPIC_NAMES) and values.get(key.name)]
    return {name: [values[name]] if isinstance(values[name], str) else list(values[name]) for name in keys}


def _entry(key: ConfigKey, definition: ConfigDefinition, checked: CheckedConfig) -> dict[str, Any]:
    choices = key.validator.choices if key.validator else ()
    value = key.text(checked.values.get(key.name))
    return {
        "definition": _described(key, definition),
        "value": _value(key.name, value and without_secrets(value), checked.errors.get(key.name, ()), choices),
    }


def _described(key: ConfigKey, definition: ConfigDefinition) -> dict[str, Any]:
    in_group = [each.name for each in definition if each.group == key.group]
    return {
        "name": key.name,
        "type": key.type.upper(),
        "required": key.required,
        "default_value": key.text(key.default),
        "importance": key.importance.upper(),
        "documentation": key.documentation,
        "group": key.group,
        "width": key.width.upper(),
        "display_name": key.display_name or key.name,
        "dependents": list(key.dependents),
        "order": in_group.index(key.name) + 1,
    }


def _value(name: str, value: str | None, errors: Sequence[str], choices: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "recommended_values": list(choices),
        "errors": list(errors),
        "visible": True,
    }
