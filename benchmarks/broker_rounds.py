"""Measure clients whose groups the brokers coordinate, round by round, each client in each round."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import median

import click

from benchmarks.broker_contenders import BROKER_CONTENDERS, INITIAL_DELAY_MS, SESSION_TIMEOUT_MS, BrokerContender
from benchmarks.coordinated_group import CoordinatedFigures, CoordinatedGroup, coordinated_group
from benchmarks.member_commands import BrokerGroup
from kiel_groups.clients import Producer
from kiel_groups.config import BrokerConfig, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.members.brokers.transport import HeartbeatConnection
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import FindCoordinatorRequest
from kiel_groups.wire.offsets import OffsetCommitRequestV2

__all__ = ["BROKER_CONTENDERS", "KAFKAS", "named_contenders", "run", "show_titles"]

#: The first release whose brokers coordinate groups, and the last one that knows the requests of 0.8.
KAFKAS = ("0.9.0.1", "3.9.1")

TITLES = ("size", "kafka", "group", "event", "s", "begun", "stopped", "assigned", "unowned", "moved", "cores")
_WIDTHS = "{:>9} {:<8} {:<31} {:<6} {:>7} {:>7} {:>7} {:>8} {:>9} {:>5} {:>5}"


def named_contenders(name: str) -> list[BrokerContender]:
    """Return the contender of this name, or else all with it in theirs."""
    exact = [one for one in BROKER_CONTENDERS if one.name == name]
    return exact or [one for one in BROKER_CONTENDERS if name in one.name]


def show_titles() -> None:
    click.echo(_WIDTHS.format(*TITLES))


def run(
    contenders: Sequence[BrokerContender],
    sizes: Sequence[tuple[int, int]],
    releases: Sequence[str],
    rounds: int,
    patience_s: float,
) -> list[dict[str, object]]:
    """
    Measure all contenders, one after the other in each round, with only one group alive at a time.

    Once ``patience_s`` for each contender is over, no further round begins.
    """
    rows: list[dict[str, object]] = []
    for release in releases:
        for members, partitions in sizes:
            # 0.9 has no such setting, and waits for no further members.
            overrides = {"group.initial.rebalance.delay.ms": INITIAL_DELAY_MS} if release != "0.9.0.1" else {}
            with Cluster(kafka=release, broker_overrides=overrides) as cluster:
                topics = _create_topics(cluster, partitions)
                deadline_s = time.monotonic() + patience_s * len(contenders)
                found: dict[BrokerContender, dict[str, list[CoordinatedFigures]]] = {
                    contender: defaultdict(list) for contender in contenders
                }
                for number in range(rounds):
                    if number and time.monotonic() > deadline_s:
                        break
                    for contender in contenders:
                        click.echo(f"round {number + 1}: {release}, {members} members: {contender.name}", err=True)
                        name = f"group-{number}-{contenders.index(contender)}"
                        group = BrokerGroup(cluster.brokers[0], name, topics, release)
                        _commit_starts(cluster, group, partitions)
                        with coordinated_group(contender, group, partitions, cluster) as running:
                            _round(running, members, (number + 0.5) / rounds, found[contender])
            for contender, events in found.items():
                for event, figures in events.items():
                    rows.append(_row(contender, release, members, partitions, event, figures))
                    _show(rows[-1])
    return rows


def _create_topics(cluster: Cluster, partitions: int) -> tuple[str, ...]:
    """Create topics with a record in each partition."""
    topics = tuple(f"topic-{number}" for number in range(-(-partitions // 100)))

    async def fill() -> None:
        async with Producer(cluster.brokers) as producer:
            for topic in topics:
                await cluster.create_topic(topic, partitions // len(topics))
                numbers = range(partitions // len(topics))
                await asyncio.gather(*(producer.produce(topic, b"record", partition=number) for number in numbers))

    asyncio.run(fill())
    return topics


def _commit_starts(cluster: Cluster, group: BrokerGroup, partitions: int) -> None:
    """Commit the beginning of each partition, so that no member has to look it up."""
    numbers = range(partitions // len(group.topics))
    offsets = {TopicPartition(topic, n): OffsetAndMetadata(0, "") for topic in group.topics for n in numbers}
    request = OffsetCommitRequestV2(group.name, -1, "", offsets)
    (broker,) = parse_hosts(cluster.brokers, 9092, "broker")
    connection = HeartbeatConnection(BrokerConfig(hosts=(), client_id="benchmark"))
    deadline_s = time.monotonic() + 30
    while any(code != NO_ERROR for code in connection.request(broker, request, 10.0).values()):
        # The broker has yet to create the topic of offsets, and to load it.
        connection.request(broker, FindCoordinatorRequest(group.name), 10.0)
        if time.monotonic() > deadline_s:
            raise click.ClickException("the coordinator does not accept offsets")
        time.sleep(0.1)
    connection.close()


def _round(running: CoordinatedGroup, members: int, phase: float, found: dict[str, list[CoordinatedFigures]]) -> None:
    """
    Measure a join, a leave, another join and a kill.

    Each event comes as long after the rebalance before it as ``phase`` says, a part of the heartbeats' interval.
    """
    running.gather(members - 1)
    for event, end in (("leave", running.leave), ("kill", running.kill)):
        member = running.prepared()
        running.rest(phase)
        found["join"].append(running.measure("join", members, partial(running.join, member)))
        running.rest(phase)
        found[event].append(running.measure(event, members - 1, partial(end, member)))


def _row(
    contender: BrokerContender,
    release: str,
    members: int,
    partitions: int,
    event: str,
    figures: Sequence[CoordinatedFigures],
) -> dict[str, object]:
    medians = {name: round(median(getattr(one, name) for one in figures), 3) for name in CoordinatedFigures.__slots__}
    return {
        "coordination": "brokers",
        "members": members,
        "partitions": partitions,
        "kafka": release,
        "group": contender.name,
        "event": event,
        **medians,
        "heartbeat_ms": contender.heartbeat_ms,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "initial_delay_ms": INITIAL_DELAY_MS,
        "rounds": [asdict(one) for one in figures],
    }


def _show(row: Mapping[str, object]) -> None:
    size = f"{row['members']}×{row['partitions']}"
    times = [f"{row[name]:.3f}" for name in ("s", "begun", "stopped", "assigned", "unowned")]
    counts = [f"{row['moved']:g}", f"{row['cores']:.2f}"]
    click.echo(_WIDTHS.format(size, row["kafka"], row["group"], row["event"], *times, *counts))
