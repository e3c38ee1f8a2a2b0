"""Check the settings of connectors and tasks, and hide secrets in settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kiel_groups.errors import ConfigError
from kiel_groups.secret_texts import HIDDEN, error_texts, is_common, may_be_secret, quoted_forms, without_secrets
from kiel_groups.workers.plugins.config_definition import (
    MOST_HINTS,
    CheckedConfig,
    ConfigDefinition,
    ConfigKey,
    Settings,
    full_name,
)
from kiel_groups.workers.plugins.interfaces import Connector
from kiel_groups.workers.plugins.secret_references import (
    NO_REFERENCES,
    ResolvedConfig,
    SecretReferences,
    has_reference,
    is_reference,
    other_provider,
)
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


def masked(config: Mapping[str, str], definition: ConfigDefinition | None) -> dict[str, str]:
    """
    Return a configuration as REST answers and log lines may show it: ``[hidden]`` in place of each secret.

    Secrets are settings of the type ``password``, and undeclared settings that may be secrets. In all other texts, the
    secrets are the users, passwords and parameters of URLs. A text that is only a reference to a secret is none.

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
        if is_reference(text):
            is_secret = False
        elif name in definition:
            is_secret = definition[name].type == "password"
        elif is_common(text):
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
    if _is_standard(name) or is_reference(text):
        return False
    if definition is None:
        return True
    if name in definition:
        return definition[name].type == "password"
    nearest = definition.nearest(name) if near else None
    mistyped = nearest is not None and definition[nearest].type == "password"
    return mistyped or may_be_secret(name, text)


def _is_standard(name: str) -> bool:
    return any(name in keys for keys in (STANDARD_KEYS, SOURCE_KEYS, SINK_KEYS))


def _resolved(
    config: Mapping[str, str | None], definition: ConfigDefinition, references: SecretReferences
) -> ResolvedConfig:
    """
    Replace the references in settings by their values.

    Standard settings, and those that are classes, take no references: other parts of the worker, which know only the
    stored texts, rely on them.
    """
    literal = [
        name for name in config if _is_standard(name) or (name in definition and definition[name].type == "class")
    ]
    return references.resolve(config, literal)


def _checked(definition: ConfigDefinition, config: Mapping[str, str | None], resolved: ResolvedConfig) -> CheckedConfig:
    """Check each setting by itself. The errors have no values of references."""
    checked = definition.check(resolved.texts)
    errors = dict(checked.errors)
    for name, text in config.items():
        if name in resolved.errors:
            errors[name] = (resolved.errors[name],)
        elif name in errors and text is not None and has_reference(text):
            # The definition's error may quote a part of the value.
            shown = masked({name: text}, definition)[name]
            errors[name] = (f"{name}: the value of {shown!r:.200} is not legal; expected {definition[name].expected}",)
    others = {name: other_provider(text) for name, text in config.items() if text is not None and "${" in text}
    warnings = [
        f"{name}: ${{{provider}:...}} is used as it is; references begin with ${{file: or ${{env:"
        for name, provider in others.items()
        if provider
    ]
    return replace(checked, errors=errors, warnings=(*checked.warnings, *warnings))


def checked_config(
    connector_class: type[Connector],
    config: Mapping[str, str | None],
    references: SecretReferences = NO_REFERENCES,
) -> CheckedConfig:
    """
    Check the settings of a connector: each setting by itself, then all legal settings together by ``Connector.check``.

    Illegal settings raise no error. An error of ``Connector.check`` is reported as an error of ``connector.class``.
    """
    return _checked_connector(connector_class, config, _resolved(config, definition_of(connector_class), references))


def _checked_connector(
    connector_class: type[Connector], config: Mapping[str, str | None], resolved: ResolvedConfig
) -> CheckedConfig:
    definition = definition_of(connector_class)
    checked = _checked(definition, config, resolved)
    if checked.errors:
        return checked
    secrets = _secrets(resolved, definition)
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


def _secrets(resolved: ResolvedConfig, definition: ConfigDefinition) -> frozenset[str]:
    """Return all secrets of settings, in the forms in which errors may quote them."""
    given = {name: text for name, text in resolved.texts.items() if text is not None}
    return resolved.secrets | secret_values(given, definition)


def _texts(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """
    Convert the errors that ``Connector.check`` has returned for a setting to a tuple of texts. A str is one error.
    """
    return tuple(map(str, [given] if isinstance(given, str) else given)) if given else ()


@dataclass(frozen=True, slots=True, repr=False)
class RunSettings:
    """
    What a run of a connector or a task needs of its settings. The ``repr`` has none of it.

    Args:
        settings: The settings, checked and typed.
        texts: The texts of the settings that have references, with values in place of the references.
        referenced: The values of the references, in all forms in which texts may quote them.
        secrets: All secrets, in these forms.
    """

    settings: Settings
    texts: Mapping[str, str]
    referenced: frozenset[str]
    secrets: frozenset[str]


def run_settings(
    connector_class: type[Connector],
    connector_config: Mapping[str, str],
    task_config: Mapping[str, str] | None,
    references: SecretReferences = NO_REFERENCES,
) -> RunSettings:
    """
    Read the secrets that settings refer to, check the settings, and return what a run needs.

    Args:
        connector_class: The class of the connector.
        connector_config: The settings of the connector. A task has the standard settings among them.
        task_config: The settings that ``Connector.task_configs`` has returned for the task; None for the connector.
        references: Finds the values of references.

    Raises:
        ConfigError: A setting is missing or not legal, or a reference has no value. The text has all errors.
    """
    if task_config is None:
        definition, config = definition_of(connector_class), dict(connector_config)
        resolved = _resolved(config, definition, references)
        settings = _checked_connector(connector_class, config, resolved).settings
    else:
        definition = task_definition_of(connector_class)
        config = {**task_config, **standard_settings(connector_config)}
        resolved = _resolved(config, definition, references)
        settings = _checked(definition, config, resolved).settings
    texts = {name: text for name, text in resolved.texts.items() if text is not None and text != config[name]}
    return RunSettings(settings, texts, resolved.secrets, _secrets(resolved, definition))


def validation_report(
    connector_class: type[Connector],
    config: Mapping[str, str | None],
    references: SecretReferences = NO_REFERENCES,
) -> dict[str, Any]:
    """
    Check settings, and return Kafka Connect's answer to ``PUT /connector-plugins/PLUGIN/config/validate``.

    If settings are not declared, the answer also has ``warnings`` and ``mistyped``, which Kafka Connect does not have.

    Args:
        connector_class: The class that the user has asked about.
        config: The settings to check, even if some are missing.
        references: Finds the values of references.
    """
    definition = definition_of(connector_class)
    checked = checked_config(connector_class, config, references)
    given = {name: text for name, text in config.items() if text is not None}
    shown = masked(given, definition)
    # The report has references, and not their values.
    referring = {name: shown[name] for name, text in given.items() if has_reference(text)}
    entries = [_entry(key, definition, checked, referring) for key in definition]
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


def _entry(
    key: ConfigKey, definition: ConfigDefinition, checked: CheckedConfig, referring: Mapping[str, str]
) -> dict[str, Any]:
    choices = key.validator.choices if key.validator else ()
    value = key.text(checked.values.get(key.name))
    shown = referring.get(key.name) or (value and without_secrets(value))
    return {
        "definition": _described(key, definition),
        "value": _value(key.name, shown, checked.errors.get(key.name, ()), choices),
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
