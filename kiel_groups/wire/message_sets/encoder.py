"""Encode message sets of magic 0, plain or as one compressed message."""

from __future__ import annotations

from kiel_groups.errors import ConfigError
from kiel_groups.wire.codecs import codec_by_name
from kiel_groups.wire.message_sets.message_layout import wrap

try:
    from kiel_groups.wire import _messages
except ImportError:
    COMPILED = False
else:
    COMPILED = True


def encode_message_set(keys: list[bytes | None], values: list[bytes | None], compression: str | None = None) -> bytes:
    """
    Encode messages as the message set of a produce request. The broker assigns their offsets.

    Args:
        keys: The key of each message.
        values: The value of each message.
        compression: ``"gzip"``, ``"snappy"``, ``"lz4"``, or None for plain messages. A compressed set becomes the value
            of one message. Brokers before 0.8.2 do not support lz4.

    Raises:
        ConfigError: The codec is unknown, or the set takes over 2 GiB.
    """
    try:
        plain = _messages.encode(keys, values) if COMPILED else _encode_uncompiled(keys, values)
    except OverflowError as error:
        raise ConfigError(f"a message set of {error}; at most 2,147,483,647 can be sent") from error
    if compression is None:
        return plain
    codec = codec_by_name(compression)
    return wrap(plain, codec, len(values) - 1) if values else b""


def _encode_uncompiled(keys: list[bytes | None], values: list[bytes | None]) -> bytes:
    """Encode messages with aiokafka's codec, if the package was installed without a compiler."""
    # aiokafka takes a while to import, so it is imported only where it is needed.
    from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

    # The builder refuses messages beyond a size that it must be given; the producer's batches are bounded already.
    builder = LegacyRecordBatchBuilder(0, 0, 1 << 62)
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        builder.append(number, None, key, value)
    return bytes(builder.build())
