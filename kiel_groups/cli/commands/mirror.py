"""``kiel-groups mirror``: copy topics to another cluster."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kiel_groups.cli.commands.mirror_offsets import offsets
from kiel_groups.cli.parameters.mirror_clusters import MirrorClusters, mirror_options
from kiel_groups.cli.parameters.options import json_option, quiet_option, verbose_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines


@click.group(epilog=EPILOG)
def mirror() -> None:
    """Copy topics of any Kafka from 0.8 on to a cluster of 0.11 or later, and show how far the copies are."""


@mirror.command(epilog=EPILOG)
@mirror_options(needs_target=True)
@click.option("--topics", multiple=True, metavar="NAMES", help="The topics to mirror.")
@quiet_option
@verbose_option
@click.pass_obj
def start(lines: Lines, /, *, clusters: MirrorClusters, topics: Sequence[str], quiet: bool, verbose: bool) -> int:
    """Mirror topics until Ctrl-C or SIGTERM."""
    return DONE


@mirror.command(epilog=EPILOG)
@mirror_options(needs_target=False)
@json_option
@click.pass_obj
def status(lines: Lines, /, *, clusters: MirrorClusters, as_json: bool) -> int:
    """Show how far a mirror is: its positions, its lag, its checkpoints, and its tasks."""
    return DONE


mirror.add_command(offsets)
