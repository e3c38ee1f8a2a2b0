"""``kiel-groups mirror reverse``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.parameters.mirror_clusters import MirrorClusters, mirror_options
from kiel_groups.cli.parameters.options import quiet_option, seconds_option
from kiel_groups.cli.terminal.changes import ChangeOptions, change_options
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines
from kiel_groups.wording import counted, some

if TYPE_CHECKING:
    from rich.table import Table

    from kiel_groups.mirror.reversal import TopicReversal


@click.command(epilog=EPILOG)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@mirror_options(needs_target=True)
@click.option("--forward", is_flag=True, help="Turn topics that are copied back: copy them to the target again.")
@seconds_option("--settle", "How long to watch that no producer writes any more.", 5.0)
@change_options
@quiet_option
@click.pass_obj
def reverse(
    lines: Lines,
    /,
    *,
    topics: Sequence[str],
    clusters: MirrorClusters,
    forward: bool,
    settle_s: float,
    how: ChangeOptions,
    quiet: bool,
) -> int:
    """
    Turn topics round: copy new records of the target back.

    TOPIC is a name on the source. From then on, the mirror copies records that producers write to the target to the
    source, for consumers that have stayed there. It never copies back what it has mirrored. With --forward, it copies
    new records of the source to the target again, and none that it has copied back.

    First, stop the producers of the side that is copied, and let the mirror copy the rest. The command refuses a topic
    with records that are not copied yet, or to which a producer still writes. Then start the producers on the other
    side. If the command is killed, the topic is stopped, and the same command completes the change.
    """
    import time

    from kiel_groups.errors import KielGroupsError
    from kiel_groups.mirror.reversal import check_copied, continue_copying, plan_reversal, turn_round
    from kiel_groups.mirror.settings import open_target
    from kiel_groups.mirror.values import BACK, FORWARD

    target, brokers, name = open_target(clusters.target_config), clusters.source_brokers(), clusters.name
    direction, wanted = FORWARD if forward else BACK, list(dict.fromkeys(topics))
    sides = (clusters.target, clusters.source) if forward else (clusters.source, clusters.target)

    def plan() -> list[TopicReversal]:
        return plan_reversal(target, clusters.read_mirror(), brokers, wanted, direction)

    plans = plan()
    try:
        for each in plans:
            check_copied(each, name)
    except KielGroupsError:
        # A former call was killed, and records have come since: the mirror has to copy them.
        if not how.dry_run:
            continue_copying(target, [each.target for each in plans], direction)
        raise
    how.show({"topics": [_document(each) for each in plans]}, *(() if quiet else (_table(plans),)))
    waiting = [each for each in plans if not each.is_turned]
    names = some(each.claim.topic for each in waiting)
    if not waiting:
        lines.say("info", f"all these topics are turned {'forward' if forward else 'round'} already")
        return DONE
    if forward or not clusters.read_mirror().is_exactly_once:
        lines.say(
            "warning",
            f"the mirror writes to {sides[1]} at least once: if one of its processes hangs, end it first; it may write"
            " records again when it continues, and these would be copied as new ones",
        )
    _warn_of_others(lines, waiting)
    if how.is_confirmed(f"Turn {names} {'forward' if forward else 'round'}? No producer may write to {sides[0]}."):
        turn_round(target, name, waiting, plan, lambda: time.sleep(settle_s))
        if not quiet:
            lines.say(
                "info",
                f"{names}: turned {'forward' if forward else 'round'}; records that are written to {sides[1]} from now"
                f" on are copied to {sides[0]}, once the mirror {name!r} runs, and has looked for changes",
            )
    return DONE


def _warn_of_others(lines: Lines, plans: Sequence[TopicReversal]) -> None:
    """Print a warning if the source has records that the mirror will never copy."""
    others = [item for plan in plans for item in plan.others.items()]
    if others:
        counts = some(f"{counted(count, 'record')} of {partition}" for partition, count in others)
        lines.say(
            "warning",
            f"at its end, the source has records that are not from the target: {counts}; a producer still writes there,"
            " and the mirror does not copy these records",
        )


def _document(plan: TopicReversal) -> dict[str, Any]:
    from kiel_groups.model import TopicPartition

    return {
        "topic": plan.claim.topic,
        "target": plan.target,
        "direction": plan.claim.direction,
        "partitions": [
            {
                "partition": number,
                "source_end": each.end,
                "left": each.left,
                "start": each.start,
                "others": plan.others.get(TopicPartition(plan.claim.topic, number), 0),
            }
            for number, each in enumerate(plan.partitions)
        ],
    }


def _table(plans: Sequence[TopicReversal]) -> Table:
    from kiel_groups.cli.terminal.rendering import plain_table

    rows = [
        (
            plan.claim.topic,
            plan.target,
            plan.claim.direction,
            counted(plan.partitions, "partition"),
            f"{sum(plan.ends):,}",
        )
        for plan in plans
    ]
    return plain_table(("topic", "on the target", "direction", "partitions", "source end"), rows, right=("source end",))
