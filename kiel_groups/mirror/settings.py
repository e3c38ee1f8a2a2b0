"""The settings of the connector ``Mirror``, and the target cluster that they name."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError
from kiel_groups.mirror.values import TOPIC_IN_FORMAT, target_topic
from kiel_groups.workers.plugins.config_definition import (
    ConfigDefinition,
    ConfigKey,
    Password,
    Settings,
    Validator,
    between,
    non_empty,
    one_of,
)
from kiel_groups.workers.plugins.standard_keys import TOPIC_NAME

if TYPE_CHECKING:
    from kiel_groups.mirror.target import TargetCluster


def parse_properties(text: str) -> dict[str, Any]:
    """
    Return settings of librdkafka by name.

    Args:
        text: A JSON object of texts, numbers and booleans, or lines such as ``security.protocol=SSL``. A line may be
            empty, or a comment that begins with ``#``.

    Raises:
        ConfigError: The text is neither. The error begins with a verb.
    """
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"is not JSON: {error}") from error
        for name, value in found.items():
            if not isinstance(value, str | int | float | bool):
                raise ConfigError(f"has no text or number for {name!r:.100}")
        return dict(found)
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = map(str.strip, line.partition("="))
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        # The value may be a password, so the error does not quote the line.
        if not (name and equals):
            raise ConfigError(f"has no setting in line {number}; expected NAME=VALUE")
        found[name] = value
    return found


def hashed_partitions(setting: str, partitions: int) -> int:
    """
    Return the number of partitions of a topic on the target, or 0 if records keep their partitions.

    Args:
        setting: The setting ``target.partitions``: a number, a factor such as ``x2``, or "".
        partitions: The number of partitions on the source.
    """
    return partitions * int(setting[1:]) if setting.startswith("x") else int(setting or 0)


def _is_properties(password: Password) -> bool:
    try:
        parse_properties(password.value)
    except ConfigError:
        return False
    return True


def _are_offsets(text: str) -> bool:
    try:
        topics = json.loads(text or "{}")
        named = [item for numbers in topics.values() for item in numbers.items()]
        # Another spelling of a number, such as "00", would name no partition.
        is_legal = all(number.isdecimal() and str(int(number)) == number for number, _ in named)
    except (ValueError, AttributeError, RecursionError):
        return False
    return is_legal and all(type(offset) is int and offset >= 0 for _, offset in named)


_source = partial(ConfigKey, group="Source", importance="high")
_target = partial(ConfigKey, group="Target", importance="high")
_records = partial(ConfigKey, group="Records", importance="low")

#: The settings of the connector ``Mirror``, without the standard ones.
CONFIG = ConfigDefinition(
    _source(
        "source.bootstrap.servers",
        documentation="Brokers of the source: host:port, separated by commas.",
        validator=non_empty(),
        width="long",
    ),
    _source(
        "source.zookeeper",
        default="",
        documentation="ZooKeeper of the source, with its chroot. It has the settings of topics, which the target's "
        "topics get. Without it, they get the target's defaults.",
        width="long",
    ),
    _source(
        "topics",
        "list",
        documentation="The topics to mirror, separated by commas. In a name, * matches any characters, and ? "
        "matches one. Internal topics, and topics whose names begin with kiel-mirror-, are not mirrored.",
        validator=non_empty(),
        width="long",
    ),
    _source(
        "start.offsets",
        default="",
        documentation='Where the mirror begins partitions, as JSON by topic and partition: {"orders": {"0": 17}}. '
        "The records before are on the target already, such as by a copy with Spark. An offset beyond the end of its "
        "log is refused. Other partitions begin at their first record.",
        validator=Validator(_are_offsets, 'offsets as JSON: {"orders": {"0": 17}}'),
        importance="low",
        width="long",
    ),
    _source(
        "source.auto.offset.reset",
        default="none",
        documentation="What happens if the source has deleted records before they were mirrored: none fails the "
        "task, earliest continues with the first record that is left.",
        validator=one_of("none", "earliest"),
        importance="low",
    ),
    _source(
        "source.mirrors",
        "boolean",
        False,
        documentation="Whether topics of the source may be mirrored that are themselves mirrors, as in a chain of "
        "clusters. Leave it false if the target is the cluster that they come from.",
        importance="low",
    ),
    _source(
        "refresh.interval.ms",
        "int",
        60_000,
        documentation="How often the source is asked for new topics and partitions, and the target for topics that "
        "were turned round, in milliseconds.",
        validator=between(100, 86_400_000),
        importance="low",
    ),
    _target(
        "target.bootstrap.servers",
        documentation="Brokers of the target: host:port, separated by commas.",
        validator=non_empty(),
        width="long",
    ),
    _target(
        "target.properties",
        "password",
        Password(""),
        documentation="More settings of librdkafka for the target, as a JSON object or in lines, such as "
        '{"security.protocol": "SSL"}. The file of a worker may have them: ${file:target.properties}.',
        validator=Validator(_is_properties, "a JSON object of texts and numbers, or lines NAME=VALUE"),
        importance="medium",
        width="long",
    ),
    _target(
        "target.topic.format",
        default=TOPIC_IN_FORMAT,
        documentation="The name of a topic on the target; ${topic} is replaced by its name on the source.",
        validator=Validator(lambda text: TOPIC_IN_FORMAT in text, "a text with ${topic}"),
        importance="medium",
    ),
    _target(
        "target.replication.factor",
        "int",
        -1,
        documentation="The replicas of topics that are created; -1 leaves the number to the target.",
        validator=Validator(lambda number: number == -1 or 0 < number < 1 << 15, "-1, or a number from 1"),
        importance="medium",
    ),
    _target(
        "target.partitions",
        default="",
        documentation="The number of partitions of topics that are created, or a factor such as x2. Keys are then "
        "hashed anew as by Java: the order within a key is kept, and that within a partition is not. Records without a "
        "key keep their partition. Without this setting, all records do. It cannot change.",
        validator=Validator(
            lambda text: re.fullmatch(r"(x?[1-9]\d{0,4})?", text) is not None, "a number, or a factor such as x2"
        ),
        importance="medium",
    ),
    _target(
        "target.compression.type",
        default="lz4",
        documentation="The codec of the records on the target.",
        validator=one_of("none", "gzip", "snappy", "lz4", "zstd"),
        importance="medium",
    ),
    _target(
        "exactly.once",
        "boolean",
        False,
        documentation="Whether each record is written once, also after a crash. Consumers of the target have to "
        "read committed records only.",
    ),
    _target(
        "partition.sets",
        "int",
        8,
        documentation="The number of fixed sets of partitions. A set belongs to one task, and has one transactional "
        "id, so more tasks than sets have nothing to do. The number cannot change.",
        validator=between(1, 1_000),
        importance="low",
    ),
    _records(
        "timestamp.field",
        default="",
        documentation="The field of JSON values that has a record's time: milliseconds since 1970, or a text in ISO "
        "8601 with a zone. Other records, and those whose time their topic refuses, get the time of mirroring.",
    ),
    _records(
        "headers.source",
        "boolean",
        False,
        documentation="Whether records get the headers kiel.source.partition and kiel.source.offset.",
    ),
    _records(
        "dead.letter.topic",
        default="",
        documentation="The topic of the target for records that their topic never takes: those that are too large, "
        "and those without a key for a compacted topic. Without it, such a record fails the task.",
        validator=Validator(lambda name: not name or TOPIC_NAME.accepts(name), TOPIC_NAME.expected),
    ),
    _records(
        "batch.records",
        "int",
        50_000,
        documentation="The most records that are written, and with exactly.once committed, together.",
        validator=between(1, 1_000_000),
    ),
)


def open_target(config: Mapping[str, Any]) -> TargetCluster:
    """
    Return the target cluster of a mirror.

    Args:
        config: The settings of librdkafka for the clients of the target, such as ``bootstrap.servers``.

    Raises:
        ConfigError: confluent-kafka is not installed, or refuses a setting.
    """
    try:
        from kiel_groups.mirror.target import TargetCluster
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Mirror: confluent-kafka is missing in {sys.executable}; install kiel-groups[mirror]"
        ) from error
    return TargetCluster(config)


def target_of(settings: Settings) -> TargetCluster:
    """Return the target cluster of a mirror with these settings. Raise ConfigError as ``open_target``."""
    properties = parse_properties(settings["target.properties"].value)
    return open_target({"bootstrap.servers": settings["target.bootstrap.servers"], **properties})


def target_name(settings: Settings, topic: str) -> str:
    """Return the name on the target of a topic of the source. Raise ConfigError if it is no legal name."""
    return check_name(target_topic(settings["target.topic.format"], topic), "topic")
