"""
Parse the options of a read, check them against each other, and refuse invalid options with the reason.

Options have the names and meanings of Spark's own Kafka source, as far as they apply to Kafka 0.8. Spark passes names
in lower case, together with some options of its own, which are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from kiel_groups.config import (
    CLIENT_ID,
    KAFKA_PORT,
    BrokerConfig,
    HostPort,
    ZooKeeperConfig,
    check_name,
    parse_hosts,
)
from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint.last_batch import local_folder
from kiel_groups.spark.options.known_options import check_known, spelled
from kiel_groups.spark.options.option_validation import (
    OFFSETS_EXAMPLE,
    duration_ms,
    flag,
    offsets_by_partition,
    one_of,
    partition_list,
    pattern,
    refuse_headers,
    whole_number,
)

__all__ = ["EARLIEST", "GROUP", "LATEST", "Place", "ReadOptions", "OptionTexts"]

#: Where to start or end: a word, or an offset for each partition (-2 for the earliest, -1 for the latest).
Place: TypeAlias = str | Mapping[TopicPartition, int]

EARLIEST = "earliest"
LATEST = "latest"
GROUP = "group"

_EARLIEST_OFFSET = -2
_LATEST_OFFSET = -1


class OptionTexts:
    """The texts of options as Spark passes them, found by their documented names in any case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): text for name, text in options.items()}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._texts

    def get(self, name: str, parse: Callable[..., Any], default: Any, *arguments: object) -> Any:
        """Return an option parsed by ``parse(name, text, *arguments)``, or the default if it was not given."""
        text = self._texts.get(name.lower())
        return default if text is None else parse(name, text, *arguments)

    def brokers(self) -> tuple[HostPort, ...]:
        """Return the addresses of ``kafka.bootstrap.servers``, which is mandatory."""
        name = "kafka.bootstrap.servers"
        if name not in self:
            raise ConfigError(f"{name}: not given; name one broker at least, as 'host:{KAFKA_PORT}'")
        return parse_hosts(self._texts[name], KAFKA_PORT, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """
    The options of a batch or a stream; times in milliseconds, sizes in bytes.

    Exactly one of ``topics``, ``topic_pattern`` and ``assigned`` is given. ``group`` is None if the options name no
    group.
    """

    brokers: tuple[HostPort, ...]
    topics: tuple[str, ...]
    topic_pattern: re.Pattern[str] | None
    assigned: tuple[TopicPartition, ...]
    starting: Place
    ending: Place
    fail_on_data_loss: bool
    min_partitions: int | None
    max_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    offset_retries: int
    offset_retry_interval_ms: int
    group: str | None
    zookeeper: ZooKeeperConfig | None
    joins: bool
    commits: bool
    fail_on_commit_error: bool
    checkpoint: Path | None
    client_id: str
    request_timeout_ms: int
    poll_timeout_ms: int
    fetch_max_bytes: int
    max_message_bytes: int

    @property
    def broker_config(self) -> BrokerConfig:
        """The settings of connections to the brokers."""
        return BrokerConfig(hosts=self.brokers, client_id=self.client_id, request_timeout_ms=self.request_timeout_ms)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """
        Parse and check the options that Spark passes.

        Args:
            options: The texts of the options, by names in any case.
            streaming: Whether the query is a stream. Some options apply only to streams, others only to batches.

        Raises:
            ConfigError: An option is unknown, or has no meaning in Kafka 0.8 or in this kind of query; a value is not
                valid; or two options contradict each other. The message names the option and the reason.
        """
        check_known(options, "stream" if streaming else "batch")
        texts = OptionTexts(options)
        texts.get("includeHeaders", refuse_headers, None)
        default = LATEST if streaming else EARLIEST
        read = cls(
            brokers=texts.brokers(),
            topics=texts.get("subscribe", _topics, ()),
            topic_pattern=texts.get("subscribePattern", pattern, None),
            assigned=texts.get("assign", partition_list, ()),
            starting=texts.get("startingOffsets", _start, default, streaming),
            ending=texts.get("endingOffsets", _end, LATEST),
            fail_on_data_loss=texts.get("failOnDataLoss", flag, True),
            min_partitions=texts.get("minPartitions", whole_number, None, 1),
            max_partitions=texts.get("maxPartitions", whole_number, None, 1),
            max_records_per_partition=texts.get("maxRecordsPerPartition", whole_number, None, 1),
            max_offsets_per_trigger=texts.get("maxOffsetsPerTrigger", whole_number, None, 1),
            min_offsets_per_trigger=texts.get("minOffsetsPerTrigger", whole_number, None, 1),
            max_trigger_delay_ms=texts.get("maxTriggerDelay", duration_ms, 15 * 60_000),
            offset_retries=texts.get("fetchOffset.numRetries", whole_number, 3, 0),
            offset_retry_interval_ms=texts.get("fetchOffset.retryIntervalMs", whole_number, 1_000, 0),
            group=texts.get("kafka.group.id", _name, None),
            zookeeper=texts.get("kiel.zookeeper.connect", zookeeper_config, None),
            joins=texts.get("membership", one_of, "none", ("none", "join")) == "join",
            commits=texts.get("kiel.commit", flag, True),
            fail_on_commit_error=texts.get("failOnCommitError", flag, False),
            checkpoint=texts.get("checkpointLocation", local_folder, None) if streaming else None,
            client_id=texts.get("kafka.client.id", _text, CLIENT_ID),
            request_timeout_ms=texts.get("kafka.request.timeout.ms", whole_number, 30_000, 1),
            poll_timeout_ms=texts.get("kafkaConsumer.pollTimeoutMs", whole_number, 120_000, 1),
            fetch_max_bytes=texts.get("kafka.fetch.max.bytes", whole_number, 1 << 20, 1),
            max_message_bytes=texts.get("kiel.max.message.bytes", whole_number, 64 << 20, 1),
        )
        _check_together(read, texts)
        return read


def _topics(name: str, text: str) -> tuple[str, ...]:
    names = [each.strip() for each in text.split(",") if each.strip()]
    if not names:
        raise ConfigError(f"{name}: {text!r} names no topic; expected 'topic' or 'one,other'")
    return tuple(dict.fromkeys(check_name(each, name) for each in names))


def _start(name: str, text: str, streaming: bool) -> Place:
    word = text.strip().lower()
    if word == LATEST and not streaming:
        raise ConfigError(f"{name}: a batch that starts at 'latest' has nothing to read; expected 'earliest' or JSON")
    if streaming:
        return _place(name, text, (EARLIEST, LATEST, GROUP), (_EARLIEST_OFFSET, _LATEST_OFFSET))
    return _place(name, text, (EARLIEST, GROUP), (_EARLIEST_OFFSET,))


def _end(name: str, text: str) -> Place:
    word = text.strip().lower()
    if word == EARLIEST:
        raise ConfigError(f"{name}: a batch that ends at 'earliest' has nothing to read; expected 'latest' or JSON")
    return _place(name, text, (LATEST,), (_LATEST_OFFSET,))


def _place(name: str, text: str, words: Sequence[str], special: Collection[int]) -> Place:
    """Parse one of a few words in any case, or offsets in JSON; ``special`` as for ``offsets_by_partition``."""
    word = text.strip().lower()
    if word in words:
        return word
    if not word.startswith("{"):
        named = ", ".join(map(repr, words))
        raise ConfigError(f"{name}: {text!r} given; expected {named}, or offsets such as {OFFSETS_EXAMPLE}")
    return offsets_by_partition(name, text, special)


def _name(name: str, text: str) -> str:
    return check_name(text.strip(), name)


def _text(_: str, text: str) -> str:
    return text


def zookeeper_config(name: str, text: str) -> ZooKeeperConfig:
    """Parse a ZooKeeper connect string. Errors have the name of the option."""
    try:
        return ZooKeeperConfig.parse(text)
    except ConfigError as error:
        raise ConfigError(str(error).replace("zk_hosts", name)) from error


def _check_together(read: ReadOptions, texts: OptionTexts) -> None:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in texts]
    if len(chosen) != 1:
        given = " and ".join(chosen) or "none of them"
        raise ConfigError(f"one of subscribe, subscribePattern and assign says what to read; {given} given")
    if read.starting == GROUP and read.group is None:
        raise ConfigError("startingOffsets: 'group' is where a group has got to; name it with kafka.group.id")
    _check_bounds(read, texts)
    _check_membership(read)
    if read.fail_on_commit_error and not read.commits:
        raise ConfigError(f"{spelled('failoncommiterror')} has nothing to watch where kiel.commit is false; drop one")


