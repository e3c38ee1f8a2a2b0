"""Encode message sets of magic 0 with aiokafka's compiled codec, plain or as one compressed message."""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from kiel_groups.errors import ConfigError
from kiel_groups.wire.codecs import codec_by_name
from kiel_groups.wire.message_sets.message_layout import wrap

# The builder refuses messages beyond a size that it must be given; the producer's batches are bounded already.
_NO_BOUND = 1 << 62


def encode_message_set(messages: Sequence[tuple[bytes | None, bytes | None]], compression: str | None = None) -> bytes:
    """
    Encode messages as the message set of a produce request. The broker assigns their offsets.

    Args:
        messages: The key and value of each message.
        compression: ``"gzip"``, ``"snappy"``, ``"lz4"``, or None for plain messages. A compressed set becomes the value
            of one message. Brokers before 0.8.2 do not support lz4.

    Raises:
        ConfigError: The codec is unknown, or a key or value is neither bytes nor None.
    """
    builder = LegacyRecordBatchBuilder(0, 0, _NO_BOUND)
    for offset, (key, value) in enumerate(messages):
        try:
            builder.append(offset, None, key, value)
        except TypeError as error:
            kinds = f"{type(key).__name__} and {type(value).__name__}"
            raise ConfigError(f"message {offset}: key and value are {kinds}; expected bytes or None") from error
    plain = bytes(builder.build())
    if compression is None:
        return plain
    codec = codec_by_name(compression)
    return wrap(plain, codec, len(messages) - 1) if messages else b""
