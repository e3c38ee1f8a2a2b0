"""The options of a write, and the columns of the rows that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from kiel_groups.config import CLIENT_ID, HostPort, check_name
from kiel_groups.errors import ConfigError
from kiel_groups.spark.options.known_options import check_known
from kiel_groups.spark.options.option_validation import one_of, refuse_headers, whole_number
from kiel_groups.spark.options.read_options import OptionTexts, zookeeper_config

__all__ = ["WriteColumns", "WriteOptions"]

_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
_CODECS = ("none", "gzip", "snappy", "lz4")

_TEXT_OR_BYTES: tuple[DataType, ...] = (StringType(), BinaryType())
_ALLOWED: Mapping[str, tuple[DataType, ...]] = {
    "key": _TEXT_OR_BYTES,
    "value": _TEXT_OR_BYTES,
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}
#: Columns of a read that are ignored, because a written message has no such field.
_IGNORED = ("offset", "timestamp", "timestamptype")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """
    The options of a write; times in milliseconds.

    ``topic`` is None if a column names the topic of each row. ``acks`` is -1 for all in-sync replicas.
    """

    brokers: tuple[HostPort, ...]
    topic: str | None
    client_id: str
    request_timeout_ms: int
    acks: int
    retries: int
    compression: str | None
    linger_ms: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """
        Parse and check the options that Spark passes.

        Raises:
            ConfigError: An option is unknown or has no meaning in Kafka 0.8, or a value is not valid.
        """
        check_known(options, "write")
        texts = OptionTexts(options)
        texts.get("includeHeaders", refuse_headers, None)
        texts.get("kiel.zookeeper.connect", zookeeper_config, None)
        return cls(
            brokers=texts.brokers(),
            topic=texts.get("topic", lambda name, text: check_name(text.strip(), name), None),
            client_id=texts.get("kafka.client.id", lambda _, text: text, CLIENT_ID),
            request_timeout_ms=texts.get("kafka.request.timeout.ms", whole_number, 30_000, 1),
            acks=texts.get("kafka.acks", lambda name, text: _ACKS[one_of(name, text, _ACKS)], -1),
            retries=texts.get("kafka.retries", whole_number, 10, 0),
            compression=texts.get("kafka.compression.type", _codec, None),
            linger_ms=texts.get("kafka.linger.ms", whole_number, 5, 0),
        )


def _codec(name: str, text: str) -> str | None:
    codec = one_of(name, text, _CODECS)
    return None if codec == "none" else codec


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """The indexes of the columns in a row: None for a missing column, or for ``topic`` if an option names the topic."""

    value: int
    key: int | None
    topic: int | None
    partition: int | None

    @classmethod
    def of(cls, schema: StructType, topic: str | None) -> WriteColumns:
        """
        Find the columns by their names, in any case.

        Args:
            schema: The schema of the rows.
            topic: The topic of the options, which takes precedence over a column.

        Raises:
            ConfigError: There is no value column; neither an option nor a column names the topic; or a column is
                unknown, occurs twice, or has a type that is not allowed.
        """
        places: dict[str, int] = {}
        for place, field in enumerate(schema.fields):
            name = field.name.lower()
            if name in _IGNORED:
                continue
            allowed = _ALLOWED.get(name)
            if allowed is None:
                raise ConfigError(
                    f"column {field.name}: has no place in a message; select {', '.join(_ALLOWED)} only"
                    f" ({', '.join(sorted(_IGNORED))} are ignored)"
                )
            if field.dataType not in allowed:
                kinds = " or ".join(kind.simpleString() for kind in allowed)
                raise ConfigError(f"column {field.name}: is {field.dataType.simpleString()}, expected {kinds}; cast it")
            if name in places:
                raise ConfigError(f"column {field.name}: there are two of that name; select one")
            places[name] = place
        if "value" not in places:
            raise ConfigError("there is no column 'value', which every message needs; null is a value, too")
        if topic is None and "topic" not in places:
            raise ConfigError("nothing says which topic to write to; give the option topic, or a column of that name")
        return cls(places["value"], places.get("key"), None if topic else places.get("topic"), places.get("partition"))
