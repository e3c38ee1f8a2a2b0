"""``kiel-groups cluster up|down|restart|status|env``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.parameters.cluster_address import complete_clusters, complete_servers
from kiel_groups.cli.parameters.options import json_option, port_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, INTERRUPTED, Lines
from kiel_groups.errors import ConfigError, ServerError

if TYPE_CHECKING:
    from rich.table import Table

    from kiel_groups.embedded.named_clusters import RunningCluster, RunningServer


_DEFAULT = "default"
_name_option = click.option(
    "--name",
    default=_DEFAULT,
    show_default=True,
    metavar="NAME",
    help="Name of the cluster.",
    shell_complete=complete_clusters,
)


@click.group(epilog=EPILOG)
def cluster() -> None:
    """Run a real Kafka, with ZooKeeper up to 2.8, on this machine, for experiments."""


@cluster.command(epilog=EPILOG)
@_name_option
@click.option("--detach", is_flag=True, help="Return when the cluster is ready; 'cluster down' stops it.")
@click.option(
    "--kafka-version",
    "kafka",
    metavar="VERSION",
    help="0.8.0, 0.8.1.1, 0.8.2.2 (the default), 0.9.0.1, 0.10.2.2, 1.1.1, 2.8.2, or 3.9.1 or 4.1.0, which need no "
    "ZooKeeper. Groups of kiel-groups cannot use 4.1.0, which is a target of mirrors.",
)
@click.option("--zookeeper-version", "zookeeper", metavar="VERSION", help="3.9.5 (the default) or 3.4.6.")
@click.option("--broker-count", "brokers", type=click.IntRange(1, 20), default=1, metavar="N", help="How many brokers.")
@click.option(
    "--zookeeper-count",
    "zookeepers",
    type=click.Choice(["1", "3", "5", "7"]),
    default="1",
    metavar="N",
    callback=lambda context, parameter, value: int(value),
    help="How many ZooKeeper servers: 1, 3, 5 or 7.",
)
@port_option("--broker-port", "Port of the first broker; others get the following ports.")
@port_option("--zookeeper-port", "Port of the first ZooKeeper server; others get the following ports.")
@click.option("--chroot", default="", metavar="/PATH", help="ZooKeeper path that the cluster uses as its root.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep the data there for the next start; otherwise it is deleted when the cluster stops.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Make ZooKeeper, or brokers that need none, ask clients who they are. 'cluster env' names the file with which "
    "they answer (docs/security.rst).",
)
@json_option
@click.pass_obj
def up(
    lines: Lines,
    /,
    *,
    detach: bool,
    kafka: str | None,
    zookeeper: str | None,
    data: Path | None,
    as_json: bool,
    **rest: Any,
) -> int:
    """
    Start a cluster, and run it until Ctrl-C or, with --detach, until 'cluster down'.

    The cluster listens on 127.0.0.1, on free ports unless you choose them, and does not create topics on demand.
    """
    import asyncio

    from rich.console import Console

    from kiel_groups.config import SECURITY_VARIABLE
    from kiel_groups.embedded import named_clusters
    from kiel_groups.embedded.download_display import fetch_broker, fetch_servers
    from kiel_groups.embedded.releases import DEFAULT_KAFKA, kafka_release

    # Another cluster's file has no credentials for these servers.
    os.environ.pop(SECURITY_VARIABLE, None)
    kafka = kafka or DEFAULT_KAFKA
    console = Console(stderr=True)
    if kafka_release(kafka).uses_zookeeper:
        zookeeper = fetch_servers(console, kafka, zookeeper)
    else:
        _refuse_zookeeper(kafka, zookeeper, rest)
        fetch_broker(console, kafka)
    settings = named_clusters.ClusterSettings(
        kafka=kafka, zookeeper=zookeeper, data=str(data.absolute()) if data is not None else None, **rest
    )
    if detach:
        _show_ready(named_clusters.detach(settings), as_json=as_json, detached=True)
        return DONE
    try:
        asyncio.run(
            named_clusters.supervise(
                settings,
                lambda running: _show_ready(running, as_json=as_json, detached=False),
                lambda text: lines.say("error", text),
            )
        )
    except asyncio.CancelledError:
        return INTERRUPTED
    return DONE


@cluster.command(epilog=EPILOG)
@_name_option
def down(*, name: str) -> int:
    """Stop a cluster, and wait until it has stopped."""
    from kiel_groups.embedded.named_clusters import stop_cluster

    stop_cluster(_running(name))
    return DONE


@cluster.command(epilog=EPILOG)
@click.argument("server", metavar="SERVER", shell_complete=complete_servers)
@_name_option
@json_option
@click.pass_obj
def restart(lines: Lines, /, *, server: str, name: str, as_json: bool) -> int:
    """
    Restart a server on its data and port, or start it if it has ended.

    The command returns when the server serves. 'cluster status' shows the servers, such as kafka-0.
    """
    from kiel_groups.cli.terminal.rendering import show_json
    from kiel_groups.embedded.named_clusters import restart_server

    restarted = restart_server(_running(name), server)
    if as_json:
        show_json(_server_as_json(restarted))
    lines.say("info", f"{server} serves at {restarted.address} again, as process {restarted.pid}")
    return DONE


@cluster.command(epilog=EPILOG)
@_name_option
def env(*, name: str) -> int:
    """Print the addresses as settings for a shell: eval "$(kiel-groups cluster env)"."""
    from kiel_groups.cli.terminal.rendering import show

    show(*_exports(_running(name)))
    return DONE


@cluster.command(epilog=EPILOG)
@click.option("--name", metavar="NAME", help="Show this cluster only.", shell_complete=complete_clusters)
@json_option
@click.pass_obj
def status(lines: Lines, /, *, name: str | None, as_json: bool) -> int:
    """Show the running clusters. The command exits with 1 if one of their servers has ended."""
    from kiel_groups.cli.terminal.rendering import show, show_json
    from kiel_groups.embedded.named_clusters import running_clusters

    found = running_clusters() if name is None else [_running(name)]
    if as_json:
        show_json([_as_json(running) for running in found])
    elif found:
        for running in found:
            show(_title(running), _table(running))
    else:
        show("no cluster runs; 'kiel-groups cluster up' starts one")
    ended = [(running, server) for running in found for server in running.servers if not server.is_alive]
    for running, server in ended:
        lines.say("error", f"{server.name} of cluster {running.name!r} has ended; its log is {server.log}")
    return FAILED if ended else DONE


def _refuse_zookeeper(kafka: str, zookeeper: str | None, options: Mapping[str, Any]) -> None:
    """Raise ConfigError if an option about ZooKeeper is given, because this version of Kafka runs without ZooKeeper."""
    given = {
        "--zookeeper-version": zookeeper,
        "--zookeeper-count": options["zookeepers"] > 1,
        "--zookeeper-port": options["zookeeper_port"],
        "--chroot": options["chroot"],
    }
    unfit = [option for option, value in given.items() if value]
    if unfit:
        raise ConfigError(
            f"{', '.join(unfit)}: Kafka {kafka} runs without ZooKeeper; leave {'it' if len(unfit) == 1 else 'them'} out"
        )


def _running(name: str) -> RunningCluster:
    """Return the running cluster of this name. Raise ServerError with the names of running clusters if none has it."""
    from kiel_groups.embedded.named_clusters import find_cluster, running_clusters

    found = find_cluster(name)
    if found is None:
        others = ", ".join(repr(running.name) for running in running_clusters())
        raise ServerError(
            f"no cluster {name!r} runs; "
            + (f"there is {others} (--name)" if others else "'kiel-groups cluster up' starts one")
        )
    return found


def _show_ready(running: RunningCluster, *, as_json: bool, detached: bool) -> None:
    from kiel_groups.cli.terminal.rendering import show, show_json

    if as_json:
        show_json(_as_json(running))
        return
    named = "" if running.name == _DEFAULT else f" --name {running.name}"
    stop = f"'kiel-groups cluster down{named}'" if detached else "Ctrl-C"
    data = f"; its data stays in {running.data}" if running.data else " and deletes its data"
    on = f" on ZooKeeper {running.zookeeper_version}" if running.zookeeper else ""
    show(
        f"cluster {running.name!r} is ready: Kafka {running.kafka_version}{on}\n",
        *(f"  {line}" for line in _exports(running)),
        f"\n{stop} stops it{data}.",
    )


def _exports(running: RunningCluster) -> list[str]:
    from shlex import quote

    from kiel_groups.config import SECURITY_VARIABLE

    values = {
        "KIEL_GROUPS_BROKERS": ",".join(running.brokers),
        "KIEL_GROUPS_ZOOKEEPER": running.zookeeper,
        "KIEL_GROUPS_COORDINATION": None if running.zookeeper else "brokers",
        SECURITY_VARIABLE: running.security,
    }
    # The shell must not keep the settings of an earlier cluster.
    return [f"unset {name}" if value is None else f"export {name}={quote(value)}" for name, value in values.items()]


def _as_json(running: RunningCluster) -> dict[str, Any]:
    return running.to_json() | {"servers": [_server_as_json(server) for server in running.servers]}


def _server_as_json(server: RunningServer) -> dict[str, Any]:
    return {**asdict(server), "alive": server.is_alive}


def _title(running: RunningCluster) -> str:
    from datetime import datetime

    since = datetime.fromtimestamp(running.started_at_ms / 1000).astimezone()
    data = f", data in {running.data}" if running.data else ""
    return f"{running.name}: since {since:%Y-%m-%d %H:%M:%S}, process {running.pid}{data}"


def _table(running: RunningCluster) -> Table:
    from kiel_groups.cli.terminal.rendering import plain_table

    rows = [
        (
            server.name,
            running.kafka_version if server.name.startswith("kafka") else running.zookeeper_version or "",
            server.address,
            str(server.pid),
            "runs" if server.is_alive else "has ended",
        )
        for server in running.servers
    ]
    return plain_table(("server", "release", "address", "pid", "state"), rows, right=("pid",))
