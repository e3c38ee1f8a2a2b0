"""Before any server starts, an ensemble rejects an invalid size."""

from __future__ import annotations

import pytest

from kiel_groups.embedded import Cluster, ZooKeeperEnsemble
from kiel_groups.errors import ConfigError

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
