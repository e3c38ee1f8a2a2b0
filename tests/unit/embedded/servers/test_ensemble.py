"""Before any server starts, an ensemble rejects an invalid size, and ``cut()`` if it has no proxies."""

from __future__ import annotations

import pytest

from kiel_groups.embedded import Cluster, ZooKeeperEnsemble
from kiel_groups.errors import ConfigError, ServerError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("servers", [-1, 0, 2, 4])
def test_an_ensemble_has_an_odd_number_of_servers(servers: int) -> None:
    """
    The number of servers must be odd and at least 1. An even number tolerates no more failures than the odd number
    below it.
    """
    with pytest.raises(ConfigError, match=rf"servers: {servers} given; expected an odd number"):
        ZooKeeperEnsemble(servers)
    with pytest.raises(ConfigError, match=rf"servers: {servers} given"):
        Cluster(zookeepers=servers)


def test_servers_without_proxies_cannot_be_cut_off() -> None:
    """Servers without proxies cannot be cut off. The error names the option that adds proxies between the servers."""
    ensemble = ZooKeeperEnsemble(3)
    with pytest.raises(ServerError, match="an ensemble that is cuttable=True can be cut"):
        ensemble.cut(*ensemble.servers[:2])
