"""Inflict and end each kind of fault."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias

from kiel_groups.embedded import KafkaBroker, ZooKeeperServer
from kiel_groups.embedded.processes import in_thread
from tests.chaos.member_hosts import MemberHost
from tests.chaos.network import Network
from tests.chaos.schedule import KINDS, Domain, Fault
from tests.chaos.system import SystemUnderTest
from tests.helpers.zookeeper_roles import followers_of, leader_of
from tests.proxies.fault_proxy import Direction

__all__ = ["INFLICT", "inflict", "target_name"]

Inflict: TypeAlias = Callable[[SystemUnderTest, Fault], Awaitable[None]]

#: How long a flickering network is cut, and how long it works, in seconds.
_FLICKER_S = (0.1, 0.8)


async def inflict(system: SystemUnderTest, fault: Fault) -> None:
    """
    Inflict a fault for its duration. Then wait until brokers or the ensemble have recovered, if the fault was theirs.
    """
    await INFLICT[fault.kind](system, fault)
    domain = KINDS[fault.kind].domain
    if domain is Domain.BROKERS:
        await system.wait_for_brokers()
    elif domain is Domain.ENSEMBLE:
        await system.wait_for_ensemble()


def target_name(system: SystemUnderTest, fault: Fault) -> str:
    """Return the name of the target, for the report."""
    domain = KINDS[fault.kind].domain
    if domain is Domain.MEMBER:
        return str(system.hosts[fault.target])
    return f"broker-{fault.target}" if domain is Domain.BROKERS else f"server {fault.target}"


# ---------------------------------------------------------------------- members


async def _member_kill(system: SystemUnderTest, fault: Fault) -> None:
    host = system.hosts[fault.target]
    await in_thread(host.kill)
    await asyncio.sleep(fault.lasts_s)
    await host.start_and_wait()


async def _member_restart(system: SystemUnderTest, fault: Fault) -> None:
    host = system.hosts[fault.target]
    await in_thread(host.leave)
    await asyncio.sleep(fault.lasts_s)
    await host.start_and_wait()


async def _member_join(system: SystemUnderTest, fault: Fault) -> None:
    host = system.hosts[fault.target]
    await host.start_and_wait()
    await asyncio.sleep(fault.lasts_s)
    await in_thread(host.leave)


async def _member_stop(system: SystemUnderTest, fault: Fault) -> None:
    host = system.hosts[fault.target]
    await in_thread(host.stop)
    await asyncio.sleep(fault.lasts_s)
    host.resume()


def _network_fault(network_of: Callable[[MemberHost], Network], fails: Callable[[Network], None]) -> Inflict:
    """
    Return a function that applies ``fails`` to a network of a member, and heals the network at the end of the fault.
    """

    async def fail(system: SystemUnderTest, fault: Fault) -> None:
        network = network_of(system.hosts[fault.target])
        fails(network)
        await asyncio.sleep(fault.lasts_s)
        network.heal()

    return fail


def _flicker(network_of: Callable[[MemberHost], Network]) -> Inflict:
    """Return a function that cuts and heals a network of a member repeatedly. A replay has the same intervals."""

    async def flicker(system: SystemUnderTest, fault: Fault) -> None:
        network, random = network_of(system.hosts[fault.target]), Random(fault.number)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + fault.lasts_s
        while loop.time() < end_s:
            network.cut()
            await asyncio.sleep(random.uniform(*_FLICKER_S))
            network.heal()
            await asyncio.sleep(random.uniform(*_FLICKER_S))

    return flicker


def _to_zookeeper(host: MemberHost) -> Network:
    return host.zookeeper


def _to_brokers(host: MemberHost) -> Network:
    return host.brokers


def _mute(network: Network) -> None:
    """Forward requests, and hold back responses, so that the outcome of requests is unknown."""
    network.stall(Direction.RESPONSES)


# ---------------------------------------------------------------------- brokers


async def _broker_kill(system: SystemUnderTest, fault: Fault) -> None:
    broker = system.brokers[fault.target]
    await broker.kill()
    await asyncio.sleep(fault.lasts_s)
    await system.start_broker(broker)


async def _broker_restart(system: SystemUnderTest, fault: Fault) -> None:
    broker = system.brokers[fault.target]
    await broker.stop()
    await asyncio.sleep(fault.lasts_s)
    await system.start_broker(broker)


async def _broker_stop(system: SystemUnderTest, fault: Fault) -> None:
    await _pause(system.brokers[fault.target], fault.lasts_s)


async def _broker_without_zookeeper(system: SystemUnderTest, fault: Fault) -> None:
    network = system.broker_networks[fault.target]
    network.stall()
    await asyncio.sleep(fault.lasts_s)
    network.heal()


async def _pause(server: KafkaBroker | ZooKeeperServer, seconds: float) -> None:
    await in_thread(server.pause)
    await asyncio.sleep(seconds)
    server.resume()


# ---------------------------------------------------------------------- ZooKeeper


async def _server(system: SystemUnderTest, target: int) -> ZooKeeperServer:
    """Return ZooKeeper's leader if ``target`` is 0, or a follower if it is 1 or 2."""
    if target == 0:
        return await leader_of(system.ensemble)
    return (await followers_of(system.ensemble))[target - 1]


async def _zookeeper_kill(system: SystemUnderTest, fault: Fault) -> None:
    server = await _server(system, fault.target)
    await server.kill()
    await asyncio.sleep(fault.lasts_s)
    await server.start()


async def _zookeeper_restart(system: SystemUnderTest, fault: Fault) -> None:
    server = await _server(system, fault.target)
    await server.stop()
    await asyncio.sleep(fault.lasts_s)
    await server.start()


async def _zookeeper_stop(system: SystemUnderTest, fault: Fault) -> None:
    await _pause(await _server(system, fault.target), fault.lasts_s)


async def _zookeeper_leader_cut(system: SystemUnderTest, fault: Fault) -> None:
    leader = await leader_of(system.ensemble)
    await _cut(system, fault, leader, *(server for server in system.ensemble.servers if server is not leader))


async def _zookeeper_follower_cut(system: SystemUnderTest, fault: Fault) -> None:
    follower = (await followers_of(system.ensemble))[fault.target % 2]
    await _cut(system, fault, follower, *(server for server in system.ensemble.servers if server is not follower))


async def _cut(system: SystemUnderTest, fault: Fault, one: ZooKeeperServer, *others: ZooKeeperServer) -> None:
    system.ensemble.cut(one, *others)
    await asyncio.sleep(fault.lasts_s)
    system.ensemble.heal()


INFLICT: dict[str, Inflict] = {
    "member-kill": _member_kill,
    "member-restart": _member_restart,
    "member-join": _member_join,
    "member-stop-short": _member_stop,
    "member-stop-long": _member_stop,
    "member-zookeeper-cut": _network_fault(_to_zookeeper, Network.cut),
    "member-zookeeper-stall": _network_fault(_to_zookeeper, Network.stall),
    "member-zookeeper-mute": _network_fault(_to_zookeeper, _mute),
    "member-zookeeper-flicker": _flicker(_to_zookeeper),
    "member-broker-cut": _network_fault(_to_brokers, Network.cut),
    "member-broker-stall": _network_fault(_to_brokers, Network.stall),
    "member-broker-mute": _network_fault(_to_brokers, _mute),
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
