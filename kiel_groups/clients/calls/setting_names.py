"""Check the names of a client's settings; a name of kafka-python or aiokafka is answered with the one to use here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import ParamSpec

from kiel_groups.clients.calls.client_arguments import BrokerSettings
from kiel_groups.errors import ConfigError

__all__ = ["check_setting_names"]

P = ParamSpec("P")

#: Settings of kafka-python and aiokafka, and the argument of this package that has the same meaning.
_RENAMED = {
    "bootstrap_servers": "brokers",
    "group_id": "group",
    "group_instance_id": "instance_id",
    "enable_auto_commit": "autocommit",
    "value_deserializer": "deserializer",
    "fetch_max_wait_ms": "max_wait_time",
    "fetch_min_bytes": "min_bytes",
    "fetch_max_bytes": "max_bytes",
    "max_partition_fetch_bytes": "max_message_bytes",
    "partition_assignment_strategy": "partition_allocator",
    "reconnect_backoff_ms": "backoff_ms",
    "reconnect_backoff_max_ms": "max_backoff_ms",
    "value_serializer": "serializer",
    "acks": "required_acks",
    "compression_type": "compression",
    "buffer_memory": "max_buffered_bytes",
}

#: What to do instead, for settings without a counterpart.
_INSTEAD = {
    "topics": "pass the topics to subscribe()",
    "consumer_timeout_ms": "use getmany(timeout_ms=...)",
    "max_poll_records": "use getmany(max_records=...)",
    "group_id": "this client has no group (GroupedConsumer has)",
    "enable_auto_commit": "this client does not commit (GroupedConsumer does)",
    "security_protocol": "Kafka 0.8 has plain connections only",
    "api_version": "the versions of Kafka 0.8 are used; omit it",
}


def check_setting_names(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate a client's constructor: an argument that it does not have is a ConfigError that says what to do."""
    parameters = inspect.signature(init).parameters.values()
    known = {
        each.name for each in parameters if each.kind is not each.VAR_KEYWORD
    } | BrokerSettings.__annotations__.keys()

    @functools.wraps(init)
    def checked(*args: P.args, **settings: P.kwargs) -> None:
        if unknown := [name for name in settings if name not in known]:
            raise ConfigError("; ".join(f"{name}: there is no such setting{_hint(name, known)}" for name in unknown))
        init(*args, **settings)

    return checked


def _hint(name: str, known: set[str]) -> str:
    if _RENAMED.get(name) in known:
        return f", it is {_RENAMED[name]} here"
    if name in _INSTEAD:
        return f", {_INSTEAD[name]}"
    near = get_close_matches(name, sorted(known), 1)
    return f", did you mean {near[0]}?" if near else ""
