"""Constants of Kafka 0.8, under the names that programs written for kiel import."""

from __future__ import annotations

from typing import Final

from kiel_groups.config import CLIENT_ID, KAFKA_PORT
from kiel_groups.wire.codecs import codec_by_name
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
    "CLIENT_ID",
    "API_VERSION",
    "API_KEYS",
    "ERROR_CODES",
    "RETRIABLE_CODES",
]

#: Start at the oldest record in the log; the protocol uses the same number.
BEGINNING: Final = EARLIEST
#: Start with the records written from now on; the protocol uses the same number.
END: Final = LATEST

GZIP: Final = codec_by_name("gzip").number
SNAPPY: Final = codec_by_name("snappy").number
LZ4: Final = codec_by_name("lz4").number
#: The values of a producer's ``compression``, besides the codecs' names.
SUPPORTED_COMPRESSION: Final = (None, GZIP, SNAPPY, LZ4)

DEFAULT_KAFKA_PORT: Final = KAFKA_PORT

#: The replica id with which clients fetch; brokers have ids of 0 or more.
CONSUMER_REPLICA_ID: Final = CLIENT_REPLICA_ID

#: The version of every request that produces, fetches, or stores offsets in ZooKeeper.
API_VERSION: Final = 0
#: The number of each request type, under kiel's names; types from 10 on are for groups that brokers coordinate.
API_KEYS: Final = {
    "produce": 0,
    "fetch": 1,
    "offset": 2,
    "metadata": 3,
    "offset_commit": 8,
    "offset_fetch": 9,
    "group_coordinator": 10,
    "join_group": 11,
    "heartbeat": 12,
    "leave_group": 13,
    "sync_group": 14,
    "describe_groups": 15,
    "list_groups": 16,
}

#: The errors whose names in kiel differ from Kafka's.
_KIELS_NAMES: Final = {
    4: "invalid_message_size",
    6: "not_partition_leader",
    15: "coordinator_not_available",
    16: "not_coordinator",
    18: "record_list_too_large",
}
#: The name of each error code, as kiel spells it.
ERROR_CODES: Final = {number: error_code(number).name.lower() for number in range(-1, 32)} | _KIELS_NAMES
#: The names of the errors that kiel retries; ``BrokerError.retriable`` says which errors this package retries.
RETRIABLE_CODES: Final = frozenset(ERROR_CODES[number] for number in (2, 3, 5, 6, 7, 14, 15, 16, 19, 20))
