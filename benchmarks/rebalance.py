"""
Measure how long partitions have no owner when a member joins, leaves or is killed, observed from outside.

    python -m benchmarks.rebalance [--coordination zookeeper|brokers] [--kafka RELEASE] [--size MEMBERSxPARTITIONS]
                                   [--only NAME] [--rounds N] [--patience SECONDS] [--without-slow] [--quick]
                                   [--json FILE]

The benchmark runs real servers, without records. In each round a member joins, leaves cleanly, joins again and is
killed with -9. The figures are medians of the rounds.

Groups that coordinate themselves through ZooKeeper are observed in ZooKeeper's own transaction log, with the server's
time in milliseconds:

- ``s``: a join counts from the new member's id, a leave from the request to leave, a death from the end of its session
  (no other member can notice it before). Each ends when every partition has an owner and members differ by one at most.
- ``unowned``: partition-seconds without an owner in that time.
- ``moved``: partitions with another owner than before, beyond those that had to move.
- ``writes``: all transactions in ZooKeeper's log in that time, including heartbeats and sessions.
- ``cores``: processor time of members and servers in that time, divided by the time. If that is near the number of the
  machine's cores, faster members would need a larger machine.

kazoo's SetPartitioner waits for its ``time_boundary`` (30 s by default) at every change; tuned, for 0.1 s.

Groups that brokers coordinate leave no such trace. Their members report what happens with the time of the system's
monotonic clock. Each partition has one record, and no member commits, so each new owner delivers this record. A member
owns a partition from that delivery until its listener is notified of the revocation. Each contender is measured in each
round, and only one group is alive at a time:

- ``s``: a join counts from the new member's call to subscribe, a leave from its call to close, a death from the end of
  its session. Each ends when every partition has an owner.
- ``begun``: until the coordinator rebalances, to some milliseconds. For a join, that is the new member's search for the
  coordinator, with the first use of most classes in Java.
- ``stopped``: until the last member has stopped delivering. Members learn of a rebalance by the answer to their next
  heartbeat, so that takes up to an interval. The members of a group beat in step, from the rebalance before on. Each
  round begins its events at another moment of the interval, which is the same for all contenders.
- ``assigned``: until the last listener was notified of its new partitions. Ours is notified when the positions are
  known, the others before that. From then on, the others' next fetch waits for the answer to the last one, which a
  broker without new records delays by half a second.
- ``unowned``, ``moved`` and ``cores``: as above.

The brokers wait for no further members of an empty group (``group.initial.rebalance.delay.ms=0``; 3,000 by default from
0.11 on), which concerns none of these events. Sessions are of 10.5 s: they end between two heartbeats of the others.

1,000 partitions are in ten topics. Each member is a process of its own, except that the Java consumers that stay share
one process, to save the start of the others.

Without options, everything is measured, in two hours at most. Once ``--patience`` is over, a group begins no further
round.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import click

from benchmarks import broker_rounds
from benchmarks.contenders import CONTENDERS, SESSION_TIMEOUT_MS, Contender, Group
from benchmarks.measured_group import Figures, MeasuredGroup, measured_group
from kiel_groups.embedded import Cluster

SIZES = ((4, 64), (20, 1_000))
ZOOKEEPER, BROKERS = "zookeeper", "brokers"
TITLES = ("size", "group", "event", "s", "unowned", "moved", "writes", "cores")


def rounds_of(group: MeasuredGroup, members: int, rounds: int, patience_s: float) -> dict[str, list[Figures]]:
    """Return the figures of each round by event. After ``patience_s``, no further round begins, except the first."""
    deadline_s = time.monotonic() + patience_s
    group.gather(members - 1)
    found: dict[str, list[Figures]] = {"join": [], "leave": [], "kill": []}
    for number in range(rounds):
        if number and time.monotonic() > deadline_s:
            break
        for event, end in (("leave", leave), ("kill", subprocess.Popen.kill)):
            started: list[subprocess.Popen[str]] = []
            found["join"].append(group.measure("join", members, lambda: started.append(group.start())))  # noqa: B023
            found[event].append(group.measure(event, members - 1, lambda: end(started[0])))  # noqa: B023
    return found


def leave(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.close()


def run(
    contenders: Sequence[Contender], sizes: Sequence[tuple[int, int]], rounds: int, patience_s: float
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for members, partitions in sizes:
        with Cluster() as cluster:
            topics = () if all(one.mere_names for one in contenders) else create_topics(cluster, partitions)
            for number, contender in enumerate(contenders):
                click.echo(f"{members} members, {partitions} partitions: {contender.name}", err=True)
                group = Group(cluster.zk_hosts, cluster.brokers[0], f"group-{number}", topics, partitions)
                with measured_group(contender, group, cluster) as running:
                    found = rounds_of(running, members, 1 if contender.slow else rounds, patience_s)
                # Wait until the sessions of killed members have ended, so that they do not end while another group is
                # measured.
                time.sleep(1.5 * SESSION_TIMEOUT_MS / 1000)
                for event, figures in found.items():
                    rows.append(row_of(contender, members, partitions, event, figures))
                    show(rows[-1])
    return rows


def create_topics(cluster: Cluster, partitions: int) -> tuple[str, ...]:
    """Create topics of at most 100 partitions, because a controller of 0.8 needs minutes for a topic of a thousand."""
    from kiel_groups.ops.actions.topics import ZooKeeperTopics

    topics = tuple(f"topic-{number}" for number in range(-(-partitions // 100)))
    for topic in topics:
        ZooKeeperTopics(cluster.zk_hosts).create(topic, partitions // len(topics), timeout_s=120)
    return topics


def row_of(
    contender: Contender, members: int, partitions: int, event: str, figures: Sequence[Figures]
) -> dict[str, object]:
    medians = {name: round(median(getattr(one, name) for one in figures), 3) for name in Figures.__slots__}
    where = {"members": members, "partitions": partitions, "group": contender.name, "event": event}
    where |= {"coordination": ZOOKEEPER}
    return {**where, **medians, "rounds": [asdict(one) for one in figures]}


def show(row: Mapping[str, object]) -> None:
    size = f"{row['members']}×{row['partitions']}"
    figures = [row[title] for title in TITLES[1:]]
    click.echo("{:>9} {:<28} {:<6} {:>8.3f} {:>9.3f} {:>6g} {:>7g} {:>6.2f}".format(size, *figures))


class Size(click.ParamType):
    """Members and partitions, such as ``4x64``."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        members, _, partitions = str(value).partition("x")
        if not (members.isdecimal() and partitions.isdecimal() and 2 <= int(members) <= int(partitions)):
            self.fail(
                f"{value!r} given; expected MEMBERSxPARTITIONS, such as 4x64, with 2 members at least", param, ctx
            )
        return int(members), int(partitions)


