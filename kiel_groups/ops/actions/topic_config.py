"""
Read and change the settings of a topic, through ZooKeeper or by requests to brokers.

Brokers do not check the settings that they read from ZooKeeper, and a wrong value makes brokers fail again and again.
So this module checks the names and values. Brokers that accept requests check a change themselves, even a change that
is only planned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import NamedTuple

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from kiel_groups.errors import ConfigError, ConflictError, CoordinationError, KielGroupsError
from kiel_groups.group.znodes.contents import encode_object, parse_broker_version, parse_object, typed_field
from kiel_groups.group.znodes.transactions import Create, Put
from kiel_groups.ops.actions.topics import CONFIG_CHANGES, check_followed, check_present
from kiel_groups.ops.broker_reader import BrokerSession
from kiel_groups.ops.zookeeper_client import Client, commit, place_of, refusal_text
from kiel_groups.ops.zookeeper_reader import list_topics, read_brokers
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.framing import Request
from kiel_groups.wire.topic_requests import (
    OF_TOPIC,
    AlterConfigsRequest,
    ConfigAnswer,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kiel_groups.wording import some

#: How long brokers may take until they show a change that they have made, and the pause between two looks, in seconds.
_SHOWN_S, _POLL_S = 10.0, 0.05

#: The sources of settings, as users read them, by their numbers in the protocol.
_SOURCES = {OF_TOPIC: "topic", 2: "broker", 3: "brokers", 4: "server.properties", 5: "default"}


class TopicSetting(NamedTuple):
    """
    The value and the source of a setting of a topic.

    ``source`` is ``topic``, ``broker``, ``brokers``, ``server.properties`` or ``default``, or has the number of an
    unknown source.
    """

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class TopicConfigChange:
    """
    A change of a topic's own settings.

    ``settings`` has the present settings that are known: all settings from brokers, or the topic's own settings from
    ZooKeeper. ``values`` are the settings to set, and ``unset`` the names of settings to remove. ``version`` is the
    version of the znode of the settings, or None if there is no znode or brokers were asked.
    """

    topic: str
    settings: Mapping[str, TopicSetting]
    values: Mapping[str, str]
    unset: tuple[str, ...]
    version: int | None = None

    @property
    def before(self) -> dict[str, str]:
        """The topic's own settings now."""
        return {name: each.value for name, each in sorted(self.settings.items()) if each.source == "topic"}

    @property
    def after(self) -> dict[str, str]:
        """The topic's own settings after the change."""
        kept = {name: value for name, value in self.before.items() if name not in self.unset}
        return dict(sorted((kept | dict(self.values)).items()))

    def check(self) -> None:
        """Check that the topic itself has each setting that is to be removed. Raise ConfigError otherwise."""
        if missing := [name for name in self.unset if name not in self.before]:
            has = f"it has {some(self.before)}" if self.before else "it has none"
            raise ConfigError(f"topic {self.topic!r} has no setting {some(missing)} of its own; {has}")


def _number(least: int, bits: int = 63) -> tuple[str, Callable[[str], bool]]:
    def is_legal(text: str) -> bool:
        digits = text.removeprefix("-")
        return digits.isascii() and digits.isdecimal() and len(digits) < 20 and least <= int(text) < 1 << bits

    return f"a number from {least} to {(1 << bits) - 1:,}", is_legal


def _is_ratio(text: str) -> bool:
    with suppress(ValueError):
        return text[:1].isdecimal() and 0 <= float(text) <= 1
    return False


#: The settings of topics of Kafka 0.8.1 to 0.8.2, each with a description of legal values, and the test.
_KNOWN: Mapping[str, tuple[str, Callable[[str], bool]]] = {
    "cleanup.policy": ("'delete' or 'compact'", {"delete", "compact"}.__contains__),
    "delete.retention.ms": _number(0),
    "file.delete.delay.ms": _number(0),
    "flush.messages": _number(1),
    "flush.ms": _number(0),
    "index.interval.bytes": _number(0, 31),
    "max.message.bytes": _number(0, 31),
    "min.cleanable.dirty.ratio": ("a number from 0 to 1", _is_ratio),
    "min.insync.replicas": _number(1, 31),
    "retention.bytes": _number(-1),
    "retention.ms": _number(0),
    "segment.bytes": _number(14, 31),
    "segment.index.bytes": _number(0, 31),
    "segment.jitter.ms": _number(0),
    "segment.ms": _number(1),
    "unclean.leader.election.enable": ("'true' or 'false'", {"true", "false"}.__contains__),
}


def check_settings(values: Mapping[str, str]) -> None:
    """
    Check the names and values of settings for ZooKeeper. Brokers would read wrong settings without a check.

    Raises:
        ConfigError: A name is unknown to Kafka 0.8, or a value is not legal.
    """
    for name, value in values.items():
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_KNOWN)}."
            raise ConfigError(
                f"{name!r} is no setting of topics of Kafka 0.8; {hint} Brokers from 1.1 on have more, and change them"
                " on request: '--coordination brokers'"
            )
        expected, is_legal = _KNOWN[name]
        if not is_legal(value):
            raise ConfigError(f"{name}: {value!r:.80} given; expected {expected}")


