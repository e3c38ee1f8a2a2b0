"""An ensemble that cannot be is refused before anything is started."""

from __future__ import annotations

import pytest

from kiel_groups.embedded import Cluster, ZooKeeperEnsemble
from kiel_groups.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("servers", [-1, 0, 2, 4])
def test_an_ensemble_has_an_odd_number_of_servers(servers: int) -> None:
    """An even number tolerates no more failures than the odd one below it, and is a mistake."""
    with pytest.raises(ConfigError, match=rf"servers: {servers} given; expected an odd number"):
        ZooKeeperEnsemble(servers)
    with pytest.raises(ConfigError, match=rf"servers: {servers} given"):
        Cluster(zookeepers=servers)