@click.command(help=__doc__.split("\n\n")[0])
@click.option(
    "--coordination",
    "coordinations",
    type=click.Choice([ZOOKEEPER, BROKERS]),
    multiple=True,
    default=(ZOOKEEPER, BROKERS),
    help="Measure only groups that are coordinated in this way.",
)
@click.option(
    "--kafka",
    "releases",
    type=click.Choice(broker_rounds.KAFKAS),
    multiple=True,
    default=broker_rounds.KAFKAS,
    help="Measure only with brokers of this release; can be repeated.  [both]",
)
@click.option(
    "--size", "sizes", type=Size(), multiple=True, help="Measure only this size; can be repeated.  [4x64 and 20x1000]"
)
@click.option("--only", default="", metavar="NAME", help="The group of this name, or else all with it in theirs.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--patience", "patience_s", type=float, default=90.0, show_default=True, help="Seconds for a group's rounds."
)
@click.option("--without-slow", is_flag=True, help="Leave out groups that wait for half a minute at every event.")
@click.option("--quick", is_flag=True, help="4 × 64 only, one round, without the slow one.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(
    coordinations: tuple[str, ...],
    releases: tuple[str, ...],
    sizes: tuple[tuple[int, int], ...],
    only: str,
    rounds: int,
    patience_s: float,
    without_slow: bool,
    quick: bool,
    target: Path | None,
) -> None:
    named = [one for one in CONTENDERS if one.name == only] or [one for one in CONTENDERS if only in one.name]
    wanted = [one for one in named if not ((quick or without_slow) and one.slow) and ZOOKEEPER in coordinations]
    by_brokers = broker_rounds.named_contenders(only) if BROKERS in coordinations else []
    if not wanted and not by_brokers:
        names = [one.name for one in CONTENDERS] + [one.name for one in broker_rounds.BROKER_CONTENDERS]
        known = "; ".join(names)
        raise click.BadParameter(f"{only!r} given; known, but for slow ones with --quick: {known}", param_hint="--only")
    sizes, rounds = sizes or (SIZES[:1] if quick else SIZES), 1 if quick else rounds
    rows: list[dict[str, object]] = []
    if wanted:
        click.echo("{:>9} {:<28} {:<6} {:>8} {:>9} {:>6} {:>7} {:>6}".format(*TITLES))
        rows += run(wanted, sizes, rounds, patience_s)
    if by_brokers:
        broker_rounds.show_titles()
        rows += broker_rounds.run(by_brokers, sizes, releases, rounds, patience_s)
    if target:
        about = {"benchmark": "rebalance", "date": datetime.now(UTC).isoformat(timespec="seconds")}
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
        target.write_text(json.dumps({**about, **machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
