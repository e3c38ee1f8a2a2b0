"""Parse and check the options that users pass to a query with ``.option(…)``."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import pyspark
from pyspark.sql.types import StructType

from kiel_groups.config import (
    CLIENT_ID,
    KAFKA_PORT,
    BrokerConfig,
    HostPort,
    ZooKeeperConfig,
    check_name,
    is_whole,
    parse_hosts,
)
from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint import Positions, Span, local_folder
from kiel_groups.spark.columns import known_schemas
from kiel_groups.spark.environment import can_bound_batches
from kiel_groups.spark.security_options import SecurityOptions, option

log = logging.getLogger(__name__)


#: Spark's own options, which it passes to every source and sink.
_SPARKS_OWN = {
    "path",
    "paths",
    "checkpointlocation",
    "queryname",
    "asyncprogresstrackingenabled",
    "asyncprogresstrackingcheckpointintervalms",
}

_NO_TIME = "messages of Kafka 0.8 carry no time, and its index knows segments only; use startingOffsets, endingOffsets"
_NO_STORES = "only files in PEM are read, which have no password of their own; name them, as docs/security.rst shows"
_NO_SUCH_SECURITY = "this source has no such setting; docs/security.rst lists those about TLS and SASL"
_BROKERS = "the option is called kafka.bootstrap.servers"
_ZOOKEEPER = "the option is called kiel.zookeeper.connect"
_SPARK_DOES = "Spark's checkpoint keeps the place, and this source commits by itself; see kiel.commit"
_BYTES = "keys and values are binary columns; cast or decode them in Spark"
#: Options of Spark's own Kafka source, and names that this package and others use elsewhere, that are refused, by the
#: beginning of the name, with the reason.
_REFUSED = {
    **dict.fromkeys(("startingtimestamp", "endingtimestamp", "startingoffsetsby", "endingoffsetsby"), _NO_TIME),
    **dict.fromkeys(("kafka.enable.auto.commit", "kafka.auto.commit"), _SPARK_DOES),
    **dict.fromkeys(("kafka.key.", "kafka.value."), _BYTES),
    **dict.fromkeys(("kafka.ssl.truststore.", "kafka.ssl.keystore."), _NO_STORES),
    **dict.fromkeys(("kafka.security.", "kafka.ssl.", "kafka.sasl."), _NO_SUCH_SECURITY),
    **dict.fromkeys(("kafka.isolation.level", "kafka.transactional"), "Kafka 0.8 has no transactions"),
    **dict.fromkeys(("kafka.zookeeper.connect", "zookeeper", "zk"), _ZOOKEEPER),
    **dict.fromkeys(
        ("brokers", "broker.list", "kafka.brokers", "metadata.broker.list", "kafka.metadata.broker.list"), _BROKERS
    ),
    "kafka.auto.offset.reset": "startingOffsets says where a new query starts",
    "kafka.enable.idempotence": "Kafka 0.8 has no idempotent producers; a write may repeat records, as the docs say",
    "group": "the option is called kafka.group.id",
}
#: Settings of Kafka's own clients that change no result, and have no meaning for this source. They are ignored with a
#: warning, because programs for Spark's own Kafka source have them.
_TUNING = {
    f"kafka.{name}"
    for name in (
        "batch.size",
        "buffer.memory",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "delivery.timeout.ms",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "heartbeat.interval.ms",
        "max.block.ms",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
    )
}
#: Options of streams that Spark's own Kafka source ignores in batches, with a warning.
_IGNORED_IN_BATCHES = {"groupidprefix", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"}


def _spelled(name: str) -> str:
    """Return the name of an option as the documentation spells it."""
    return _SPELLING.get(name.lower(), name)


def _check_known(options: Iterable[str], kind: str) -> None:
    """
    Check that every option applies to this kind of query. Log a warning about options that are ignored.

    Args:
        options: The names of the options, in any case.
        kind: ``"batch"`` or ``"stream"`` for reading, or ``"write"``.

    Raises:
        ConfigError: An option does not apply; the message has the reason, or suggests a similar option.
    """
    known = {name.lower() for name in OPTION_NAMES[kind]} | _SPARKS_OWN | (set() if kind == "write" else _OF_ARCHIVES)
    without_effect = _TUNING | (_IGNORED_IN_BATCHES if kind == "batch" else set())
    ignored = []
    for name in sorted({name.lower() for name in options} - known):
        if name not in without_effect:
            raise ConfigError(f"{_spelled(name)}: {_reason(name, kind)}")
        ignored.append(_spelled(name))
    if ignored:
        log.warning("ignoring options without an effect when %s: %s", _KINDS[kind], ", ".join(ignored))


def _reason(name: str, kind: str) -> str:
    for beginning, reason in _REFUSED.items():
        if name.startswith(beginning):
            return f"refused: {reason}"
    if name in _SPELLING:
        homes = " or ".join(_KINDS[other] for other, names in OPTION_NAMES.items() if _spelled(name) in names)
        return f"has no meaning when {_KINDS[kind]}; it is for {homes}"
    near = get_close_matches(name, [known.lower() for known in OPTION_NAMES[kind]], 1)
    hint = f"; did you mean {_spelled(near[0])}?" if near else f"; known ones: {', '.join(sorted(OPTION_NAMES[kind]))}"
    return f"there is no such option when {_KINDS[kind]}{hint}"


_KINDS = {"batch": "reading a batch", "stream": "reading a stream", "write": "writing"}


#: The kind of options that only the archive job gives to its query.
_ARCHIVE = "archive"

#: Offsets by partition, as errors show them.
_OFFSETS_EXAMPLE = '{"topic": {"0": 23, "1": -1}}'

_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
#: The digits of the largest offset. Python refuses to parse thousands.
_MOST_DIGITS = 19
#: A decimal number without leading zeros, so that no partition can be given twice.
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
#: The limits of Kafka's protocol: 64 bits for an offset, 32 bits for a partition.
_LARGEST_OFFSET = (1 << 63) - 1
_LARGEST_PARTITION = (1 << 31) - 1
_DURATION = re.compile(r"([0-9]{1,18})\s*([a-z]*)")


def _flag(name: str, text: str) -> bool:
    """Parse ``true`` or ``false``, in upper or lower case. Raise ConfigError for other texts."""
    return _one_of(name, text, ("true", "false")) == "true"


def _one_of(name: str, text: str, choices: Collection[str]) -> str:
    """Return the choice that a text names, in upper or lower case. Raise ConfigError if there is no such choice."""
    word = text.strip().lower()
    if word not in choices:
        raise ConfigError(f"{name}: {text!r} given; expected {' or '.join(choices)}")
    return word


def whole_number(name: str, text: str, least: int) -> int:
    """Parse a whole decimal number of at least ``least``. Raise ConfigError for other texts."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _MOST_DIGITS or int(digits) < least:
        raise ConfigError(f"{name}: {text!r} given; expected a whole number of at least {least}")
    return int(digits)


