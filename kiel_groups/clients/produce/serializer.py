"""Encode the values of records, with the application's serializer if it has one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from kiel_groups.errors import ConfigError

__all__ = ["Serializer", "serialize_value"]

#: Encodes a value; text is sent as UTF-8, None as null.
Serializer: TypeAlias = Callable[[Any], bytes | str | None]


def serialize_value(value: Any, serializer: Serializer | None) -> bytes | None:
    """
    Encode a value. Without a serializer, bytes stay as they are, None is null, and anything else becomes JSON with
    sorted keys.

    Raises:
        ConfigError: JSON cannot represent the value, or the serializer returned something that cannot be sent.
    """
    if serializer is None:
        return value if value is None or isinstance(value, bytes) else _json(value)
    made = serializer(value)
    if made is None or isinstance(made, bytes):
        return made
    if isinstance(made, str):
        return made.encode()
    raise ConfigError(f"serializer: {type(made).__name__} returned; expected bytes, str or None")


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"value: it has no form in JSON ({error}); send bytes, or give a serializer") from error
