"""Check the settings of connectors and tasks, and report the outcome in the form of Kafka Connect's REST API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kiel_groups.workers.plugins.config_definition import CheckedConfig, ConfigDefinition, Settings
from kiel_groups.workers.plugins.config_key import ConfigKey
from kiel_groups.workers.plugins.connector_interfaces import Connector
from kiel_groups.workers.plugins.secret_masks import masked, secret_values
from kiel_groups.workers.plugins.secret_texts import error_texts, without_secrets
from kiel_groups.workers.plugins.standard_keys import (
    TOPIC_NAME,
    TOPIC_NAMES,
    definition_of,
    standard_settings,
    task_definition_of,
)

__all__ = ["checked_config", "named_topics", "task_settings", "validation_report"]


def checked_config(connector_class: type[Connector], config: Mapping[str, str | None]) -> CheckedConfig:
    """
    Check the settings of a connector: each by itself, and if all are legal, all together by ``Connector.check``.

    This raises no error. What ``Connector.check`` raises is reported as an error of ``connector.class``.
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
    """Return the errors that ``Connector.check`` has returned for a setting. One text is one error."""
    return tuple(map(str, [given] if isinstance(given, str) else given)) if given else ()


def task_settings(
    connector_class: type[Connector], connector_config: Mapping[str, str], task_config: Mapping[str, str]
) -> Settings:
    """
    Return the typed settings of a task.

    Args:
        connector_class: The class of its connector.
        connector_config: The settings of the connector, from which the task has the standard ones.
        task_config: What ``Connector.task_configs`` has returned for the task.

    Raises:
        ConfigError: A setting is missing or not legal; the text has all errors.
    """
    return task_definition_of(connector_class).parse({**task_config, **standard_settings(connector_config)})


def validation_report(
    plugin: str, connector_class: type[Connector], config: Mapping[str, str | None]
) -> dict[str, Any]:
    """
    Return the answer to ``PUT /connector-plugins/PLUGIN/config/validate``, as Kafka Connect gives it.

    ``warnings`` and ``mistyped`` are there in addition if settings are not declared: Kafka Connect says nothing about
    these.

    Args:
        plugin: The name of the class that the user has asked about.
        connector_class: That class.
        config: The settings to check, also if some are missing.
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
        "name": plugin,
        "error_count": sum(len(texts) for texts in checked.errors.values()),
        "groups": definition.groups,
        "configs": entries,
    }
    further = {"warnings": list(checked.warnings), "mistyped": dict(checked.mistyped)}
    return report | {name: found for name, found in further.items() if found}


def named_topics(connector_class: type[Connector], config: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Return the topics in each declared setting that takes the name of a topic, or the names of topics."""
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
