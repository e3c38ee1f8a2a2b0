"""The connections that a Spark worker keeps from one task to the next."""

from __future__ import annotations

import select
import socket

import pytest

from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.spark.worker_connections import borrowed

pytestmark = pytest.mark.spark

CONFIG = BrokerConfig(hosts=())


def test_a_connection_that_the_broker_has_closed_is_not_used_again() -> None:
    """Brokers close unused connections. The next task opens another one, and does not fail."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = HostPort(*server.getsockname())
        with borrowed(address, CONFIG) as first:
            accepted, _ = server.accept()
        with borrowed(address, CONFIG) as again:
            assert again is first
        accepted.close()
        select.select([first._socket], [], [], 10)
        with borrowed(address, CONFIG) as other:
            assert other is not first
            server.accept()[0].close()
