"""Arguments that a client does not have, such as those of kafka-python, are answered with what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import kiel_groups
from kiel_groups import GroupedConsumer, Producer, SingleConsumer, sync
from kiel_groups.errors import ConfigError

pytestmark = pytest.mark.unit

GROUPED = [GroupedConsumer, sync.GroupedConsumer]
NO_GROUP = "there is no such setting, this client has no group (GroupedConsumer has)"


@pytest.mark.parametrize("client", GROUPED)
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("bootstrap_servers", "brokers"),
        ("group_id", "group"),
        ("enable_auto_commit", "autocommit"),
        ("value_deserializer", "deserializer"),
        ("group_instance_id", "instance_id"),
        ("max_partition_fetch_bytes", "max_message_bytes"),
    ],
)
def test_a_name_of_kafka_python_is_answered_with_ours(client: Callable[..., Any], theirs: str, ours: str) -> None:
    """The error names the argument, also if required ones are missing."""
    with pytest.raises(ConfigError) as refused:
        client(**{theirs: None})
    assert str(refused.value) == f"{theirs}: there is no such setting, it is {ours} here"
    assert ours in inspect.signature(GroupedConsumer).parameters


@pytest.mark.parametrize(
    ("client", "name", "text"),
    [
        (GroupedConsumer, "consumer_timeout_ms", "there is no such setting, use getmany(timeout_ms=...)"),
        (GroupedConsumer, "autocomit", "there is no such setting, did you mean autocommit?"),
        (GroupedConsumer, "requst_timeout_ms", "there is no such setting, did you mean request_timeout_ms?"),
        (GroupedConsumer, "zzz", "there is no such setting"),
        (GroupedConsumer, "broker_settings", "there is no such setting, did you mean brokers?"),
        (SingleConsumer, "group_id", NO_GROUP),
        (sync.SingleConsumer, "group_id", NO_GROUP),
        (Producer, "acks", "there is no such setting, it is required_acks here"),
        (sync.Producer, "compression_type", "there is no such setting, it is compression here"),
        (
            Producer,
            "key_serializer",
            "there is no such setting, give produce() the key as text, which is sent as UTF-8, or as bytes",
        ),
        (GroupedConsumer, "bootstrap.servers", "there is no such setting, it is brokers here"),
        (sync.Producer, "linger.ms", "there is no such setting, it is linger_ms here"),
    ],
)
def test_the_error_says_what_to_do(client: Callable[..., Any], name: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        client(**{name: None})
    assert str(refused.value) == f"{name}: {text}"


def test_all_unknown_names_are_in_one_error() -> None:
    """A program that was written for kafka-python is changed in one step."""
    with pytest.raises(ConfigError, match=r"^bootstrap_servers: .*; group_id: .*; zzz: "):
        GroupedConsumer("topic", bootstrap_servers="localhost", group_id="clicks", zzz=1)  # type: ignore[call-arg]


def test_a_missing_argument_is_pythons_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'group'"):
        GroupedConsumer("localhost")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["GroupedConsumer", "SingleConsumer", "Producer"])
def test_tools_see_all_arguments(name: str) -> None:
    """Editors and ``help()`` show the arguments of a client, of the blocking one as well."""
    asynchronous, blocking = inspect.signature(getattr(kiel_groups, name)), inspect.signature(getattr(sync, name))
    assert next(iter(asynchronous.parameters)) == "brokers"
    assert blocking.parameters == asynchronous.parameters


def test_a_subclass_may_have_arguments_of_its_own() -> None:
    """Only what reaches the client's own constructor is checked."""

    class Mine(GroupedConsumer):
        def __init__(self, group_id: str) -> None:
            super().__init__("localhost", group_id, "localhost")

    assert Mine(group_id="clicks").group_name == "clicks"