def duration_ms(name: str, text: str) -> int:
    """
    Parse a duration, such as ``500ms``, ``30s``, ``15m``, ``2h`` or ``1d``, and return it in milliseconds.

    A number without a unit is in milliseconds.

    Raises:
        ConfigError: The text has another form.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or (found[2] and found[2] not in _UNITS_MS):
        raise ConfigError(f"{name}: {text!r} given; expected a time such as '30s' or '15m'")
    return int(found[1]) * _UNITS_MS.get(found[2], 1)


def _refuse_headers(name: str, text: str) -> None:
    """Raise ConfigError unless the text is ``false``, because messages of Kafka 0.8 have no headers."""
    if _flag(name, text):
        raise ConfigError(f"{name}: refused: messages of Kafka 0.8 have no headers; drop it")


def _pattern(name: str, text: str) -> re.Pattern[str]:
    """Parse a regular expression for the names of topics, without blanks around it. Raise ConfigError if not valid."""
    expression = text.strip()
    if not expression:
        raise ConfigError(f"{name}: {text!r} is blank, and no topic has such a name; expected such as 'logs-.*'")
    try:
        return re.compile(expression)
    except re.error as error:
        raise ConfigError(f"{name}: {text!r} is no regular expression: {error}") from error


def _parsed_json(name: str, text: str, example: str) -> dict[str, object]:
    """
    Parse a JSON object whose keys are topics.

    Raises:
        ConfigError: The text is not a JSON object, repeats a key, or has a key that cannot be a topic's name.
    """

    def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # The parser would keep the last of two equal keys, and drop the first one silently.
        for key, times in Counter(key for key, _ in pairs).items():
            if times > 1:
                raise ConfigError(f"{name}: {key!r} is given {times} times; name each topic and partition once")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=once_each)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: {text!r:.300} is no JSON ({error}); expected such as {example}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: {text!r} given; expected such as {example}")
    for topic in value:
        check_name(topic, name)
    return value


def partition_list(name: str, text: str) -> tuple[TopicPartition, ...]:
    """
    Parse partitions in JSON, such as ``{"topic": [0, 1]}``, and return them in ascending order.

    Raises:
        ConfigError: The text has another form, or names no partition.
    """
    example = '{"topic": [0, 1]}'
    found = set()
    for topic, numbers in _parsed_json(name, text, example).items():
        if not isinstance(numbers, list) or not all(
            is_whole(number) and 0 <= number <= _LARGEST_PARTITION for number in numbers
        ):
            raise ConfigError(f"{name}: {numbers!r} given for {topic}; expected such as {example}")
        found |= {TopicPartition(topic, number) for number in numbers}
    if not found:
        raise ConfigError(f"{name}: {text!r} names no partition; expected such as {example}")
    return tuple(sorted(found))


def _offsets_by_partition(name: str, text: str, special: Collection[int]) -> dict[TopicPartition, int]:
    """
    Parse offsets by partition in JSON, such as ``{"topic": {"0": 23, "1": -2}}``.

    ``special`` has the negative offsets that are allowed.

    Raises:
        ConfigError: The text has another form, or an offset or a partition out of range.
    """
    found = {}
    for topic, offsets in _parsed_json(name, text, _OFFSETS_EXAMPLE).items():
        if not isinstance(offsets, dict):
            raise ConfigError(f"{name}: {offsets!r} given for {topic}; expected such as {_OFFSETS_EXAMPLE}")
        for number, offset in offsets.items():
            if not _PARTITION.fullmatch(number) or int(number) > _LARGEST_PARTITION:
                raise ConfigError(f"{name}: {number!r} is no partition of {topic}; expected such as {_OFFSETS_EXAMPLE}")
            if not is_whole(offset) or not (0 <= offset <= _LARGEST_OFFSET or offset in special):
                allowed = "".join(f", {each}" for each in special)
                raise ConfigError(
                    f"{name}: the offset {offset!r} of {topic}:{number} cannot be; expected 0 or more{allowed},"
                    f" {_LARGEST_OFFSET} at most"
                )
            found[TopicPartition(topic, int(number))] = offset
    return found


# Parse the options of a read, check them against each other, and refuse invalid options with the reason.
#
# Options have the names and meanings of Spark's own Kafka source, as far as they apply to Kafka 0.8. Spark passes names
# in lower case, together with some options of its own, which are accepted.


#: Where to start or end: a word, or an offset for each partition (-2 for the earliest, -1 for the latest).
Place: TypeAlias = str | Mapping[TopicPartition, int]

#: How long a broker may take to accept a connection, in milliseconds: what a dead computer costs a lookup.
_CONNECT_MS = 3_000

EARLIEST = "earliest"
LATEST = "latest"
GROUP = "group"

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1


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
        return _place(name, text, (EARLIEST, LATEST, GROUP), (EARLIEST_OFFSET, LATEST_OFFSET))
    return _place(name, text, (EARLIEST, GROUP), (EARLIEST_OFFSET,))


def _end(name: str, text: str) -> Place:
    word = text.strip().lower()
    if word == EARLIEST:
        raise ConfigError(f"{name}: a batch that ends at 'earliest' has nothing to read; expected 'latest' or JSON")
    return _place(name, text, (LATEST,), (LATEST_OFFSET,))


def _place(name: str, text: str, words: Sequence[str], special: Collection[int]) -> Place:
    """
    Parse a place: one of ``words``, in upper or lower case, or offsets in JSON, as ``_offsets_by_partition`` does.

    Raises:
        ConfigError: The text is neither such a word nor offsets.
    """
    word = text.strip().lower()
    if word in words:
        return word
    if not word.startswith("{"):
        named = ", ".join(map(repr, words))
        raise ConfigError(f"{name}: {text!r} given; expected {named}, or offsets such as {_OFFSETS_EXAMPLE}")
    return _offsets_by_partition(name, text, special)


def _name(name: str, text: str) -> str:
    return check_name(text.strip(), name)


def _text(_: str, text: str) -> str:
    return text


def _zookeeper(name: str, text: str) -> ZooKeeperConfig:
    """Parse a ZooKeeper connect string. The ConfigError for a wrong string has the name of the option."""
    try:
        return ZooKeeperConfig.parse(text)
    except ConfigError as error:
        raise ConfigError(str(error).replace("zk_hosts", name)) from error


#: What happens to a bad record: an error, nothing, a row without a value, or, for an archive, a row of ``_quarantine``.
FAIL, SKIP, ROW, QUARANTINE = "fail", "skip", "row", "quarantine"


def _on_bad_record(name: str, text: str) -> str:
    word = text.strip().lower()
    return word if word == QUARANTINE else _one_of(name, text, (FAIL, SKIP, ROW))


class Held(NamedTuple):
    """
    The topics that an archive's query does not read, and their positions.

    The end of every batch keeps these positions, so that a later run can continue at them.
    """

    topics: frozenset[str] = frozenset()
    spans: Mapping[TopicPartition, Span] = {}

    @classmethod
    def parse(cls, name: str, text: str) -> Held:
        """
        Parse positions in the JSON of a checkpoint. A topic may have an empty object instead of positions.

        Raises:
            ConfigError, ProtocolError: The text has another form.
        """
        document = _parsed_json(name, text, '{"topic": {}}')
        return cls(frozenset(document), Positions.from_json(document).spans)


def _schemas(name: str, text: str) -> Mapping[str, StructType]:
    """Parse the schemas of JSON values by topic, as the archive job passes them. Raise ConfigError for another form."""
    return known_schemas(name, _parsed_json(name, text, '{"topic": …}, each with df.schema.json()'))


def _joins(name: str, text: str) -> bool:
    return _one_of(name, text, ("none", "join")) == "join"


class _OptionTexts:
    """The texts of the options that Spark passes. The case of their names does not matter."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): text for name, text in options.items()}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._texts

    def get(self, name: str, parse: Callable[..., Any], default: Any, *arguments: object) -> Any:
        """Return the value of an option, ``parse(name, text, *arguments)``, or the default if it is not given."""
        text = self._texts.get(name.lower())
        return default if text is None else parse(name, text, *arguments)

    def parsed(self, options: type[ReadOptions] | type[WriteOptions]) -> dict[str, Any]:
        """Return the values of all fields of ``options`` that ``option`` describes, by the names of the fields."""
        described = [each for each in dataclasses.fields(options) if "name" in each.metadata]
        return {each.name: self.get(each.metadata["name"], *each.metadata["how"]) for each in described}

    def brokers(self) -> tuple[HostPort, ...]:
        """Return the addresses in ``kafka.bootstrap.servers``. Raise ConfigError if the option is missing or wrong."""
        name = "kafka.bootstrap.servers"
        if name not in self:
            raise ConfigError(f"{name}: not given; name one broker at least, as 'host:{KAFKA_PORT}'")
        return parse_hosts(self._texts[name], KAFKA_PORT, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(SecurityOptions):
    """
    The options of a batch query or a stream. Times are in milliseconds, and sizes in bytes, unless a name says ``mb``.

    Exactly one of ``topics``, ``topic_pattern`` and ``assigned`` is given. ``group`` is None if the options name no
    group. For an archive, ``archive`` is the URI of its output, and ``held`` has the topics that its query does not
    read. The side tables, with bad records and losses, are in that output. ``schemas`` has the schemas of JSON values
    by topic.
    """

    brokers: tuple[HostPort, ...]
    topics: tuple[str, ...] = option("subscribe", _topics, ())
    topic_pattern: re.Pattern[str] | None = option("subscribePattern", _pattern)
    assigned: tuple[TopicPartition, ...] = option("assign", partition_list, ())
    starting: Place
    ending: Place = option("endingOffsets", _end, LATEST, only="batch")
    fail_on_data_loss: bool = option("failOnDataLoss", _flag, True)
    on_bad_record: str = option("kiel.onBadRecord", _on_bad_record, FAIL)
    min_partitions: int | None = option("minPartitions", whole_number, None, 1)
    max_partitions: int | None = option("maxPartitions", whole_number, None, 1)
    max_records_per_partition: int | None = option("maxRecordsPerPartition", whole_number, None, 1)
    max_offsets_per_trigger: int | None = option("maxOffsetsPerTrigger", whole_number, None, 1, only="stream")
    min_offsets_per_trigger: int | None = option("minOffsetsPerTrigger", whole_number, None, 1, only="stream")
    max_trigger_delay_ms: int = option("maxTriggerDelay", duration_ms, 15 * 60_000, only="stream")
    offset_retries: int = option("fetchOffset.numRetries", whole_number, 3, 0)
    offset_retry_interval_ms: int = option("fetchOffset.retryIntervalMs", whole_number, 1_000, 0)
    group: str | None = option("kafka.group.id", _name)
    group_prefix: str | None = option("groupIdPrefix", _name, only="stream")
    zookeeper: ZooKeeperConfig | None = option("kiel.zookeeper.connect", _zookeeper)
    joins: bool = option("membership", _joins, False, only="stream")
    commits: bool = option("kiel.commit", _flag, True, only="stream")
    fail_on_commit_error: bool = option("failOnCommitError", _flag, False, only="stream")
    checkpoint: Path | None
    client_id: str = option("kafka.client.id", _text, CLIENT_ID)
    request_timeout_ms: int = option("kafka.request.timeout.ms", whole_number, 30_000, 1)
    poll_timeout_ms: int = option("kafkaConsumer.pollTimeoutMs", whole_number, 120_000, 1)
    fetch_max_bytes: int = option("kafka.fetch.max.bytes", whole_number, 1 << 20, 1)
    max_message_bytes: int = option("kiel.max.message.bytes", whole_number, 64 << 20, 1)
    archive: str | None = option("kiel.archive.output", _text, only=_ARCHIVE)
    file_mb: int | None = option("kiel.archive.file.mb", whole_number, None, 1, only=_ARCHIVE)
    held: Held = option("kiel.archive.held", Held.parse, Held(), only=_ARCHIVE)
    schemas: Mapping[str, StructType] = option("kiel.archive.schemas", _schemas, MappingProxyType({}), only=_ARCHIVE)

    @property
    def broker_config(self) -> BrokerConfig:
        """The settings of connections to the brokers."""
        return BrokerConfig(
            hosts=self.brokers,
            client_id=self.client_id,
            request_timeout_ms=self.request_timeout_ms,
            connect_timeout_ms=_CONNECT_MS,
            **self.arguments,
        )

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """
        Parse and check the options that Spark passes.

        Args:
            options: The texts of the options, by names in upper or lower case.
            streaming: Whether the query is a stream. Some options apply only to streams, or only to batches.

        Raises:
            ConfigError: An option is unknown, has no meaning in Kafka 0.8 or in this kind of query, or needs a later
                release of Spark; a value is not valid; or two options contradict each other. The message names the
                option and the reason.
        """
        _check_known(options, "stream" if streaming else "batch")
        texts = _OptionTexts(options)
        texts.get("includeHeaders", _refuse_headers, None)
        read = cls(
            brokers=texts.brokers(),
            starting=texts.get("startingOffsets", _start, LATEST if streaming else EARLIEST, streaming),
            checkpoint=texts.get("checkpointLocation", local_folder, None) if streaming else None,
            **texts.parsed(cls),
        )
        _check_together(read, texts)
        security = read.check(read.brokers)
        if read.zookeeper is not None:
            place = dataclasses.replace(read.zookeeper, broker_protocol=security.protocol)
            read = dataclasses.replace(read, zookeeper=place)
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
            if streaming and name in texts and not can_bound_batches():
                raise ConfigError(
                    f"{name}: needs Spark 4.2 or later, which lets a source in Python bound its batches; this is"
                    f" {pyspark.__version__}"
                )
        return read


def _check_together(read: ReadOptions, texts: _OptionTexts) -> None:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in texts]
    if len(chosen) != 1:
        given = " and ".join(chosen) or "none of them"
        raise ConfigError(f"one of subscribe, subscribePattern and assign says what to read; {given} given")
    if read.starting == GROUP and read.group is None:
        raise ConfigError("startingOffsets: 'group' is where a group has got to; name it with kafka.group.id")
    if read.group is not None and read.group_prefix is not None:
        raise ConfigError("groupIdPrefix: is for a query without kafka.group.id; drop one")
    if read.on_bad_record == QUARANTINE and read.archive is None:
        raise ConfigError(
            f"kiel.onBadRecord: {QUARANTINE!r} needs an archive, whose command has it; expected {FAIL}, {SKIP} or {ROW}"
        )
    _check_bounds(read, texts)
    _check_membership(read)
    if read.fail_on_commit_error and not read.commits:
        raise ConfigError(f"{_spelled('failoncommiterror')} has nothing to watch where kiel.commit is false; drop one")