def plan_in_zookeeper(
    client: Client, topic: str, values: Mapping[str, str], unset: tuple[str, ...]
) -> TopicConfigChange:
    """
    Read the topic's own settings, and return the change that sets ``values`` and removes ``unset``.

    Raises:
        UnknownTopicError: The topic does not exist.
        ConfigError: A name or a value is not legal, the topic does not have a setting of ``unset``, or the brokers are
            of Kafka 0.8.0, whose topics have no settings.
        ProtocolError: The znode of the settings cannot be read.
    """
    check_present([topic], list_topics(client), f"in ZooKeeper at {place_of(client)}")
    check_settings(values)
    path, version, own = f"/config/topics/{topic}", None, {}
    with suppress(NoNodeError):
        data, stat = client.get(path)
        version, own = stat.version, typed_field(parse_object(data, path), "config", dict, path)
    if values or unset:
        check_followed(client)
    change = TopicConfigChange(
        topic=topic,
        settings={str(name): TopicSetting(str(value), "topic") for name, value in own.items()},
        values=values,
        unset=unset,
        version=version,
    )
    change.check()
    return change


def apply_in_zookeeper(client: Client, change: TopicConfigChange) -> None:
    """
    Store the topic's settings, and notify the brokers, in one transaction.

    Raises:
        ConflictError: Another client has changed the settings since they were read.
        CoordinationError: ZooKeeper refuses the write.
            Nothing is changed then.
    """
    path, data = f"/config/topics/{change.topic}", encode_object({"version": 1, "config": change.after})
    if change.version is None:
        client.ensure_path("/config/topics")
    notice = encode_object({"version": 1, "entity_type": "topics", "entity_name": change.topic})
    if all(parse_broker_version(each.data, where) < 2 for where, each in read_brokers(client).items() if each.data):
        # Brokers of 0.8 take the topic out of its quotes, whatever is between the first and the last character.
        notice = f'"{change.topic}"'.encode()
    operations = (
        Create(path, data) if change.version is None else Put(path, data, change.version),
        Create(f"{CONFIG_CHANGES}/config_change_", notice, sequence=True),
    )
    if failed := commit(client, operations):
        error = failed[1]
        if isinstance(error, BadVersionError | NodeExistsError | NoNodeError):
            raise ConflictError(
                f"topic {change.topic!r}: nothing was changed: another client has changed its settings meanwhile; look"
                " at them again"
            )
        raise CoordinationError(f"topic {change.topic!r}: nothing was changed: {refusal_text(error)}") from error


async def plan_by_brokers(
    session: BrokerSession, topic: str, values: Mapping[str, str], unset: tuple[str, ...]
) -> TopicConfigChange:
    """
    Read all settings of the topic from a broker, and return the change that sets ``values`` and removes ``unset``.

    If the change is not empty, ask the broker to check the change without making it.

    Raises:
        UnknownTopicError: The topic does not exist.
        ConfigError: The broker refuses the change, the topic does not have a setting of ``unset``, or the brokers are
            too old.
        KielGroupsError: No broker answers, or the broker refuses to return the settings.
    """
    check_present([topic], session.topics, session.place)
    request = DescribeConfigsRequest(topic)
    if not session.knows(request):
        raise ConfigError(
            "brokers show and change settings of topics on request from Kafka 1.1 on, and these are older; give"
            " '--coordination zookeeper' with '--zookeeper' instead"
        )
    (found,) = await session.ask_any(request)
    if found.error is not NO_ERROR:
        raise found.error.exception(f"topic {topic!r}: {found.text or 'its settings cannot be read'}")
    change = TopicConfigChange(topic, _settings_of(found), values, unset)
    change.check()
    if values or unset:
        await _send(session, change, validate_only=True)
    return change


async def apply_by_brokers(session: BrokerSession, change: TopicConfigChange) -> None:
    """
    Send the change to a broker, and wait until every live broker shows it, so that the next command does.

    In KRaft mode, a broker answers when the controller has stored the change, and shows it a little later. It is no
    error if a broker does not show the change after 10 s, or cannot be asked: the change is made.

    Before Kafka 2.3, brokers replace all settings of the topic. Then a change that another client has made since the
    settings were read is lost.

    Raises:
        ConfigError: The broker refuses the change.
        KielGroupsError: No broker answers.
    """
    await _send(session, change, validate_only=False)
    clock, request = asyncio.get_running_loop().time, DescribeConfigsRequest(change.topic)
    until_s = clock() + _SHOWN_S
    for node_id in session.brokers:
        with suppress(KielGroupsError):
            while clock() < until_s:
                (found,) = await session.ask(node_id, request)
                # Brokers may write a value in another way than it was given.
                if found.error is not NO_ERROR or replace(change, settings=_settings_of(found)).before != change.before:
                    break
                await asyncio.sleep(_POLL_S)


def _settings_of(answer: ConfigAnswer) -> dict[str, TopicSetting]:
    return {
        name: TopicSetting(each.value, _SOURCES.get(each.source, f"source {each.source}"))
        for name, each in answer.settings.items()
    }


async def _send(session: BrokerSession, change: TopicConfigChange, *, validate_only: bool) -> None:
    request: Request[tuple[ConfigAnswer, ...]] = IncrementalAlterConfigsRequest(
        change.topic, change.values, change.unset, validate_only
    )
    if not session.knows(request):
        request = AlterConfigsRequest(change.topic, change.after, validate_only)
    (answer,) = await session.ask_any(request)
    if answer.error is not NO_ERROR:
        raise ConfigError(f"topic {change.topic!r}: the brokers refuse its settings: {answer.text or answer.error}")
