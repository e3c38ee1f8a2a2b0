"""``kiel-groups workers run|describe``."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kiel_groups.cli.parameters.cluster_address import complete_groups
from kiel_groups.cli.parameters.options import (
    SERVER_WAIT_S,
    brokers_option,
    coordination_option,
    debounce_options,
    group_argument,
    json_option,
    log_format_option,
    metrics_port_option,
    port_option,
    quiet_option,
    session_timeout_option,
    verbose_option,
    zookeeper_option,
)
from kiel_groups.cli.parameters.worker_address import token_file_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.errors import CoordinationError, UnknownGroupError
from kiel_groups.wording import some

if TYPE_CHECKING:
    from kiel_groups.config import DebounceConfig
    from kiel_groups.workers.execution.worker_settings import WorkerSettings

_DEFAULT_PORT = 8083

#: How often to look for workers while none is alive, in seconds.
_POLL_S = 0.2


@click.group(epilog=EPILOG)
def workers() -> None:
    """Run and show workers, which share connectors and their tasks as consumers share partitions."""


@workers.command(epilog=EPILOG)
@click.option(
    "--group",
    required=True,
    metavar="NAME",
    help="The group of workers: all of them share the same connectors.",
    shell_complete=complete_groups,
)
@zookeeper_option
@brokers_option
@coordination_option(
    "What coordinates the workers: ZooKeeper, or the brokers (Kafka 0.9 or later). Their connectors are in ZooKeeper in"
    " both cases."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address of the REST interface. Any other than a loopback address needs --token-file; 0.0.0.0 means"
    " all addresses of this machine.",
)
@port_option("--port", "The port of the REST interface; 0 lets the system choose.", _DEFAULT_PORT)
@click.option(
    "--advertised-host",
    default="",
    metavar="HOST",
    help="How the other workers reach this one.  [default: --host, or the name of this machine]",
)
@token_file_option("A file with the token that clients and other workers must give: 16 characters or more.")
@click.option(
    "--plugin-classes",
    metavar="NAMES",
    help="The connectors that may be created: 'installed' for all entry points of installed packages, names of entry"
    " points, and modules, separated by commas.  [default: installed; on a loopback address, any class]",
)
@click.option(
    "--secrets-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The directory of files whose texts settings of connectors name: ${file:NAME:KEY} is a value of a file in the"
    " format of Java's properties, ${file:NAME} a whole file. All connectors may use all of it.",
)
@click.option(
    "--secrets-env",
    default="",
    metavar="NAMES",
    help="The environment variables that settings of connectors may name, as ${env:NAME}: names, separated by commas."
    " In a name, * matches any characters, and ? matches one.",
)
@click.option(
    "--allocator",
    default="round_robin",
    show_default=True,
    metavar="NAME",
    help="How the work is divided: round_robin, or sticky, which moves little.",
)
@session_timeout_option("How long the group keeps the work of this worker if it dies.")
@debounce_options
@metrics_port_option
@quiet_option
@log_format_option
@verbose_option
@click.pass_obj
def run(
    lines: Lines,
    /,
    *,
    group: str,
    zookeeper: str,
    brokers: str,
    coordination: str,
    host: str,
    port: int,
    advertised_host: str,
    token: str,
    plugin_classes: str | None,
    secrets_dir: Path | None,
    secrets_env: str,
    allocator: str,
    session_timeout_ms: int,
    debounce: DebounceConfig,
    metrics_port: int | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """
    Run a worker until Ctrl-C or SIGTERM.

    The worker runs its part of the connectors and tasks of its group. It serves a REST interface, which is that of
    Kafka Connect. At the first signal, the worker releases its work, so that other workers continue it; a second signal
    kills it. If a connector or a task does not stop, the worker ends without it, with status 1.
    """
    from kiel_groups.cli.terminal.messages import show_logs
    from kiel_groups.rest.settings import RestSettings
    from kiel_groups.workers.execution.worker_settings import WorkerSettings
    from kiel_groups.workers.plugins.secret_references import SecretReferences

    settings = WorkerSettings(
        group=group,
        zookeeper=zookeeper,
        brokers=brokers,
        coordination="brokers" if coordination == "brokers" else "zookeeper",
        allocator=allocator,
        rest=RestSettings(host=host, port=port, advertised_host=advertised_host, token=token),
        plugin_classes=None if plugin_classes is None else _names(plugin_classes),
        secrets=SecretReferences(secrets_dir, _names(secrets_env)),
        session_timeout_ms=session_timeout_ms,
        debounce_quiet_ms=debounce.quiet_ms,
        debounce_bound_ms=debounce.bound_ms,
        debounce_initial_delay_ms=debounce.initial_delay_ms,
    )
    show_logs(lines, verbose=verbose, timed=True)
    if not quiet:
        logging.getLogger("kiel_groups.workers").setLevel(logging.INFO)
    return asyncio.run(_run(settings, metrics_port))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


async def _run(settings: WorkerSettings, metrics_port: int | None) -> int:
    """Run the worker until a signal arrives, and return the exit status. Raise the error with which the worker ends."""
    from kiel_groups.cli.terminal.termination import Termination, end_stuck_worker
    from kiel_groups.rest.metrics_text import serving_metrics
    from kiel_groups.workers.execution.worker import Worker

    ending = Termination()
    worker = Worker(settings, on_stuck=end_stuck_worker)
    try:
        async with serving_metrics(worker.metrics, metrics_port):
            # A worker that is cancelled gives its work back first.
            await worker.run()
    except asyncio.CancelledError:
        if ending.status is None:
            raise
    return ending.status or DONE


@workers.command(epilog=EPILOG)
@group_argument
@zookeeper_option
@click.option("--check", is_flag=True, help="Exit with 1 if there is a problem, for monitoring.")
@json_option
@click.pass_obj
def describe(lines: Lines, *, group: str, zookeeper: str, check: bool, as_json: bool) -> int:
    """
    Show the workers of a group, and the work of each one.

    This reads ZooKeeper, where workers keep their state whatever coordinates them. If no worker is alive, it looks for
    five seconds: one that was just started may not have registered yet.
    """
    from kiel_groups.cli.terminal.messages import warn_of_hidden
    from kiel_groups.cli.terminal.rendering import show_result
    from kiel_groups.cli.terminal.worker_report import worker_group_document, worker_group_problems, worker_group_report
    from kiel_groups.ops.zookeeper_client import zookeeper as session
    from kiel_groups.workers.stores.worker_group_view import describe_workers

    with session(zookeeper, timeout_s=SERVER_WAIT_S) as client:
        found = describe_workers(client, group)
        until_s = time.monotonic() + SERVER_WAIT_S
        if not (found.workers or found.closed):
            lines.say("info", f"no worker of group {group} is alive; looking again for {SERVER_WAIT_S:g} s")
        while not (found.workers or found.closed) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
            found = describe_workers(client, group)
    is_empty = not (found.workers or found.configuration.connectors or found.configuration.offset)
    if is_empty and found.closed:
        raise CoordinationError(f"group {group}: an ACL denies reading {some(found.closed)}")
    if is_empty:
        raise UnknownGroupError(f"there are no workers of group {group!r} in ZooKeeper at {zookeeper}")
    warn_of_hidden(lines, group, found.closed)
    show_result(worker_group_document(group, found), *worker_group_report(group, found), as_json=as_json)
    return FAILED if check and (found.closed or any(worker_group_problems(found))) else DONE