def _check_bounds(read: ReadOptions, texts: OptionTexts) -> None:
    bounds = (
        ("minPartitions", read.min_partitions, "maxPartitions", read.max_partitions),
        ("minOffsetsPerTrigger", read.min_offsets_per_trigger, "maxOffsetsPerTrigger", read.max_offsets_per_trigger),
    )
    for least, at_least, most, at_most in bounds:
        if at_least is not None and at_most is not None and at_least > at_most:
            raise ConfigError(f"{least} is {at_least}, above {most}, which is {at_most}")
    if "maxTriggerDelay" in texts and read.min_offsets_per_trigger is None:
        raise ConfigError("maxTriggerDelay bounds the wait for minOffsetsPerTrigger; give that too, or drop it")


def _check_membership(read: ReadOptions) -> None:
    if not read.joins:
        return
    if read.group is None:
        raise ConfigError("membership: 'join' needs the group that is to be joined; name it with kafka.group.id")
    if read.zookeeper is None:
        raise ConfigError("membership: 'join' needs the ZooKeeper of the cluster; name it with kiel.zookeeper.connect")
    if read.assigned:
        raise ConfigError("assign: a member of a group reads what it is allotted; use subscribe or subscribePattern")
    if not read.commits:
        raise ConfigError("kiel.commit: a member has to commit, or others would read again what it has read; drop it")
    if not isinstance(read.starting, str):
        raise ConfigError(
            "startingOffsets: a member starts where its group has got to; expected 'earliest', 'latest' or 'group'"
        )
