"""What the proxies of cuttable servers change in the servers' configurations."""

from __future__ import annotations

import pytest

from kiel_groups.config import HostPort
from kiel_groups.embedded.releases import kafka_release
from tests.proxies.cuttable_servers import advertised_settings

pytestmark = pytest.mark.unit


def test_a_broker_advertises_its_proxy_as_its_release_says() -> None:
    """Up to 0.8.2 a broker advertises a host and a port, later a listener."""
    address = HostPort("127.0.0.1", 7)
    early, late = kafka_release("0.8.2.2"), kafka_release("0.9.0.1")
    assert advertised_settings(early, address) == {"advertised.host.name": "127.0.0.1", "advertised.port": 7}
    assert advertised_settings(late, address) == {"advertised.listeners": "PLAINTEXT://127.0.0.1:7"}
