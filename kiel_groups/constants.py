"""Numbers and names of Kafka 0.8, under the names that programs written for kiel import."""

from __future__ import annotations

from typing import Final

from kiel_groups.config import KAFKA_PORT
from kiel_groups.wire.compression import codec_named
from kiel_groups.wire.error_codes import error_code
from kiel_groups.wire.fetch import CLIENT_REPLICA_ID
from kiel_groups.wire.list_offsets import EARLIEST, LATEST

__all__ = [
    "BEGINNING",
    "END",
    "GZIP",
    "SNAPPY",
    "LZ4",
    "SUPPORTED_COMPRESSION",
    "DEFAULT_KAFKA_PORT",
    "CONSUMER_REPLICA_ID",
    "ERROR_CODES",
    "RETRIABLE_CODES",
]

#: Start at the oldest record that the log still has; brokers know the same number.
BEGINNING: Final = EARLIEST
#: Start with what is written from now on; brokers know the same number.
END: Final = LATEST

GZIP: Final = codec_named("gzip").number
SNAPPY: Final = codec_named("snappy").number
LZ4: Final = codec_named("lz4").number
#: What a producer takes for its ``compression``, besides the codecs' names.
SUPPORTED_COMPRESSION: Final = (None, GZIP, SNAPPY, LZ4)

DEFAULT_KAFKA_PORT: Final = KAFKA_PORT

#: Brokers have ids from 0 on; clients fetch as this one.
CONSUMER_REPLICA_ID: Final = CLIENT_REPLICA_ID

_CODES = [error_code(number) for number in range(-1, 21)]
#: The name of each error code of Kafka 0.8, in lower case.
ERROR_CODES: Final = {code.number: code.name.lower() for code in _CODES}
#: The names of those after which the same request may succeed.
RETRIABLE_CODES: Final = frozenset(code.name.lower() for code in _CODES if code.retriable)
