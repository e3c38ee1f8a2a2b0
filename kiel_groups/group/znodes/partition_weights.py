"""
The data of a group's ``weights`` znode: the load of its partitions, as an operator or a program measured it.

The data is JSON, ``{"version": 1, "weights": {"t:0": 12.5}}``, compressed by zlib so that 100,000 partitions fit into
one znode. zkCli cannot show it; ``kiel-groups weights show`` does.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.contents import LARGEST_PARTITION, encode_object, parse_object, typed_field
from kiel_groups.group.znodes.transactions import LARGEST_BYTES
from kiel_groups.model import TopicPartition

__all__ = ["Weights", "checked_weights", "encode_weights", "parse_weights", "printed_weights", "LARGEST_LOAD"]

#: Loads by partition, in the unit in which they were measured.
Weights: TypeAlias = Mapping[TopicPartition, float]

_VERSION = 1

#: Larger than any realistic measure, and small enough that the sum over all partitions stays exact enough.
LARGEST_LOAD = 10**15

#: The largest decompressed size, enough for about 300,000 partitions; zlib may expand a thousandfold, 1 MB to 1 GB.
LARGEST_TEXT = 32 << 20


def checked_weights(given: Mapping[str, Any]) -> dict[TopicPartition, float]:
    """
    Check loads that a user or a program has given by ``topic:partition``, and return them in the same order.

    Raises:
        ConfigError: A name is not a partition, or a load is not a number from 0 to ``LARGEST_LOAD``. The text gives the
            wrong value.
    """
    return {_partition(name): _load(name, load) for name, load in given.items()}


def printed_weights(weights: Weights) -> dict[str, float]:
    """Return weights by ``topic:partition``, sorted, with six significant digits. Whole numbers are ints."""
    return {str(partition): _rounded(weights[partition]) for partition in sorted(weights)}


def encode_weights(weights: Weights) -> bytes:
    """
    Encode the znode's data. To save space, loads keep six significant digits: measurements are not more precise.

    Raises:
        ConfigError: The weights do not fit into a znode. The text gives their size.
    """
    text = encode_object({"version": _VERSION, "weights": printed_weights(weights)})
    data = zlib.compress(text)
    for size, most in ((len(data), LARGEST_BYTES), (len(text), LARGEST_TEXT)):
        if size > most:
            packed = " packed" if most == LARGEST_BYTES else ""
            raise ConfigError(
                f"weights: {len(weights):,} partitions take {-(-size // 1024):,} KiB{packed}, expected at most"
                f" {most >> 10:,}; leave out those of usual load: they count as the median of the others"
            )
    return data


def parse_weights(data: bytes, path: str) -> dict[TopicPartition, float]:
    """
    Parse the znode's data.

    Raises:
        ProtocolError: The data is invalid, has another version, or decompresses to more than ``LARGEST_TEXT``.
    """
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, LARGEST_TEXT)
    except zlib.error as error:
        raise ProtocolError(f"{path}: weights packed by zlib were expected, found {data[:40]!r}") from error
    if not unpacking.eof:
        what = f"more than {LARGEST_TEXT >> 20} MiB" if unpacking.unconsumed_tail else "the beginning only"
        raise ProtocolError(f"{path}: weights packed by zlib were expected, found {what} of something")
    fields = parse_object(text, path)
    # Another version may have other units or names, and misread loads would move partitions needlessly.
    if (version := typed_field(fields, "version", int, path)) != _VERSION:
        raise ProtocolError(f"{path}: field 'version' should be {_VERSION}, found {version}")
    try:
        return checked_weights(typed_field(fields, "weights", dict, path))
    except ConfigError as error:
        raise ProtocolError(f"{path}: {error}") from error


def _partition(name: str) -> TopicPartition:
    try:
        partition = TopicPartition.parse(name)
        check_name(partition.topic, "weights")
    except (ValueError, ConfigError):
        partition = None
    if partition is None or partition.partition > LARGEST_PARTITION or str(partition) != name:
        raise ConfigError(f"weights: {name!r:.80} given; expected a partition such as page-views:3")
    return partition


def _load(name: str, given: Any) -> float:
    # NaN fails both comparisons.
    if not isinstance(given, int | float) or isinstance(given, bool) or not 0 <= given <= LARGEST_LOAD:
        raise ConfigError(
            f"weights: {given!r:.80} given for {name}; expected a load, a number from 0 to {LARGEST_LOAD:,}"
        )
    return given


def _rounded(load: float) -> float:
    rounded = float(f"{load:.6g}")
    return int(rounded) if rounded.is_integer() else rounded
