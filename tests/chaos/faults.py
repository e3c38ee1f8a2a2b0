"""How each kind of fault is inflicted and taken back; each returns when what it hit has recovered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias

from kiel_groups.embedded import KafkaBroker, ZooKeeperServer
from kiel_groups.embedded.faults.fault_proxy import Direction
from kiel_groups.embedded.processes.server_process import in_thread
from tests.chaos.places import Link, Place
from tests.chaos.schedule import KINDS, Domain, Fault
from tests.chaos.world import World

__all__ = ["inflict", "target_name"]

Inflict: TypeAlias = Callable[[World, Fault], Awaitable[None]]

#: How long the network is away, and there, while it flickers, in seconds.
_FLICKER_S = (0.1, 0.8)


async def inflict(world: World, fault: Fault) -> None:
    """Inflict a fault, take it back after its time, and wait until its target has recovered."""
    await _INFLICT[fault.kind](world, fault)
    domain = KINDS[fault.kind].domain
    if domain is Domain.BROKERS:
        await world.brokers_serve()
    elif domain is Domain.ENSEMBLE:
        await world.ensemble_serves()


def target_name(world: World, fault: Fault) -> str:
    """What a fault hits, for the report."""
    domain = KINDS[fault.kind].domain
    if domain is Domain.MEMBER:
        return str(world.places[fault.target])
    return f"broker-{fault.target}" if domain is Domain.BROKERS else f"server {fault.target}"


# ---------------------------------------------------------------------- members


async def _member_kill(world: World, fault: Fault) -> None:
    place = world.places[fault.target]
    await in_thread(place.kill)
    await asyncio.sleep(fault.lasts_s)
    await place.start_anew()


async def _member_restart(world: World, fault: Fault) -> None:
    place = world.places[fault.target]
    await in_thread(place.leave)
    await asyncio.sleep(fault.lasts_s)
    await place.start_anew()


async def _member_join(world: World, fault: Fault) -> None:
    place = world.places[fault.target]
    await place.start_anew()
    await asyncio.sleep(fault.lasts_s)
    await in_thread(place.leave)


async def _member_stop(world: World, fault: Fault) -> None:
    place = world.places[fault.target]
    await in_thread(place.stop)
    await asyncio.sleep(fault.lasts_s)
    place.resume()


def _way(side: Callable[[Place], Link], fails: Callable[[Link], None]) -> Inflict:
    """A fault of a member's network that begins once and ends once."""

    async def fail(world: World, fault: Fault) -> None:
        link = side(world.places[fault.target])
        fails(link)
        await asyncio.sleep(fault.lasts_s)
        link.heal()

    return fail


def _flicker(side: Callable[[Place], Link]) -> Inflict:
    """A member's network that goes and comes; the same way each time that the fault is replayed."""

    async def flicker(world: World, fault: Fault) -> None:
        link, random = side(world.places[fault.target]), Random(fault.number)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + fault.lasts_s
        while loop.time() < end_s:
            link.cut()
            await asyncio.sleep(random.uniform(*_FLICKER_S))
            link.heal()
            await asyncio.sleep(random.uniform(*_FLICKER_S))

    return flicker


def _to_zookeeper(place: Place) -> Link:
    return place.zookeeper


def _to_brokers(place: Place) -> Link:
    return place.brokers


def _mute(link: Link) -> None:
    """Requests get through, answers do not: what they did is unknown."""
    link.stall(Direction.RESPONSES)


# ---------------------------------------------------------------------- brokers


async def _broker_kill(world: World, fault: Fault) -> None:
    broker = world.brokers[fault.target]
    await broker.kill()
    await asyncio.sleep(fault.lasts_s)
    await world.start_broker(broker)


async def _broker_restart(world: World, fault: Fault) -> None:
    broker = world.brokers[fault.target]
    await broker.stop()
    await asyncio.sleep(fault.lasts_s)
    await world.start_broker(broker)


async def _broker_stop(world: World, fault: Fault) -> None:
    await _pause(world.brokers[fault.target], fault.lasts_s)


async def _broker_without_zookeeper(world: World, fault: Fault) -> None:
    link = world.registries[fault.target]
    link.stall()
    await asyncio.sleep(fault.lasts_s)
    link.heal()


async def _pause(server: KafkaBroker | ZooKeeperServer, seconds: float) -> None:
    await in_thread(server.pause)
    await asyncio.sleep(seconds)
    server.resume()


# ---------------------------------------------------------------------- ZooKeeper


async def _server_of(world: World, target: int) -> ZooKeeperServer:
    """The leader where ``target`` is 0, else one of the followers."""
    if target == 0:
        return await world.ensemble.leader()
    return (await world.ensemble.followers())[target - 1]


async def _zookeeper_kill(world: World, fault: Fault) -> None:
    server = await _server_of(world, fault.target)
    await server.kill()
    await asyncio.sleep(fault.lasts_s)
    await server.start()


async def _zookeeper_restart(world: World, fault: Fault) -> None:
    server = await _server_of(world, fault.target)
    await server.stop()
    await asyncio.sleep(fault.lasts_s)
    await server.start()


async def _zookeeper_stop(world: World, fault: Fault) -> None:
    await _pause(await _server_of(world, fault.target), fault.lasts_s)


async def _zookeeper_leader_cut(world: World, fault: Fault) -> None:
    leader = await world.ensemble.leader()
    await _cut(world, fault, leader, *(server for server in world.ensemble.servers if server is not leader))


async def _zookeeper_follower_cut(world: World, fault: Fault) -> None:
    follower = (await world.ensemble.followers())[fault.target % 2]
    await _cut(world, fault, follower, *(server for server in world.ensemble.servers if server is not follower))


async def _cut(world: World, fault: Fault, one: ZooKeeperServer, *others: ZooKeeperServer) -> None:
    world.ensemble.cut(one, *others)
    await asyncio.sleep(fault.lasts_s)
    world.ensemble.heal()


_INFLICT: dict[str, Inflict] = {
    "member-kill": _member_kill,
    "member-restart": _member_restart,
    "member-join": _member_join,
    "member-stop-short": _member_stop,
    "member-stop-long": _member_stop,
    "member-zookeeper-cut": _way(_to_zookeeper, Link.cut),
    "member-zookeeper-stall": _way(_to_zookeeper, Link.stall),
    "member-zookeeper-mute": _way(_to_zookeeper, _mute),
    "member-zookeeper-flicker": _flicker(_to_zookeeper),
    "member-broker-cut": _way(_to_brokers, Link.cut),
    "member-broker-stall": _way(_to_brokers, Link.stall),
    "member-broker-mute": _way(_to_brokers, _mute),
    "member-broker-flicker": _flicker(_to_brokers),
    "broker-kill": _broker_kill,
    "broker-restart": _broker_restart,
    "broker-stop": _broker_stop,
    "broker-without-zookeeper": _broker_without_zookeeper,
    "zookeeper-kill": _zookeeper_kill,
    "zookeeper-restart": _zookeeper_restart,
    "zookeeper-stop": _zookeeper_stop,
    "zookeeper-leader-cut": _zookeeper_leader_cut,
    "zookeeper-follower-cut": _zookeeper_follower_cut,
}
