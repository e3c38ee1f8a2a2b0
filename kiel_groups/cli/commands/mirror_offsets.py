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
    interval_s: float | None,
    store: str | None,
    as_json: bool,
    dry_run: bool,
) -> int:
    """
    Move the offsets of groups to the target of a mirror.

    A GROUP is one in the source's ZooKeeper, of Java's consumers or of ours. The checkpoints of the mirror translate
    its offsets. On the target, the group of the same name misses no record, and reads some again: 'read again' is the
    most it can be.

    The group must have no members on the target. An offset there that is further already stays. So stop the members on
    the source, move the offsets, and start the consumers on the target. With --every, the offsets follow the members on
    the source, so that few records are read again also after a sudden move.

    The exit status is 1 if an offset could not be moved. The last column says why.
    """
    from kiel_groups.config import check_name

    if dry_run and interval_s is not None:
        raise click.UsageError("--dry-run does not go with --every.", click.get_current_context())
    names = [check_name(group, "GROUP") for group in dict.fromkeys(groups)]
    target = clusters.open_target()
    from kiel_groups.mirror.group_offsets import GroupMover, check_empty

    mover = GroupMover(clusters.source, target, clusters.name, store=store, timeout_s=SERVER_WAIT_S)
    command = _Command(lines, clusters.target, mover, as_json=as_json, dry_run=dry_run)
    translations = mover.translate(names)
    for each in translations:
        check_empty(each)
    for each in translations:
        command.move(each)
    if interval_s is not None:
        return command.follow(names, interval_s)
    return DONE if all(each.offsets and not each.left_out for each in translations) else FAILED


class _Command:
    """
    Moves the offsets of groups, and shows them.

    Args:
        lines: Prints messages.
        place: The addresses of the target.
        mover: Translates and writes offsets.
        as_json: Whether to print JSON in place of tables.
        dry_run: Whether to write nothing.
    """

    def __init__(self, lines: Lines, place: str, mover: GroupMover, *, as_json: bool, dry_run: bool) -> None:
        self._lines = lines
        self._place = place
        self._mover = mover
        self._as_json = as_json
        self._dry_run = dry_run
        #: The offsets of each group that were left out last.
        self._left_out: dict[str, Any] = {}

    def move(self, translation: GroupTranslation) -> None:
        """Write the offsets of a group, and show them if something has changed since the last call."""
        from kiel_groups.cli.terminal.rendering import show, show_json

        if not self._dry_run:
            self._mover.write(translation)
        group, left_out = translation.group, [each._replace(again=0, note="") for each in translation.left_out]
        if translation.changes or self._left_out.get(group) != left_out:
            if self._as_json:
                show_json(_document(translation, dry_run=self._dry_run), on_one_line=True)
            elif translation.offsets and group not in self._left_out:
                show(*_report(translation))
            self._summarize(translation)
        self._left_out[group] = left_out

    def follow(self, groups: Sequence[str], interval_s: float) -> int:
        """
        Move the offsets of groups repeatedly, until a signal or until each group has members on the target.

        Return the exit status.
        """
        from kiel_groups.cli.terminal.rendering import clock
        from kiel_groups.cli.terminal.termination import BlockingTermination
        from kiel_groups.errors import KielGroupsError
        from kiel_groups.wording import some

        ending, left = BlockingTermination(), list(groups)
        while left and not ending.asked.wait(interval_s):
            try:
                for each in self._mover.translate(left):
                    if each.target_members:
                        left.remove(each.group)
                        members = some(each.target_members)
                        text = f"group {each.group} has members on the target, {members}: its offsets are no longer"
                        self._lines.say("info", f"{text} moved")
                    else:
                        self.move(each)
            except KielGroupsError as error:
                self._lines.say("error", f"{clock()}, trying again: {error}")
        return ending.status or DONE

    def _summarize(self, translation: GroupTranslation) -> None:
        """Print the line about the outcome for a group."""
        group, place = translation.group, self._place
        if translation.members:
            live = counted(translation.members, "live member")
            self._lines.say("info", f"group {group} has {live} on the source, so its offsets there still move")
        if not translation.offsets:
            self._lines.say("error", f"group {group} has no offsets on the source")
            return
        done = "to set" if self._dry_run else "set"
        facts = [f"{counted(len(translation.changes), 'offset')} {done} at {place}"]
        if not translation.changes and not translation.left_out:
            facts = [f"its offsets are at {place} already"]
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
        rows = [
            (
                str(each.partition.partition),
                *("-" if number is None else f"{number:,}" for number in (each.source, each.target, each.again)),
                _remark(translation, each),
            )
            for each in listed
        ]
        yield plain_table(columns, rows, right=columns[:4])


def _document(translation: GroupTranslation, *, dry_run: bool) -> dict[str, Any]:
    changes = {} if dry_run else translation.changes
    return {
        "group": translation.group,
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
                "set": each.copy in changes,
                "remark": _remark(translation, each) or None,
            }
            for each in translation.offsets
        ],
    }
