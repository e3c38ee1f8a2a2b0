"""Read the bodies of requests: JSON objects with the settings of a connector."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn

from kiel_groups.errors import ConfigError
from kiel_groups.workers.rest.rest_errors import RestError

__all__ = ["NewConnector", "named_config", "parse_config", "parse_new_connector", "parse_object"]


#: The longest name of a setting, in characters.
_LONGEST_NAME = 500


class NewConnector(NamedTuple):
    """What a user wants to create."""

    name: str
    config: dict[str, str]


def parse_object(body: bytes) -> dict[str, Any]:
    """
    Return the JSON object of a body. Numbers are texts, as they are written: settings are texts.

    Raises:
        RestError: The body is no JSON, or no object.
    """
    try:
        # Settings are stored as UTF-8, which has no half of a surrogate pair.
        text = body.decode()
        found = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse, object_pairs_hook=_unique)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RestError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}"[:500]) from error
    if not isinstance(found, dict):
        raise RestError(HTTPStatus.BAD_REQUEST, "the body is JSON, but no object; expected settings by name")
    return found


def parse_config(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """
    Return settings as texts. Booleans and numbers become texts, as in Kafka Connect.

    Raises:
        ConfigError: A setting is a list or an object, or its name is none.
    """
    for name in settings:
        # Names of settings are in log lines and in the history of the configuration.
        if not (name and name.isprintable() and len(name) <= _LONGEST_NAME):
            raise ConfigError(
                f"the name of a setting is {name!r:.100}; expected 1 to {_LONGEST_NAME} printable characters"
            )
    return {name: _text(name, value) for name, value in settings.items()}


def parse_new_connector(body: bytes) -> NewConnector:
    """
    Return the name and the settings of a new connector.

    Raises:
        RestError: The body is no JSON, or no object.
        ConfigError: The name or the settings are missing or not legal, or there is something else.
    """
    found = parse_object(body)
    if unknown := sorted(found.keys() - {"name", "config"}):
        raise ConfigError(f"the body has {unknown[0]!r:.100}; expected 'name' and 'config' only")
    name, config = found.get("name"), found.get("config")
    if not isinstance(config, dict):
        raise ConfigError("the body has no object 'config'; expected the settings of the connector there")
    if name is None:
        name = config.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ConfigError("the body has no text 'name'; expected the name of the connector there")
    return NewConnector(name.strip(), named_config(name.strip(), config))


def named_config(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the settings of a connector with its name among them, and without those that are null.

    Raises:
        ConfigError: The settings have another name, or one of them is a list or an object.
    """
    config = {key: text for key, text in parse_config(settings).items() if text is not None}
    given = config.get("name", name)
    if given.strip() != name:
        raise ConfigError(f"name: {given!r:.100} given for connector {name!r:.100}; expected the same name or none")
    return {**config, "name": name}


def _text(name: str, value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str):
        return value
    kind = "a list" if isinstance(value, list) else "an object"
    raise ConfigError(f"{name:.100}: {kind} given; expected a text, a number, a boolean or null")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found
