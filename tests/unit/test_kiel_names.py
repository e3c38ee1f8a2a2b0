"""The names that programs written for kiel import, and the objects behind them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from kiel_groups import clients, constants, errors, exc
from kiel_groups.clients import grouped, producer, single
from kiel_groups.clients.net.connection import Connection
from kiel_groups.config import BrokerConfig
from kiel_groups.metrics import Metrics
from kiel_groups.wire.fetch import FetchRequest
from kiel_groups.wire.list_offsets import ListOffsetsRequest
from kiel_groups.wire.metadata import MetadataRequest
from kiel_groups.wire.offsets import OffsetCommitRequest, OffsetFetchRequest
from kiel_groups.wire.produce import ProduceRequest
from tests.helpers.commands import REPOSITORY
from tests.helpers.fake_broker import FakeBroker

pytestmark = pytest.mark.unit


def test_errors_have_kiels_names() -> None:
    """A program that catches an error by kiel's name catches this package's error."""
    assert exc.ConnectionError is exc.BrokerConnectionError is errors.BrokerConnectionError
    assert exc.KielError is errors.KielGroupsError
    assert issubclass(exc.NoBrokersError, exc.KielError)
    assert issubclass(exc.NoOffsetsError, exc.KielError)


def test_a_connection_error_can_be_created_as_in_kiel() -> None:
    """A ConnectionError is created with host, port and broker id. Its text has the address, and it can be pickled."""
    error = pickle.loads(pickle.dumps(exc.ConnectionError("kafka-1", 9092, broker_id=3)))
    assert (error.host, error.port, error.broker_id) == ("kafka-1", 9092, 3)
    assert str(error) == "Error connecting to kafka-1:9092"
    assert error.retriable


async def test_a_connection_error_has_the_brokers_address() -> None:
    """A ConnectionError that the client raises has the broker's host and port."""
    async with FakeBroker() as dead:
        pass
    connection = Connection(dead.address, dead.config(), Metrics())
    with pytest.raises(exc.ConnectionError) as caught:
        await connection.request(MetadataRequest(()))
    assert (caught.value.host, caught.value.port) == dead.address


@pytest.mark.parametrize("kind", [exc.NoOffsetsError, exc.NoBrokersError])
def test_errors_can_be_created_without_arguments(kind: type[errors.BrokerError]) -> None:
    """Errors can be created without arguments, as kiel does. They still have a text, and can be pickled."""
    error = pickle.loads(pickle.dumps(kind()))
    assert type(error) is kind
    assert str(error)
    assert error.code is None


def test_an_error_that_is_never_raised_can_be_imported() -> None:
    """Programs of kiel can import UnhandledResponseError, although this package never raises it."""
    assert exc.UnhandledResponseError("fetch").api == "fetch"
    assert str(exc.UnhandledResponseError("fetch")) == "No handler method for 'fetch' api"
    assert issubclass(exc.UnhandledResponseError, exc.KielError)


def test_constants_are_kafkas_numbers() -> None:
    """The constants have the numbers that brokers expect."""
    assert (constants.BEGINNING, constants.END) == (-2, -1)
    assert (constants.GZIP, constants.SNAPPY, constants.LZ4) == (1, 2, 3)
    assert constants.SUPPORTED_COMPRESSION == (None, 1, 2, 3)
    assert constants.DEFAULT_KAFKA_PORT == 9092
    assert constants.CONSUMER_REPLICA_ID == -1
    assert constants.API_VERSION == 0
    assert BrokerConfig(hosts=()).client_id == constants.CLIENT_ID
    for request in (ProduceRequest, FetchRequest, ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest):
        assert request.API_KEY in constants.API_KEYS.values()
    assert constants.API_KEYS["offset"] == ListOffsetsRequest.API_KEY
    assert constants.API_KEYS["group_coordinator"] == 10


