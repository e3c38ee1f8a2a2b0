"""
Test without servers: simulated time, a fake ZooKeeper behind kazoo's own client, and a fake coordinator of groups.

The simulator runs whole groups on it; applications may use it, too.
It opens no connection and starts no server; no other package of ``kiel_groups`` uses it.
"""

from kiel_groups.testing.fake_client import Host, fake_client
from kiel_groups.testing.fake_coordinator import FakeCoordinator
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
    "FakeCoordinator",
    "Host",
    "fake_client",
    "SimulatedRuntime",
    "SimulatedProcess",
    "SimulatedLoop",
]
