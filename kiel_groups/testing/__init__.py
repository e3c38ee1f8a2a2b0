"""
Test without servers: simulated time, and a fake ZooKeeper behind kazoo's own client.

The simulator runs whole groups on this package. Applications may use it, too.
Tests compare the fake ZooKeeper with real servers. No other package uses this package.
"""

from kiel_groups.testing.fake_client import Host, fake_client
from kiel_groups.testing.fake_ensemble import FakeEnsemble
from kiel_groups.testing.fake_server import FakeServer
from kiel_groups.testing.simulated_process import SimulatedLoop, SimulatedProcess, SimulatedRuntime
from kiel_groups.testing.timeline import Livelock, Stuck, Timeline

__all__ = [
    "Timeline",
    "Stuck",
    "Livelock",
    "FakeEnsemble",
    "FakeServer",
    "Host",
    "fake_client",
    "SimulatedRuntime",
    "SimulatedProcess",
    "SimulatedLoop",
]
