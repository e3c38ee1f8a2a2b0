"""``kiel-groups serve``."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from kiel_groups.allocators import ALLOCATORS
from kiel_groups.cli.parameters.cluster_address import complete_allocators
from kiel_groups.cli.parameters.clusters import ServiceCluster, clusters_options
from kiel_groups.cli.parameters.options import (
    SERVER_WAIT_S,
    Seconds,
    debounce_options,
    log_format_option,
    milliseconds_option,
    port_option,
    quiet_option,
    session_timeout_option,
    verbose_option,
)
from kiel_groups.cli.parameters.worker_address import token_file_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines
from kiel_groups.cli.terminal.termination import Termination
from kiel_groups.errors import KielGroupsError

if TYPE_CHECKING:
    from kiel_groups.allocators import Allocator
    from kiel_groups.config import DebounceConfig, GroupConfig, ZooKeeperConfig
    from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
    from kiel_groups.metrics import Metrics
    from kiel_groups.ops.actions.cluster_address import ClusterAddress
    from kiel_groups.service.service import Service

    #: A function that returns a new candidate for the lead of a group. Its argument is ``on_failure``.
    _MakeCandidate: TypeAlias = Callable[[Callable[[KielGroupsError], None]], AllocatorProcess]


log = logging.getLogger(__name__)


#: Beside the port of Kafka Connect, 8083.
_DEFAULT_PORT = 8084

#: How long the cleanup at the end takes at most, in seconds.
_CLEANUP_TIMEOUT_S = 2.0

#: The pause after which a group of one of several clusters is led again, after an error, in seconds.
_PAUSE_S = 10.0


@click.command(epilog=EPILOG)
@clusters_options
@click.option(
    "--allocator",
    metavar="NAME",
    help=f"{', '.join(ALLOCATORS)}, an installed one, or your MODULE:FUNCTION.  [default: round_robin]",
    shell_complete=complete_allocators,
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address to serve on. Any other than a loopback address needs --token-file.",
)
@port_option("--port", "The port to serve on; 0 lets the system choose.", _DEFAULT_PORT)
@click.option(
    "--advertised-host",
    default="",
    metavar="HOST",
    help="The name under which clients reach the service, such as that of a proxy.  [default: --host]",
)
@token_file_option(
    "A file with the token that requests must give. On a loopback address, only changes need it; without a token, there"
    " are none."
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
@token_file_option("A file with the key that signs what is posted.", "webhook-secret-file")
@debounce_options
@session_timeout_option("How long a group has no leader if this process dies.")
@milliseconds_option("--static-grace-ms", 60_000, "How long to reserve the partitions of a static member that is gone.")
@quiet_option
@log_format_option
@verbose_option
@click.pass_obj
def serve(
    lines: Lines,
    /,
    *,
    clusters: Mapping[str, ServiceCluster],
    allocator: str | None,
    host: str,
    port: int,
    advertised_host: str,
    token: str,
    interval_s: float,
    restore_folder: Path,
    webhook: str | None,
    webhook_secret: str,
    debounce: DebounceConfig,
    session_timeout_ms: int,
    static_grace_ms: int,
    quiet: bool,
    verbose: bool,
) -> int:
    """
    Serve all groups of one or several clusters over HTTP, and lead the groups that are named.

    To lead means to allocate the partitions of a group without consuming any. The service takes part in the election of
    each group, and the first candidate leads: start it before the consumers, or twice to have a spare. Ctrl-C resigns,
    and the next candidate leads at once.
    """
    from kiel_groups.cli.parameters.function_loading import load_allocator
    from kiel_groups.cli.terminal.messages import show_logs
    from kiel_groups.config import GroupConfig, ZooKeeperConfig
    from kiel_groups.metrics import Metrics
    from kiel_groups.rest.settings import RestSettings, is_loopback
    from kiel_groups.service.notifications import Webhook
    from kiel_groups.service.service import Service

    if webhook_secret and webhook is None:
        raise click.UsageError("--webhook-secret-file goes with --webhook.")
    settings = RestSettings(
        host=host, port=port, advertised_host=advertised_host, token=token, open_reads=is_loopback(host)
    )
    function = load_allocator(allocator, "--allocator") or ALLOCATORS["round_robin"]
    leaders = {(name, group): Metrics() for name, cluster in clusters.items() for group in cluster.groups}
    candidates = {
        f"group {group} of cluster {name}": partial(
            _candidate,
            function,
            GroupConfig(group=group, debounce=debounce, static_grace_ms=static_grace_ms),
            ZooKeeperConfig.parse(
                clusters[name].address.hosts,
                session_timeout_ms=session_timeout_ms,
                connect_timeout_ms=round(SERVER_WAIT_S * 1000),
            ),
            metrics,
        )
        for (name, group), metrics in leaders.items()
    }
    show_logs(lines, verbose=verbose, timed=True)
    if not quiet:
        for name in ("kiel_groups.members", "kiel_groups.zookeeper", "kiel_groups.service"):
            logging.getLogger(name).setLevel(logging.INFO)
        _report_groups(lines, clusters)
    service = partial(
        Service,
        settings,
        {name: cluster.address for name, cluster in clusters.items()},
        interval_s=interval_s,
        webhook=None if webhook is None else Webhook(webhook, webhook_secret),
        restore_folder=restore_folder.absolute(),
        leaders=leaders,
        worker_tokens={name: cluster.worker_token for name, cluster in clusters.items()},
        pasteable=_pasteable,
    )
    status = asyncio.run(_run(service, candidates, is_only=len(clusters) == 1))
    _clean_up({cluster.address.hosts: cluster.groups for cluster in clusters.values() if cluster.groups})
    return status


@lru_cache(10_000)
def _pasteable(text: str, address: ClusterAddress) -> str:
    """Return a text of the console whose commands name a cluster, so that an operator can paste them."""
    from kiel_groups.cli.app import pasteable

    if address.is_of_brokers:
        return pasteable(text, ("--coordination", "brokers", "--brokers", address.hosts))
    return pasteable(text, ("--zookeeper", address.hosts))


def _candidate(
    allocator: Allocator,
    config: GroupConfig,
    zookeeper: ZooKeeperConfig,
    metrics: Metrics,
    fail: Callable[[KielGroupsError], None],
) -> AllocatorProcess:
    from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
    from kiel_groups.zookeeper.runtime import Runtime
    from kiel_groups.zookeeper.tasks import ProcessContext

    return AllocatorProcess(ProcessContext(config, zookeeper, metrics, Runtime()), allocator, fail)


def _report_groups(lines: Lines, clusters: Mapping[str, ServiceCluster]) -> None:
    """
    Print a message for each named group that does not exist yet, or whose config overrides options of this command.

    If there are several clusters, do so on threads: one that cannot be reached must not delay the others.

    Raises:
        KielGroupsError: The only cluster cannot be reached. If there are several, the service reports such clusters.
    """

    def report(cluster: ServiceCluster) -> None:
        for group in cluster.groups:
            _report_group(lines, cluster.address.hosts, group)

    def report_reachable(cluster: ServiceCluster) -> None:
        with suppress(KielGroupsError):
            report(cluster)

    for cluster in clusters.values():
        if len(clusters) == 1:
            report(cluster)
        else:
            threading.Thread(target=report_reachable, args=(cluster,), daemon=True).start()


def _report_group(lines: Lines, zookeeper: str, group: str) -> None:
    """Print a message if the group does not exist yet, or if its config overrides options of this command."""
    from kiel_groups.group.znodes.layout import GroupLayout
    from kiel_groups.ops.zookeeper_groups import ZooKeeperGroups

    view, similar = ZooKeeperGroups(zookeeper, timeout_s=SERVER_WAIT_S).look_up(group)
    if view is None:
        # New names are often misspelt.
        meant = f"; did you mean {similar!r}?" if similar else ""
        lines.say("info", f"there is no group {group!r} yet; its first member creates it{meant}")
    elif view.dynamic_config is not None and (given := view.dynamic_config.overrides):
        # The leader logs what is wrong with a config that it refuses, and which settings apply until it is corrected.
        named = ", ".join(f"{name} {value}" for name, value in given.items())
        lines.say("info", f"{GroupLayout(group).config} sets {named}, which overrides the options given here")


def _clean_up(groups: Mapping[str, Iterable[str]]) -> None:
    """
    Remove the znodes of groups that no member has joined, for a limited time. Ignore errors.

    Otherwise, the command ``groups`` would list these groups for ever. ``groups`` has them by their ZooKeeper.
    """
    threads = [threading.Thread(target=_remove_empty, args=each, daemon=True) for each in groups.items()]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + _CLEANUP_TIMEOUT_S
    for thread in threads:
        # Ctrl-C must not wait for dead servers, let alone once for each group; an empty znode does no harm.
        thread.join(max(0.0, deadline_s - time.monotonic()))


def _remove_empty(zookeeper: str, groups: Iterable[str]) -> None:
    from kiel_groups.ops.actions.groups import remove_empty_group
    from kiel_groups.ops.zookeeper_client import zookeeper as session

    with suppress(KielGroupsError), session(zookeeper, timeout_s=_CLEANUP_TIMEOUT_S) as client:
        for group in groups:
            remove_empty_group(client, group)


async def _run(
    make_service: Callable[[], Service],
    candidates: Mapping[str, _MakeCandidate],
    *,
    is_only: bool,
) -> int:
    """
    Serve all groups, and lead the named groups, until a signal arrives. Return the exit status.

    Args:
        make_service: Returns the service.
        candidates: A function for each group to lead, by a name for the log.
        is_only: Whether all groups are in one cluster. Then the error of a candidate ends the service.

    Raises:
        KielGroupsError: The error of a candidate of the only cluster.
    """
    ending = Termination()
    service = make_service()
    # A service without groups to lead waits for this future, which is never done.
    leading: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future()]
    try:
        service.start()
        leading += [asyncio.ensure_future(_lead(name, make, is_only=is_only)) for name, make in candidates.items()]
        failed, _ = await asyncio.wait(leading, return_when=asyncio.FIRST_COMPLETED)
        await failed.pop()
    except asyncio.CancelledError:
        if ending.status is None:
            raise
    finally:
        for each in leading:
            each.cancel()
        await asyncio.gather(*leading, return_exceptions=True)
        await service.close()
    return ending.status or DONE


async def _lead(name: str, make: _MakeCandidate, *, is_only: bool) -> None:
    """
    Take part in the election of a group until the caller cancels this call.

    Args:
        name: The group in log lines.
        make: Returns a new candidate.
        is_only: Whether to raise the error of a candidate. If not, log it, and replace the candidate after a pause.
    """
    logged = ""
    while True:
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fail(error: KielGroupsError, failure: asyncio.Future[None] = failure) -> None:
            if not failure.done():
                failure.set_exception(error)

        candidate = make(fail)
        try:
            await candidate.start()
            await failure
        except KielGroupsError as error:
            if is_only:
                raise
            if (text := str(error)) != logged:
                log.error("%s has no candidate here: %s; trying again every %g s", name, text, _PAUSE_S)
                logged = text
        finally:
            await candidate.close()
        await asyncio.sleep(_PAUSE_S)
