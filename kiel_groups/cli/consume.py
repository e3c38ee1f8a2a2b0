"""``kiel-groups consume``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kiel_groups.cli.lines import Lines
from kiel_groups.cli.options import ZOOKEEPER_WAIT_S, brokers_option, verbose_option, zookeeper_option
from kiel_groups.cli.statuses import EPILOG

__all__ = ["consume"]


@click.command(epilog=EPILOG)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@brokers_option
@zookeeper_option
@click.option("--group", required=True, metavar="NAME", help="The group to join.")
@click.option("--allocator", metavar="NAME", help="When it leads: round_robin, sticky, or your MODULE:FUNCTION.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="End after so many records.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End when no record has come for so long, since the joining or the last one.",
)
@click.option(
    "--session-timeout-ms",
    type=int,
    default=10_000,
    show_default=True,
    metavar="MS",
    help="How long after its death a member keeps its partitions.",
)
@verbose_option
@click.pass_obj
def consume(
    lines: Lines,
    *,
    topics: tuple[str, ...],
    brokers: str,
    zookeeper: str,
    group: str,
    allocator: str | None,
    most: int | None,
    timeout_s: float | None,
    session_timeout_ms: int,
    verbose: bool,
) -> int:
    """
    Print the values of topics, a line each, as a member of a group.

    Whoever runs this with the same group shares the topics' partitions. A record that was printed is committed; Ctrl-C
    leaves the group at once.
    """
    import asyncio

    from kiel_groups.cli.loading import load_allocator
    from kiel_groups.cli.logs import show_logs
    from kiel_groups.cli.output import standard_output
    from kiel_groups.cli.printing import Printing
    from kiel_groups.clients import GroupedConsumer

    show_logs(lines, verbose=verbose)
    consumer = GroupedConsumer(
        brokers,
        group,
        zookeeper,
        partition_allocator=load_allocator(allocator, "--allocator"),
        session_timeout_ms=session_timeout_ms,
        zk_timeout_ms=round(ZOOKEEPER_WAIT_S * 1000),
    )
    _check_topics(zookeeper, topics)
    return asyncio.run(Printing(consumer, standard_output(), most=most, timeout_s=timeout_s).run(topics))


def _check_topics(zookeeper: str, topics: Sequence[str]) -> None:
    """
    Refuse topics that do not exist, for they are misspelt more often than early.

    ZooKeeper is asked, because a broker may answer the question for a topic by creating it.
    """
    from kiel_groups.config import check_name
    from kiel_groups.coordination import admin
    from kiel_groups.errors import UnknownTopicError

    for topic in topics:
        check_name(topic, "topic")
    with admin.zookeeper(zookeeper, timeout_s=ZOOKEEPER_WAIT_S) as client:
        for topic in topics:
            try:
                admin.partitions_of(client, topic)
            except UnknownTopicError as error:
                raise UnknownTopicError(
                    f"{error}; 'kafka-topics.sh --zookeeper {zookeeper} --list' shows those that do, and with"
                    " --create makes one"
                ) from error
