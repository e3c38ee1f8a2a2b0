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

    from kiel_groups.mirror.directions import TopicReversal


@click.command(epilog=EPILOG)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@mirror_options(needs_target=True)
@seconds_option("--settle", "How long to watch that no producer writes to the source any more.", 5.0)
@change_options
@quiet_option
@click.pass_obj
def reverse(
    lines: Lines,
    /,
    *,
    topics: Sequence[str],
    clusters: MirrorClusters,
    settle_s: float,
    how: ChangeOptions,
    quiet: bool,
) -> int:
    """
    Turn topics round: copy new records of the target back.

    TOPIC is a name on the source. From then on, the mirror copies records that producers write to the target to the
    source, for consumers that have stayed there. It never copies back what it has mirrored.

    First, stop the producers of the source, and let the mirror copy the rest. The command refuses a topic with records
    that are not mirrored yet, or to which a producer still writes. Then start the producers on the target. If the
    command is killed, the topic is stopped, and the same command completes the change.
    """
    import time

    from kiel_groups.errors import KielGroupsError
    from kiel_groups.mirror.connector import open_target
    from kiel_groups.mirror.directions import check_mirrored, continue_forward, plan_reversal, turn_round

    target, brokers, wanted = (
        open_target(clusters.target_config),
        clusters.source_brokers(),
        list(dict.fromkeys(topics)),
    )

    def plan() -> list[TopicReversal]:
        return plan_reversal(target, clusters.name, brokers, wanted)

    plans = plan()
    try:
        for each in plans:
            check_mirrored(each)
    except KielGroupsError:
        # A former call was killed, and records have come since: the mirror has to copy them.
        if not how.dry_run:
            continue_forward(target, [each.target for each in plans])
        raise
    how.show({"topics": [_document(each) for each in plans]}, *(() if quiet else (_table(plans),)))
    waiting = [each for each in plans if not each.is_turned]
    names = some(each.claim.topic for each in waiting)
    if not waiting:
        lines.say("info", "all these topics are turned round already")
    elif how.is_confirmed(f"Turn {names} round? No producer may write to {clusters.source} any more."):
        turn_round(target, waiting, plan, lambda: time.sleep(settle_s))
        if not quiet:
            lines.say(
                "info",
                f"{names}: turned round; records that are written to {clusters.target} from now on are copied to"
                f" {clusters.source}, once the mirror {clusters.name!r} runs, and has looked for changes",
            )
    return DONE


def _document(plan: TopicReversal) -> dict[str, Any]:
    return {
        "topic": plan.claim.topic,
        "target": plan.target,
        "direction": plan.claim.direction,
        "partitions": [
            {"partition": number, "source_end": each.end, "target_start": each.start}
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
    return plain_table(("topic", "on the target", "direction", "partitions", "mirrored"), rows, right=("mirrored",))
