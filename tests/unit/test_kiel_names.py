"""The names that programs written for kiel import, and what stands behind them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kiel_groups import constants, errors, exc

pytestmark = pytest.mark.unit


def test_errors_by_their_older_names() -> None:
    """Who catches an error by kiel's name catches ours."""
    assert exc.ConnectionError is exc.BrokerConnectionError is errors.BrokerConnectionError
    assert exc.KielError is errors.KielGroupsError
    assert issubclass(exc.NoBrokersError, exc.KielError)
    assert issubclass(exc.NoOffsetsError, exc.KielError)


def test_constants_are_kafkas_numbers() -> None:
    """Not ours to choose: brokers know them."""
    assert (constants.BEGINNING, constants.END) == (-2, -1)
    assert (constants.GZIP, constants.SNAPPY, constants.LZ4) == (1, 2, 3)
    assert constants.DEFAULT_KAFKA_PORT == 9092
    assert constants.CONSUMER_REPLICA_ID == -1
    assert constants.ERROR_CODES[12] == "offset_metadata_too_large"
    assert "leader_not_available" in constants.RETRIABLE_CODES
    assert "offset_out_of_range" not in constants.RETRIABLE_CODES


@pytest.mark.parametrize("module", ["clients", "exc", "constants"])
def test_importing_a_name_starts_nothing(module: str) -> None:
    """A program that only catches an error does not load the clients' libraries for it."""
    program = f"import sys, kiel_groups.{module}; print({{'kazoo', 'tornado'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
