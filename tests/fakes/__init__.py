"""
Replace servers in tests: simulated time, a fake ZooKeeper behind kazoo's own client, and a fake coordinator of groups.

The simulator runs whole groups on them, and other tests single parts; their names are imported from here.
They open no connection, start no server, and use nothing of ``kiel_groups.clients``.
"""

from tests.fakes.fake_client import Host, fake_client
from tests.fakes.fake_coordinator import FakeCoordinator
from tests.fakes.fake_ensemble import FakeEnsemble
from tests.fakes.fake_server import FakeServer
from tests.fakes.simulated_process import SimulatedLoop, SimulatedProcess, SimulatedRuntime
from tests.fakes.timeline import Livelock, Stuck, Timeline

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
