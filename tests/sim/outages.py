"""Outages of a simulated process's network."""

from __future__ import annotations

from tests.sim.consumer import Consumer
from tests.sim.world import World

__all__ = ["cut_off_for"]


def cut_off_for(world: World, consumer: Consumer, duration_s: float) -> int:
    """
    Disconnect a consumer from all servers for ``duration_s``, and return the id of the session that it had before.
    """
    (session_id,) = consumer.process.sessions
    consumer.process.stall()
    world.run_for(duration_s)
    consumer.process.resume()
    return session_id