def test_error_names_are_kiels() -> None:
    """The names of error codes are kiel's, even where Kafka's names differ, because programs compare them."""
    assert constants.ERROR_CODES == {
        -1: "unknown",
        0: "no_error",
        1: "offset_out_of_range",
        2: "invalid_message",
        3: "unknown_topic_or_partition",
        4: "invalid_message_size",
        5: "leader_not_available",
        6: "not_partition_leader",
        7: "request_timed_out",
        8: "broker_not_available",
        9: "replica_not_available",
        10: "message_size_too_large",
        11: "stale_controller_epoch",
        12: "offset_metadata_too_large",
        13: "stale_leader_epoch",
        14: "offsets_load_in_progress",
        15: "coordinator_not_available",
        16: "not_coordinator",
        17: "invalid_topic",
        18: "record_list_too_large",
        19: "not_enough_replicas",
        20: "not_enough_replicas_after_append",
        21: "invalid_required_acks",
        22: "illegal_generation",
        23: "inconsistent_group_protocol",
        24: "invalid_group_id",
        25: "unknown_member_id",
        26: "invalid_session_timeout",
        27: "rebalance_in_progress",
        28: "invalid_commit_offset_size",
        29: "topic_authorization_failed",
        30: "group_authorization_failed",
        31: "cluster_authorization_failed",
    }
    assert {
        "invalid_message",
        "unknown_topic_or_partition",
        "leader_not_available",
        "not_partition_leader",
        "request_timed_out",
        "offsets_load_in_progress",
        "coordinator_not_available",
        "not_coordinator",
        "not_enough_replicas",
        "not_enough_replicas_after_append",
    } == constants.RETRIABLE_CODES


CLIENT = "cluster heal_cluster closing connect close wind_down send"
CONSUMER = f"""{CLIENT} name deserializer max_wait_time min_bytes max_bytes offsets synced_offsets allocation consume
    determine_offsets deserialize_messages handle_fetch_response"""
#: The public attributes and methods of kiel 0.9.3.
ATTRIBUTES: dict[Any, str] = {
    clients.SingleConsumer: f"{CONSUMER} BEGINNING END handle_offset_response",
    clients.GroupedConsumer: f"""{CONSUMER} group_name coordinator_id allocator topics_to_commit autocommit
        determine_coordinator commit_offsets handle_group_coordinator_response handle_offset_fetch_response
        handle_offset_commit_response""",
    clients.Producer: f"""{CLIENT} compression serializer key_maker partitioner batch_size required_acks ack_timeout
        unsent sent unsent_count produce flush queue_retries handle_produce_response""",
    grouped: "GroupedConsumer naive_allocator",
    single: "SingleConsumer start_to_timestamp",
    producer: "Producer",
}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in ATTRIBUTES.items() for name in names.split()]
)
def test_each_public_name_of_kiel_exists_or_is_on_the_migration_page(owner: Any, name: str) -> None:
    """A program that uses a name finds it, or the page on migrating says that it does not exist."""
    page = (REPOSITORY / "docs" / "migrating-from-kiel.rst").read_text()
    missing = page.partition("These names do not exist:")[2].partition("\n\n")[0]
    listed = f"``{name}``" in missing or (name.startswith("handle_") and "``handle_…_response``" in missing)
    assert hasattr(owner, name) != listed


def test_the_default_allocator_assigns_as_kiels_does() -> None:
    """It gives the partitions to the members in turn, both as sorted text."""
    partitions = sorted(f"t:{number}" for number in range(12))
    assigned = grouped.naive_allocator(["a", "b"], partitions)
    assert assigned == {"a": {"t": [0, 10, 2, 4, 6, 8]}, "b": {"t": [1, 11, 3, 5, 7, 9]}}


def test_the_functions_of_a_producer_can_be_read() -> None:
    """They are the application's, or the defaults, which make JSON, no key, and choose a partition at random."""
    default = clients.Producer("127.0.0.1:1")
    assert default.serializer({"b": 1, "a": 2}) == b'{"a": 2, "b": 1}'
    assert default.key_maker("value") is None
    assert default.partitioner("key", [7]) == 7
    given = clients.Producer("127.0.0.1:1", str, repr, clients.hash_partitioner)
    assert (given.serializer, given.key_maker, given.partitioner) == (str, repr, clients.hash_partitioner)


@pytest.mark.parametrize("module", ["clients", "exc", "constants"])
def test_importing_a_name_loads_no_client_library(module: str) -> None:
    """A program that imports only an error loads neither kazoo nor Tornado."""
    program = f"import sys, kiel_groups.{module}; print({{'kazoo', 'tornado'}} & sys.modules.keys())"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert finished.stdout.strip() == "set()"
