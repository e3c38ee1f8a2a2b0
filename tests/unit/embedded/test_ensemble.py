"""What an ensemble cannot be, or do, is refused before anything is started."""

from __future__ import annotations

import pytest

from kiel_groups.embedded import Cluster, ZooKeeperEnsemble
from kiel_groups.errors import ConfigError, ServerError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("servers", [-1, 0, 2, 4])
def test_an_ensemble_has_an_odd_number_of_servers(servers: int) -> None:
    """An even number tolerates no more failures than the odd one below it, and is a mistake."""
    with pytest.raises(ConfigError, match=rf"servers: {servers} given; expected an odd number"):
        ZooKeeperEnsemble(servers)
    with pytest.raises(ConfigError, match=rf"servers: {servers} given"):
        Cluster(zookeepers=servers)


def test_servers_that_talk_directly_cannot_be_cut() -> None:
    """The error says which ensembles can."""
    ensemble = ZooKeeperEnsemble(3)
    with pytest.raises(ServerError, match="an ensemble that is cuttable=True can be cut"):
        ensemble.cut(*ensemble.servers[:2])
