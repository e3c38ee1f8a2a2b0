"""The names of the options, the kinds of query that accept them, and the reasons why other options are refused."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from kiel_groups.errors import ConfigError

__all__ = ["OPTION_NAMES", "check_known", "spelled"]

#: Batches and writes ignore ``kiel.zookeeper.connect``, but accept it, so that one set of options fits every query.
_EVERYWHERE = (
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.request.timeout.ms",
    "includeHeaders",
    "kiel.zookeeper.connect",
)
_ANY_READ = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "failOnDataLoss",
    "minPartitions",
    "maxPartitions",
    "maxRecordsPerPartition",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafka.group.id",
    "kafkaConsumer.pollTimeoutMs",
    "kafka.fetch.max.bytes",
    "kiel.max.message.bytes",
)
_STREAM_READ = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "membership",
    "kiel.commit",
    "failOnCommitError",
    "checkpointLocation",
)
_WRITE = ("topic", "kafka.acks", "kafka.retries", "kafka.compression.type", "kafka.linger.ms")

#: The options of each kind of query.
OPTION_NAMES = {
    "batch": (*_EVERYWHERE, *_ANY_READ, "endingOffsets"),
    "stream": (*_EVERYWHERE, *_ANY_READ, *_STREAM_READ),
    "write": (*_EVERYWHERE, *_WRITE),
}
_SPELLING = {name.lower(): name for names in OPTION_NAMES.values() for name in names}

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
_NO_SECURITY = "brokers of Kafka 0.8 know neither encryption nor passwords; use a network that keeps others out"
_BROKERS = "the option is called kafka.bootstrap.servers"
_ZOOKEEPER = "the option is called kiel.zookeeper.connect"
_SPARK_DOES = "Spark's checkpoint keeps the place, and this source commits by itself; see kiel.commit"
_BYTES = "keys and values are binary columns; cast or decode them in Spark"
#: Options of Spark's own Kafka source, and names that this package and others use elsewhere, that are refused, by the
#: beginning of the name, with the reason.
_REFUSED = {
    "startingtimestamp": _NO_TIME,
    "endingtimestamp": _NO_TIME,
    "startingoffsetsbytimestamp": _NO_TIME,
    "endingoffsetsbytimestamp": _NO_TIME,
    "groupidprefix": "name the whole group with kafka.group.id; without it, each query has one of its own",
    "kafka.auto.offset.reset": "startingOffsets says where a new query starts",
    "kafka.enable.auto.commit": _SPARK_DOES,
    "kafka.auto.commit": _SPARK_DOES,
    "kafka.key.": _BYTES,
    "kafka.value.": _BYTES,
    "kafka.security.": _NO_SECURITY,
    "kafka.ssl.": _NO_SECURITY,
    "kafka.sasl.": _NO_SECURITY,
    "kafka.isolation.level": "Kafka 0.8 has no transactions",
    "kafka.transactional": "Kafka 0.8 has no transactions",
    "kafka.enable.idempotence": "Kafka 0.8 has no idempotent producers; a write may repeat records, as the docs say",
    "kafka.zookeeper.connect": _ZOOKEEPER,
    "zookeeper": _ZOOKEEPER,
    "zk": _ZOOKEEPER,
    "brokers": _BROKERS,
    "broker.list": _BROKERS,
    "kafka.brokers": _BROKERS,
    "metadata.broker.list": _BROKERS,
    "kafka.metadata.broker.list": _BROKERS,
    "group": "the option is called kafka.group.id",
}


def spelled(name: str) -> str:
    """Return the name of an option as the documentation spells it."""
    return _SPELLING.get(name.lower(), name)


def check_known(options: Iterable[str], kind: str) -> None:
    """
    Check that every option applies to this kind of query.

    Args:
        options: The names of the options, in any case.
        kind: ``"batch"`` or ``"stream"`` for reading, or ``"write"``.

    Raises:
        ConfigError: An option does not apply; the message has the reason, or suggests a similar option.
    """
    known = {name.lower() for name in OPTION_NAMES[kind]}
    for name in sorted(name.lower() for name in options):
        if name not in known and name not in _SPARKS_OWN:
            raise ConfigError(f"{spelled(name)}: {_reason(name, kind)}")


def _reason(name: str, kind: str) -> str:
    for beginning, reason in _REFUSED.items():
        if name.startswith(beginning):
            return f"refused: {reason}"
    if name in _SPELLING:
        homes = " or ".join(_KINDS[other] for other, names in OPTION_NAMES.items() if spelled(name) in names)
        return f"has no meaning when {_KINDS[kind]}; it is for {homes}"
    near = get_close_matches(name, [known.lower() for known in OPTION_NAMES[kind]], 1)
    hint = f"; did you mean {spelled(near[0])}?" if near else f"; known ones: {', '.join(sorted(OPTION_NAMES[kind]))}"
    return f"there is no such option when {_KINDS[kind]}{hint}"


_KINDS = {"batch": "reading a batch", "stream": "reading a stream", "write": "writing"}