def _check_bounds(read: ReadOptions, texts: _OptionTexts) -> None:
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


_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
_CODECS = ("none", "gzip", "snappy", "lz4")


def _acks(name: str, text: str) -> int:
    return _ACKS[_one_of(name, text, _ACKS)]


def _codec(name: str, text: str) -> str | None:
    codec = _one_of(name, text, _CODECS)
    return None if codec == "none" else codec


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(SecurityOptions):
    """
    The options of a write. Times are in milliseconds.

    ``topic`` is None if a column names the topic of each row. ``acks`` is -1 for all in-sync replicas.
    """

    brokers: tuple[HostPort, ...]
    topic: str | None = option("topic", _name)
    client_id: str = option("kafka.client.id", _text, CLIENT_ID)
    request_timeout_ms: int = option("kafka.request.timeout.ms", whole_number, 30_000, 1)
    acks: int = option("kafka.acks", _acks, -1)
    retries: int = option("kafka.retries", whole_number, 10, 0)
    compression: str | None = option("kafka.compression.type", _codec)
    linger_ms: int = option("kafka.linger.ms", whole_number, 5, 0)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """
        Parse and check the options that Spark passes.

        Raises:
            ConfigError: An option is unknown or has no meaning in Kafka 0.8, or a value is not valid.
        """
        _check_known(options, "write")
        texts = _OptionTexts(options)
        texts.get("includeHeaders", _refuse_headers, None)
        texts.get("kiel.zookeeper.connect", _zookeeper, None)
        write = cls(brokers=texts.brokers(), **texts.parsed(cls))
        write.check(write.brokers)
        return write


def _names(kind: str, options: type[ReadOptions] | type[WriteOptions]) -> Iterator[str]:
    for each in dataclasses.fields(options):
        if "name" in each.metadata and each.metadata["only"] in (None, kind):
            yield each.metadata["name"]


_EVERYWHERE = ("kafka.bootstrap.servers", "includeHeaders")
#: The options of each kind of query. Batches and writes ignore ``kiel.zookeeper.connect``, but accept it, so that one
#: set of options fits every query.
OPTION_NAMES = {
    "batch": (*_EVERYWHERE, "startingOffsets", *_names("batch", ReadOptions)),
    "stream": (*_EVERYWHERE, "startingOffsets", "checkpointLocation", *_names("stream", ReadOptions)),
    "write": (*_EVERYWHERE, "kiel.zookeeper.connect", *_names("write", WriteOptions)),
}
_OF_ARCHIVES = {
    each.metadata["name"].lower() for each in dataclasses.fields(ReadOptions) if each.metadata.get("only") == _ARCHIVE
}
_SPELLING = {name.lower(): name for names in OPTION_NAMES.values() for name in names}
