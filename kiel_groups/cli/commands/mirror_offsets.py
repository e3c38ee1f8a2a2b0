"""``kiel-groups mirror offsets``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.commands.offsets import store_option
from kiel_groups.cli.parameters.mirror_clusters import MirrorClusters, mirror_options
from kiel_groups.cli.parameters.options import SERVER_WAIT_S, Seconds, json_lines_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kiel_groups.mirror.checkpoints import TranslatedOffset
    from kiel_groups.mirror.group_offsets import GroupMover, GroupTranslation


@click.command(epilog=EPILOG)
@click.argument("groups", metavar="GROUP...", nargs=-1, required=True)
@mirror_options(needs_target=True)
@click.option("--as", "target_group", metavar="NAME", help="The name of the group on the target.  [default: GROUP]")
@click.option(
    "--every",
    "interval_s",
    type=Seconds(least=0.1, is_optional=False),
    metavar="SECONDS",
    help="Repeat until Ctrl-C, or until each group has members on the target. Only changes are written and shown.",
)
@store_option
@json_lines_option
@click.option("--dry-run", is_flag=True, help="Show the offsets, and write none.")
@click.pass_obj
def offsets(
    lines: Lines,
    /,
    *,
    groups: tuple[str, ...],
    clusters: MirrorClusters,
    target_group: str | None,
    interval_s: float | None,
    store: str | None,
    as_json: bool,
    dry_run: bool,
) -> int:
    """
    Move the offsets of groups to the target of a mirror.

    A GROUP is one in the source's ZooKeeper, of Java's consumers or of ours. The checkpoints of the mirror translate
    its offsets. On the target, the group misses no record, and reads some again: 'read again' is the most it can be.

    The group must have no members on the target. An offset there that is further already stays. So stop the members on
    the source, move the offsets, and start the consumers on the target. With --every, the offsets follow the members on
    the source, so that few records are read again also after a sudden move.

    The exit status is 1 if an offset could not be moved. The last column says why.
    """
    from kiel_groups.config import check_name

    context = click.get_current_context()
    if target_group is not None and len(set(groups)) > 1:
        raise click.UsageError("--as names one group on the target; give one GROUP.", context)
    if dry_run and interval_s is not None:
        raise click.UsageError("--dry-run does not go with --every.", context)
    names = {group: check_name(target_group or group, "--as" if target_group else "group") for group in groups}
    target = clusters.open_target()
    from kiel_groups.mirror.group_offsets import GroupMover

    command = _Command(lines, clusters, store, as_json=as_json, dry_run=dry_run)
    mover = GroupMover(clusters.source, target, clusters.name, timeout_s=SERVER_WAIT_S)
    if interval_s is None:
        return command.move(mover, names)
    return command.follow(mover, names, interval_s)


class _Command:
    """
    Moves the offsets of groups once or repeatedly, and shows them.

    Args:
        lines: Prints messages.
        clusters: The clusters of the mirror.
        store: The store of groups of other clients, if the user has given it.
        as_json: Whether to print JSON in place of tables.
        dry_run: Whether to write nothing.
    """

    def __init__(
        self, lines: Lines, clusters: MirrorClusters, store: str | None, *, as_json: bool, dry_run: bool
    ) -> None:
        self._lines = lines
        self._clusters = clusters
        self._store = store
        self._as_json = as_json
        self._dry_run = dry_run
        #: What was shown last of each group.
        self._shown: dict[str, Any] = {}

    def move(self, mover: GroupMover, names: dict[str, str]) -> int:
        """Move the offsets of groups once, and return the exit status."""
        from kiel_groups.mirror.group_offsets import check_empty

        translations = mover.translate(names, store=self._store)
        for each in translations:
            check_empty(each)
        for each in translations:
            self._show(each)
            if not self._dry_run:
                mover.write(each)
            self._summarize(each)
        is_moved = all(each.offsets and not each.left_out for each in translations)
        return DONE if is_moved else FAILED

    def follow(self, mover: GroupMover, names: dict[str, str], interval_s: float) -> int:
        """
        Move the offsets of groups repeatedly, until a signal or until each group has members on the target.

        Return the exit status.
        """
        from kiel_groups.cli.terminal.rendering import clock
        from kiel_groups.cli.terminal.termination import BlockingTermination
        from kiel_groups.errors import KielGroupsError

        ending, left, is_first = BlockingTermination(), dict(names), True
        while left and ending.status is None:
            try:
                translations = mover.translate(left, store=self._store)
                for each in translations:
                    if each.target_members:
                        self._end(each, is_first=is_first)
                        del left[each.group]
                        continue
                    self._follow(mover, each)
                is_first = False
            except KielGroupsError as error:
                if is_first:
                    raise
                self._lines.say("error", f"{clock()}, trying again: {error}")
            ending.asked.wait(interval_s if left else 0)
        return ending.status or DONE

    def _end(self, translation: GroupTranslation, *, is_first: bool) -> None:
        """Report that a group has members on the target. Raise KielGroupsError if none of its offsets was written."""
        from kiel_groups.mirror.group_offsets import check_empty
        from kiel_groups.wording import some

        if is_first:
            check_empty(translation)
        self._lines.say(
            "info",
            f"group {translation.target_group} has members on the target, {some(translation.target_members)}: its"
            " offsets are no longer moved",
        )

    def _follow(self, mover: GroupMover, translation: GroupTranslation) -> None:
        """Show the offsets of a group if something has changed since the last call, and write them."""
        mover.write(translation)
        state = translation.changes, [each._replace(again=0, note="") for each in translation.left_out]
        if translation.changes or self._shown.get(translation.group, ({}, None))[1] != state[1]:
            if translation.group not in self._shown or self._as_json:
                self._show(translation)
            self._summarize(translation)
        self._shown[translation.group] = state

    def _show(self, translation: GroupTranslation) -> None:
        from kiel_groups.cli.terminal.rendering import show, show_json

        if self._as_json:
            show_json(_document(translation, dry_run=self._dry_run), on_one_line=True)
        elif translation.offsets:
            show(*_report(translation))

    def _summarize(self, translation: GroupTranslation) -> None:
        """Print the line about the outcome for a group."""
        group, place = translation.group, self._clusters.target
        if translation.members:
            live = counted(translation.members, "live member")
            self._lines.say("info", f"group {group} has {live} on the source, so its offsets there still move")
        if not translation.offsets:
            self._lines.say("error", f"group {group} has no offsets on the source")
            return
        renamed = "" if translation.target_group == group else f" as {translation.target_group}"
        done = "to set" if self._dry_run else "set"
        facts = [f"{counted(len(translation.changes), 'offset')} {done} at {place}{renamed}"]
        if not translation.changes and not translation.left_out:
            facts = [f"its offsets are at {place} already{renamed}"]
        facts += [f"at most {counted(translation.again, 'record')} to read again"] if translation.again else []
        left_out = len(translation.left_out)
        facts += [f"{counted(left_out, 'offset is', 'offsets are')} left out"] if left_out else []
        self._lines.say("warning" if left_out else "info", f"group {group}: {'; '.join(facts)}")


def _remark(translation: GroupTranslation, offset: TranslatedOffset) -> str:
    if offset.refusal:
        return f"left out: {offset.refusal}"
    if translation.is_ahead(offset):
        return f"left out: at {translation.present(offset)} already"
    return offset.note


def _report(translation: GroupTranslation) -> Iterator[RenderableType]:
    """Yield a heading for each topic of a group, and a table of its offsets."""
    from rich.text import Text

    from kiel_groups.cli.terminal.rendering import plain_table

    columns = ("partition", "source", "target", "read again", "")
    for (topic, target), found in groupby(translation.offsets, lambda each: (each.partition.topic, each.target_topic)):
        listed = list(found)
        yield Text(f"group {translation.group}, topic {topic}{f' → {target}' if target else ''}", style="bold")
        if any(each.target is not None and each.again is None for each in listed):
            yield Text("keys are hashed anew: the two offsets of a line are not of the same records")
        rows = [_row(translation, each) for each in listed]
        yield plain_table(columns, rows, right=columns[:4])


def _row(translation: GroupTranslation, offset: TranslatedOffset) -> Sequence[str]:
    numbers = (offset.source, offset.target, offset.again)
    return [
        str(offset.partition.partition),
        *("-" if number is None else f"{number:,}" for number in numbers),
        _remark(translation, offset),
    ]


def _document(translation: GroupTranslation, *, dry_run: bool) -> dict[str, Any]:
    changes = {} if dry_run else translation.changes
    return {
        "group": translation.group,
        "target_group": translation.target_group,
        "members": list(translation.members),
        "dry_run": dry_run,
        "offsets": [
            {
                **each.partition._asdict(),
                "target_topic": each.target_topic or None,
                "source": each.source,
                "before": translation.present(each),
                "target": each.target,
                "again": each.again,
                "set": (each.target_topic, each.partition.partition) in changes,
                "remark": _remark(translation, each) or None,
            }
            for each in translation.offsets
        ],
    }
