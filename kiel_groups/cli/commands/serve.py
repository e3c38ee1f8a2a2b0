"""``kiel-groups serve``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kiel_groups.cli.parameters.cluster_address import complete_allocators, complete_groups
from kiel_groups.cli.parameters.options import (
    SERVER_WAIT_S,
    Seconds,
    cluster_options,
    debounce_options,
    log_format_option,
    quiet_option,
    secret_file_option,
    token_file_option,
    verbose_option,
)
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines
from kiel_groups.cli.terminal.termination import Termination
from kiel_groups.errors import KielGroupsError
from kiel_groups.ops.actions.cluster_address import ClusterAddress

if TYPE_CHECKING:
    from kiel_groups.allocators import Allocator
    from kiel_groups.config import DebounceConfig, GroupConfig, ZooKeeperConfig
    from kiel_groups.service.service import Service


_MILLISECONDS = click.IntRange(min=0)

#: Beside the port of Kafka Connect, 8083.
_DEFAULT_PORT = 8084

#: How long the cleanup at the end waits for ZooKeeper, in seconds.
_CLEANUP_TIMEOUT_S = 1.0


@click.command(epilog=EPILOG)
@cluster_options
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME",
    help="A group to lead. Give it several times for several groups; without it, the service only shows groups.",
    shell_complete=complete_groups,
)
@click.option(
    "--allocator",
    metavar="NAME",
    help="round_robin, sticky, weighted, rack_aware, range, an installed one, or your MODULE:FUNCTION."
    "  [default: round_robin]",
    shell_complete=complete_allocators,
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address to serve on. Any other than a loopback address needs --token-file.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_DEFAULT_PORT,
    show_default=True,
    metavar="PORT",
    help="The port to serve on; 0 lets the system choose.",
)
@token_file_option(
    "A file with the token that requests must give. On a loopback address, only changes need it; without a token, there"
    " are none."
)
@click.option(
    "--cluster-name",
    default="default",
    show_default=True,
    metavar="NAME",
    help="The name of the cluster in URLs and metrics.",
)
@click.option(
    "--interval",
    "interval_s",
    type=Seconds(least=1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How often all groups are read. A group that ZooKeeper coordinates is also read when it changes.",
)
@click.option(
    "--restore-folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    metavar="FOLDER",
    help="Where changes write what they lose, for 'offsets import'.  [default: the current directory]",
)
@click.option(
    "--webhook",
    metavar="URL",
    help="Post a problem of a group there when it has lasted for 30 seconds, and when it is gone.",
)
@secret_file_option("--webhook-secret-file", "webhook_key", "A file with the key that signs what is posted.")
@debounce_options
@click.option(
    "--session-timeout-ms",
    type=int,
    default=10_000,
    show_default=True,
    metavar="MS",
    help="How long a group has no leader if this process dies.",
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
@log_format_option
@verbose_option
@click.pass_obj
def serve(
    lines: Lines,
    /,
    *,
    cluster: ClusterAddress,
    groups: tuple[str, ...],
    allocator: str | None,
    host: str,
    port: int,
    token: str,
    cluster_name: str,
    interval_s: float,
    restore_folder: Path,
    webhook: str | None,
    webhook_key: str,
    debounce: DebounceConfig,
    session_timeout_ms: int,
    static_grace_ms: int,
    quiet: bool,
    verbose: bool,
) -> int:
    """
    Serve all groups of a cluster over HTTP, and lead the groups that are named.

    To lead means to allocate the partitions of a group without consuming any. The service takes part in the election of
    each group, and the first candidate leads: start it before the consumers, or twice to have a spare. Ctrl-C resigns,
    and the next candidate leads at once.
    """
    from kiel_groups.allocators import round_robin
    from kiel_groups.cli.parameters.function_loading import load_allocator
    from kiel_groups.cli.terminal.messages import show_logs
    from kiel_groups.config import GroupConfig, ZooKeeperConfig, check_name
    from kiel_groups.rest.settings import RestSettings, is_loopback
    from kiel_groups.service.notifications import Webhook
    from kiel_groups.service.service import Service

    if webhook_key and webhook is None:
        raise click.UsageError("--webhook-secret-file goes with --webhook.")
    if cluster.is_of_brokers and groups:
        raise click.UsageError(f"--group {groups[0]}: in a group of brokers, a member allocates.")
    check_name(cluster_name, "--cluster-name")
    settings = RestSettings(host=host, port=port, token=token, open_reads=is_loopback(host))
    function = load_allocator(allocator, "--allocator") or round_robin
    configs = [
        GroupConfig(group=group, debounce=debounce, static_grace_ms=static_grace_ms) for group in dict.fromkeys(groups)
    ]
    show_logs(lines, verbose=verbose, timed=True)
    if not quiet:
        for name in ("kiel_groups.members", "kiel_groups.zookeeper", "kiel_groups.service"):
            logging.getLogger(name).setLevel(logging.INFO)
        for group in groups:
            _report_group(lines, cluster.hosts, group)
    zookeeper = ZooKeeperConfig.parse(
        cluster.hosts, session_timeout_ms=session_timeout_ms, connect_timeout_ms=round(SERVER_WAIT_S * 1000)
    )
    posting = None if webhook is None else Webhook(webhook, webhook_key)
    clusters = {cluster_name: cluster}
    service = partial(
        Service, settings, clusters, interval_s=interval_s, webhook=posting, restore_folder=restore_folder.absolute()
    )
    status = asyncio.run(_run(service, configs, zookeeper, function))
    for group in groups:
        _clean_up(cluster.hosts, group)
    return status


def _report_group(lines: Lines, zookeeper: str, group: str) -> None:
    """Print a message if the group does not exist yet, or if its config overrides options of this command."""
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
    """
    Remove the znodes of a group that no member has joined. Ignore errors.

    Otherwise, the command ``groups`` would list the group for ever.
    """
    from kiel_groups.ops.actions.groups import remove_empty_group
    from kiel_groups.ops.zookeeper_client import zookeeper as session

    # Ctrl-C must not wait for a dead server; an empty znode does no harm.
    with suppress(KielGroupsError), session(zookeeper, timeout_s=_CLEANUP_TIMEOUT_S) as client:
        remove_empty_group(client, group)


async def _run(
    make_service: Callable[[], Service],
    configs: Sequence[GroupConfig],
    zookeeper: ZooKeeperConfig,
    allocator: Allocator,
) -> int:
    """
    Serve all groups, and lead the named groups, until a signal arrives. Return the exit status.

    Raises:
        BaseException: A candidate for the lead of a group has failed permanently, so that a new session has no use.
    """
    from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
    from kiel_groups.metrics import Metrics
    from kiel_groups.zookeeper.runtime import Runtime
    from kiel_groups.zookeeper.tasks import ProcessContext

    ending = Termination()
    failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(error: BaseException) -> None:
        if not failure.done():
            failure.set_exception(error)

    service = make_service()
    candidates = []
    try:
        service.start()
        for config in configs:
            process = ProcessContext(config, zookeeper, Metrics(), Runtime())
            candidates.append(AllocatorProcess(process, allocator, fail))
        await asyncio.gather(*(candidate.start() for candidate in candidates))
        await failure
    except asyncio.CancelledError:
        if ending.status is None:
            raise
    finally:
        await asyncio.gather(*(candidate.close() for candidate in candidates))
        await service.close()
    return ending.status or DONE
