"""Testing without servers: simulated time, and a fake ZooKeeper behind kazoo's own client."""

from kiel_groups.testing.client import Host, fake_client
from kiel_groups.testing.ensemble import FakeEnsemble
from kiel_groups.testing.server import FakeServer
from kiel_groups.testing.simulated import SimulatedLoop, SimulatedMachine, SimulatedProcess
from kiel_groups.testing.timeline import Livelock, Stuck, Timeline

__all__ = [
    "Timeline",
    "Stuck",
    "Livelock",
    "FakeEnsemble",
    "FakeServer",
    "Host",
    "fake_client",
    "SimulatedMachine",
    "SimulatedProcess",
    "SimulatedLoop",
]
