"""``kiel-groups serve``."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

import click

from kiel_groups.cli.lines import Lines
from kiel_groups.cli.options import ZOOKEEPER_WAIT_S, quiet_option, verbose_option, zookeeper_option
from kiel_groups.cli.statuses import EPILOG

if TYPE_CHECKING:
    from kiel_groups.allocators import Allocator
    from kiel_groups.config import GroupConfig, ZooKeeperConfig
    from kiel_groups.coordination.candidate import GroupCandidate

__all__ = ["serve"]

_SIGNALLED = 128
_MILLISECONDS = click.IntRange(min=0)


@click.command(epilog=EPILOG)
@zookeeper_option
@click.option("--group", required=True, metavar="NAME", help="The group whose partitions are to be shared out.")
@click.option("--allocator", metavar="NAME", help="round_robin, sticky, or a function of yours: MODULE:FUNCTION.")
@click.option(
    "--debounce-ms",
    type=_MILLISECONDS,
    default=100,
    show_default=True,
    metavar="MS",
    help="Plan when nothing has changed for so long …",
)
@click.option(
    "--debounce-bound-ms",
    type=_MILLISECONDS,
    default=1_000,
    show_default=True,
    metavar="MS",
    help="… and so long after the first change at the latest.",
)
@click.option(
    "--initial-delay-ms",
    type=_MILLISECONDS,
    default=300,
    show_default=True,
    metavar="MS",
    help="How long a new leader lets its group gather before it plans.",
)
@click.option(
    "--session-timeout-ms",
    type=int,
    default=10_000,
    show_default=True,
    metavar="MS",
    help="How long after its death the group is without a leader.",
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
    debounce_ms: int,
    debounce_bound_ms: int,
    initial_delay_ms: int,
    session_timeout_ms: int,
    quiet: bool,
    verbose: bool,
) -> int:
    """
    Allocate the partitions of a group without consuming any.

    Takes part in the group's election, and leads when its turn comes: the first to stand leads, so start this before
    the consumers, or twice for a spare one. Ctrl-C resigns, and the next candidate leads at once.
    """
    from kiel_groups.allocators import round_robin
    from kiel_groups.cli.loading import load_allocator
    from kiel_groups.cli.logs import show_logs
    from kiel_groups.config import DebounceConfig, GroupConfig, ZooKeeperConfig

    show_logs(lines, verbose=verbose)
    if not quiet:
        logging.getLogger("kiel_groups.coordination").setLevel(logging.INFO)
    debounce = DebounceConfig(
        quiet_ms=debounce_ms, bound_ms=max(debounce_bound_ms, debounce_ms), initial_delay_ms=initial_delay_ms
    )
    settings = ZooKeeperConfig.parse(
        zookeeper, session_timeout_ms=session_timeout_ms, connect_timeout_ms=round(ZOOKEEPER_WAIT_S * 1000)
    )
    function = load_allocator(allocator, "--allocator") or round_robin
    return asyncio.run(_run(GroupConfig(group=group, debounce=debounce), settings, function))


async def _run(config: GroupConfig, zookeeper: ZooKeeperConfig, allocator: Allocator) -> int:
    """Stand for election until a signal comes; the exit status. Raises what no new session can mend."""
    from kiel_groups.coordination.candidate import GroupCandidate
    from kiel_groups.metrics import Metrics

    loop, status = asyncio.get_running_loop(), 0
    failure: asyncio.Future[None] = loop.create_future()
    candidate = GroupCandidate(config, zookeeper, allocator, Metrics(), failure.set_exception)
    standing = loop.create_task(_stand(candidate, failure))

    def heed(number: int) -> None:
        nonlocal status
        # A second signal does not wait for the end of the first.
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
        status = _SIGNALLED + number
        standing.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heed, number)
    try:
        await standing
    except asyncio.CancelledError:
        if not status:
            raise
    return status


async def _stand(candidate: GroupCandidate, failure: asyncio.Future[None]) -> None:
    try:
        await candidate.start()
        await failure
    finally:
        await candidate.close()
