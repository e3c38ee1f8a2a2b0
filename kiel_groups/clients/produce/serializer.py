"""Bytes of values, through the application's own function where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from kiel_groups.errors import ConfigError

__all__ = ["Serializer", "serialized"]

#: Makes what is sent of a value; text goes out as UTF-8, None as null.
Serializer: TypeAlias = Callable[[Any], bytes | str | None]


def serialized(value: Any, serializer: Serializer | None) -> bytes | None:
    """
    A value as it goes over the wire: without a serialiser bytes as they are, anything else as JSON with sorted keys.

    Raises:
        ConfigError: JSON has no form for the value, or the serialiser returned something that cannot be sent.
    """
    if serializer is None:
        return value if isinstance(value, bytes) else _json(value)
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
