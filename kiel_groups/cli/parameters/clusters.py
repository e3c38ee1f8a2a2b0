"""The clusters of a service: one by options, or several by a file in TOML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from kiel_groups.cli.parameters.cluster_address import complete_groups
from kiel_groups.cli.parameters.options import (
    SERVER_WAIT_S,
    address_options,
    given_address,
    refuse_given,
    source_of,
)
from kiel_groups.cli.parameters.worker_address import read_token, token_file_option
from kiel_groups.errors import ConfigError
from kiel_groups.ops.actions.cluster_address import BROKERS, ZOOKEEPER, ClusterAddress
from kiel_groups.toml_files import check_keys, read_toml
from kiel_groups.wording import counted

#: The keys in the table of a cluster. The first two are its address.
_KEYS: Final = ("zookeeper", "brokers", "groups", "worker-zookeeper", "worker-token-file")

#: The options for a single cluster, by the names of their parameters.
_OF_ONE: Final = (
    "coordination",
    "zookeeper",
    "brokers",
    "cluster_name",
    "groups",
    "worker_zookeeper",
    "worker_token",
)


class ServiceCluster(NamedTuple):
    """
    The address of a cluster of a service, the groups to lead, and the token of the workers, or "" if they need none.
    """

    address: ClusterAddress
    groups: tuple[str, ...] = ()
    worker_token: str = ""


def clusters_options(command: Callable[..., int]) -> Callable[..., int]:
    """
    Add the options that name the clusters of a service: options for a single cluster, and ``--clusters`` for several.

    The command's function gets the ``ServiceCluster`` of each cluster, by its name, as ``clusters``.
    """

    @click.option(
        "--clusters",
        "file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="A TOML file with the clusters, in place of --zookeeper, --brokers and --group: a table for each, with"
        f" the keys {', '.join(_KEYS)}.",
    )
    @address_options
    @click.option(
        "--cluster-name",
        default="default",
        show_default=True,
        metavar="NAME",
        help="The name of the cluster in URLs and metrics.",
    )
    @click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="NAME",
        help="A group to lead. Give it several times for several groups; without it, the service only shows groups.",
        shell_complete=complete_groups,
    )
    @click.option(
        "--worker-zookeeper",
        metavar="HOST:PORT",
        help="With --coordination brokers: the ZooKeeper in which the cluster's workers register their addresses.",
    )
    @token_file_option(
        "A file with the token of the cluster's workers, if they ask for one: requests about connectors are forwarded"
        " to them.",
        "worker-token-file",
    )
    @click.pass_context
    @wraps(command)
    def with_clusters(
        context: click.Context,
        /,
        *,
        file: Path | None,
        coordination: str,
        zookeeper: str | None,
        brokers: str | None,
        cluster_name: str,
        groups: tuple[str, ...],
        worker_zookeeper: str | None,
        worker_token: str,
        **options: Any,
    ) -> int:
        from kiel_groups.config import check_name

        if file is not None:
            parameter = next(each for each in context.command.params if each.name == "file")
            source = source_of(context, parameter)
            aside = f", which is set in {source}" if source else ""
            refuse_given(context, _OF_ONE, f"does not go with '--clusters'{aside}: the file has a key for it")
            clusters = read_clusters(file, lambda text: context.obj.say("warning", text))
        else:
            address = given_address(context, coordination, zookeeper, brokers)
            if address.is_of_brokers and groups:
                raise click.UsageError(f"--group {groups[0]}: in a group of brokers, a member allocates.")
            check_name(cluster_name, "--cluster-name")
            address = _with_workers("--worker-zookeeper", address, worker_zookeeper)
            clusters = {cluster_name: ServiceCluster(address, tuple(dict.fromkeys(groups)), worker_token)}
        result: int = context.invoke(command, clusters=clusters, **options)
        return result

    return with_clusters


def read_clusters(path: Path, warn: Callable[[str], object]) -> dict[str, ServiceCluster]:
    """
    Return the clusters that a file names.

    Args:
        path: The file. The paths of other files in it are relative to its folder.
        warn: Called with a warning if other users can read the token of workers.

    Raises:
        ConfigError: The file cannot be read, or has a mistake. The text names the file, the cluster and the key.
    """
    tables = read_toml(path, f"--clusters: {path}")
    if not tables:
        raise ConfigError(f"--clusters: {path} has no cluster; expected a table for each, such as [prod]")
    clusters: dict[str, ServiceCluster] = {}
    for name, table in tables.items():
        place = f"--clusters: {path}: [{name:.100}]"
        cluster = _cluster(path, place, name, table, warn)
        for other, known in clusters.items():
            if known.address[:2] == cluster.address[:2]:
                raise ConfigError(
                    f"{place}: {cluster.address.hosts} is the address of [{other}], too; expected another"
                )
        clusters[name] = cluster
    return clusters


def _cluster(path: Path, place: str, name: str, table: object, warn: Callable[[str], object]) -> ServiceCluster:
    """Return the cluster of one table. ``place`` names the file and the table in errors."""
    from kiel_groups.config import check_name

    if not isinstance(table, Mapping):
        raise ConfigError(f"--clusters: {path}: {name}: {table!r:.100} given; expected a table, such as [prod]")
    check_name(name, place)
    check_keys(table, _KEYS, place)
    address = _with_workers(f"{place} worker-zookeeper", _address(place, table), table.get("worker-zookeeper"))
    file = table.get("worker-token-file")
    if file is not None and not isinstance(file, str):
        raise ConfigError(f"{place} worker-token-file: {file!r:.100} given; expected the path of a file")
    try:
        token = "" if file is None else read_token(path.parent / file, warn)
    except ConfigError as error:
        raise ConfigError(f"{place} worker-token-file: {error}") from error
    return ServiceCluster(address, _groups(place, table.get("groups", []), address), token)


def _with_workers(place: str, address: ClusterAddress, zookeeper: Any) -> ClusterAddress:
    """Add the ZooKeeper of the workers to an address. ``place`` names the option or the key in errors."""
    from kiel_groups.config import ZooKeeperConfig, text_of

    if zookeeper is None:
        return address
    if not address.is_of_brokers:
        raise ConfigError(f"{place}: goes with brokers; workers are found in ZooKeeper at {address.hosts}")
    try:
        hosts = text_of(zookeeper, "").strip()
        ZooKeeperConfig.parse(hosts)
    except ConfigError as error:
        raise _named(place, error) from error
    return address._replace(worker_zookeeper=hosts)


def _named(place: str, error: ConfigError) -> ConfigError:
    return ConfigError(f"{place}: {str(error).removeprefix('zk_hosts').removeprefix(': ')}")


def _address(place: str, table: Mapping[str, Any]) -> ClusterAddress:
    from kiel_groups.config import KAFKA_PORT, ZooKeeperConfig, parse_hosts, text_of

    given = [key for key in _KEYS[:2] if key in table]
    if len(given) != 1:
        found = f"{counted(given, 'address', 'addresses')} given" if given else "no address given"
        raise ConfigError(f"{place}: {found}; expected either 'zookeeper' or 'brokers'")
    (key,) = given
    try:
        hosts = text_of(table[key], "").strip()
        if key == "zookeeper":
            ZooKeeperConfig.parse(hosts)
        else:
            parse_hosts(hosts, KAFKA_PORT, "")
    except ConfigError as error:
        raise _named(f"{place} {key}", error) from error
    return ClusterAddress(ZOOKEEPER if key == "zookeeper" else BROKERS, hosts, SERVER_WAIT_S)


def _groups(place: str, groups: object, address: ClusterAddress) -> tuple[str, ...]:
    from kiel_groups.config import check_name

    place = f"{place} groups"
    if not isinstance(groups, list):
        raise ConfigError(f"{place}: {groups!r:.100} given; expected a list of names of groups to lead")
    if groups and address.is_of_brokers:
        raise ConfigError(
            f"{place}: brokers coordinate the groups of this cluster, so a member allocates; expected none"
        )
    for group in groups:
        check_name(group, place)
        if groups.count(group) > 1:
            raise ConfigError(f"{place}: {group!r} is listed twice; expected each group once")
    return tuple(groups)
