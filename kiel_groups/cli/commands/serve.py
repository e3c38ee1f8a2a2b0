"""``kiel-groups serve``."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from kiel_groups.cli.parameters.cluster_address import complete_allocators, complete_groups
from kiel_groups.cli.parameters.options import (
    SERVER_WAIT_S,
    debounce_options,
    in_zookeeper_only,
    quiet_option,
    verbose_option,
)
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines
from kiel_groups.cli.terminal.termination import Termination
from kiel_groups.errors import KielGroupsError

if TYPE_CHECKING:
    from kiel_groups.allocators import Allocator
    from kiel_groups.config import DebounceConfig, GroupConfig, ZooKeeperConfig

__all__ = ["serve"]

_MILLISECONDS = click.IntRange(min=0)

#: How long the cleanup at the end waits for ZooKeeper, in seconds.
_CLEANUP_TIMEOUT_S = 1.0


@click.command(epilog=EPILOG)
@in_zookeeper_only("in a group of brokers, a member allocates")
@click.option(
    "--group",
    required=True,
    metavar="NAME",
    help="The group whose partitions to allocate.",
    shell_complete=complete_groups,
)
@click.option(
    "--allocator",
    metavar="NAME",
    help="round_robin, sticky, weighted, rack_aware, range, an installed one, or your MODULE:FUNCTION."
    "  [default: round_robin]",
    shell_complete=complete_allocators,
)
@debounce_options
@click.option(
    "--session-timeout-ms",
    type=int,
    default=10_000,
    show_default=True,
    metavar="MS",
    help="How long the group has no leader if this process dies.",
)
@click.option(
    "--static-grace-ms",
    type=_MILLISECONDS,
    default=60_000,
    show_default=True,
    metavar="MS",
    help="How long to reserve the partitions of a static member that is gone.",
)
@quiet_option
@verbose_option
@click.pass_obj
def serve(
    lines: Lines,
    *,
    zookeeper: str,
    group: str,
    allocator: str | None,
    debounce: DebounceConfig,
    session_timeout_ms: int,
    static_grace_ms: int,
    quiet: bool,
    verbose: bool,
) -> int:
    """
    Allocate the partitions of a group without consuming any.

    The process takes part in the election of the group, and makes the plans while it leads. The first candidate leads:
    start this process before the consumers, or two of it to have a spare. At Ctrl-C, it resigns, and the next candidate
    leads at once.
    """
    from kiel_groups.allocators import round_robin
    from kiel_groups.cli.parameters.function_loading import load_allocator
    from kiel_groups.cli.terminal.messages import show_logs
    from kiel_groups.config import GroupConfig, ZooKeeperConfig

    show_logs(lines, verbose=verbose, timed=True)
    if not quiet:
        for name in ("kiel_groups.members", "kiel_groups.zookeeper"):
            logging.getLogger(name).setLevel(logging.INFO)
    settings = ZooKeeperConfig.parse(
        zookeeper, session_timeout_ms=session_timeout_ms, connect_timeout_ms=round(SERVER_WAIT_S * 1000)
    )
    function = load_allocator(allocator, "--allocator") or round_robin
    config = GroupConfig(group=group, debounce=debounce, static_grace_ms=static_grace_ms)
    if not quiet:
        _report_group(lines, zookeeper, group)
    status = asyncio.run(_run(config, settings, function))
    _clean_up(zookeeper, group)
    return status


def _report_group(lines: Lines, zookeeper: str, group: str) -> None:
    """Report that the group does not exist yet, or that its config overrides options."""
    from kiel_groups.group.znodes.layout import GroupLayout
    from kiel_groups.ops.zookeeper_reader import ZooKeeperGroups

    view, similar = ZooKeeperGroups(zookeeper, timeout_s=SERVER_WAIT_S).look_up(group)
    if view is None:
        # New names are often misspelt.
        meant = f"; did you mean {similar!r}?" if similar else ""
        lines.say("info", f"there is no group {group!r} yet; its first member creates it{meant}")
    elif view.dynamic_config is not None and (given := view.dynamic_config.overrides):
        # The leader logs what is wrong with a config that it refuses, and which settings apply until it is corrected.
        named = ", ".join(f"{name} {value}" for name, value in given.items())
        lines.say("info", f"{GroupLayout(group).config} sets {named}, which overrides the options given here")


def _clean_up(zookeeper: str, group: str) -> None:
    """Remove the empty znodes of a group that no member joined, because ``groups`` would list that group for ever."""
    from kiel_groups.ops.actions.groups import remove_empty_group
    from kiel_groups.ops.zookeeper_client import zookeeper as session

    # Ctrl-C must not wait for a dead server; an empty znode does no harm.
    with suppress(KielGroupsError), session(zookeeper, timeout_s=_CLEANUP_TIMEOUT_S) as client:
        remove_empty_group(client, group)


async def _run(config: GroupConfig, zookeeper: ZooKeeperConfig, allocator: Allocator) -> int:
    """Run the candidate until a signal arrives. Return the exit status, or raise an error that no new session fixes."""
    from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
    from kiel_groups.metrics import Metrics
    from kiel_groups.zookeeper.runtime import Runtime
    from kiel_groups.zookeeper.tasks import ProcessContext

    ending = Termination()
    failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    process = ProcessContext(config, zookeeper, Metrics(), Runtime())
    candidate = AllocatorProcess(process, allocator, failure.set_exception)
    try:
        await candidate.start()
        await failure
    except asyncio.CancelledError:
        if ending.status is None:
            raise
    finally:
        await candidate.close()
    return ending.status or DONE
