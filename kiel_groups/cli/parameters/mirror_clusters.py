"""Define the options of ``kiel-groups mirror``: the two clusters of a mirror, its name, and its worker group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kiel_groups.cli.parameters.options import FC, SERVER_WAIT_S, checked_zookeeper, security_option
from kiel_groups.cli.parameters.worker_address import warn_if_open
from kiel_groups.errors import ConfigError, NoBrokersError
from kiel_groups.wording import own_command, some

if TYPE_CHECKING:
    from kiel_groups.mirror.mirror_view import MirrorView
    from kiel_groups.mirror.target import TargetCluster

#: How long the target may take to answer a command first, in seconds.
TARGET_WAIT_S = 10.0


class MirrorClusters(NamedTuple):
    """
    The two clusters of a mirror, its name, and its worker group.

    Args:
        source: The servers of the source's ZooKeeper, with its chroot.
        target: The brokers of the target, or "" if the user has not given them.
        name: The name of the mirror, which is the name of its connector.
        group: The group of workers that runs the connector.
        properties_file: The file with more settings of librdkafka for the target, or None.
        properties: The settings in this file.
    """

    source: str
    target: str
    name: str
    group: str
    properties_file: Path | None
    properties: Mapping[str, Any]

    @property
    def target_config(self) -> dict[str, Any]:
        """The settings of librdkafka for the clients of the target."""
        return {"bootstrap.servers": self.target, **self.properties}

    def open_target(self) -> TargetCluster:
        """
        Return the target of the mirror.

        Raises:
            ConfigError: confluent-kafka is not installed, or refuses a setting.
            KielGroupsError: No broker of the target answers within ten seconds.
        """
        from kiel_groups.mirror.settings import open_target

        target = open_target(self.target_config)
        target.partitions(TARGET_WAIT_S)
        return target

    def read_mirror(self) -> MirrorView:
        """
        Return the mirror as ZooKeeper and the logs of the source show it.

        Raises:
            UnknownConnectorError: The worker group has no such mirror.
            CoordinationError: ZooKeeper does not answer, has no such chroot, or denies reading the znodes.
        """
        from kiel_groups.errors import CoordinationError, UnknownConnectorError
        from kiel_groups.mirror.mirror_view import read_mirror

        found = read_mirror(self.source, self.group, self.name, timeout_s=SERVER_WAIT_S, with_new=True)
        if found.connector is None and (closed := found.group.closed):
            raise CoordinationError(f"group {self.group}: an ACL denies reading {some(closed)}")
        if found.connector is None:
            again = own_command("mirror", "start", "--help")
            raise UnknownConnectorError(
                f"there is no mirror {self.name!r} in the worker group {self.group!r} in ZooKeeper at {self.source};"
                f" {again} shows how to start one"
            )
        return found

    def source_brokers(self) -> str:
        """
        Return the addresses of the source's brokers, as ZooKeeper has them: ``host:port``, separated by commas.

        Raises:
            NoZooKeeperError: No server answers.
            ChrootMissingError: The chroot does not exist.
            NoBrokersError: No broker with a listener that this process can use is registered.
        """
        from kiel_groups.ops.actions.topics import ZooKeeperTopics

        brokers = ZooKeeperTopics(self.source, timeout_s=SERVER_WAIT_S).brokers()
        if not (addresses := [broker.address for broker in brokers if broker.address is not None]):
            doctor = own_command("doctor", "--zookeeper", self.source)
            raise NoBrokersError(
                f"no broker of the source is registered in ZooKeeper at {self.source}; {doctor} shows why,"
                " and the chroot must be that of the brokers' zookeeper.connect"
            )
        return ",".join(addresses)


def _checked_brokers(context: click.Context, parameter: click.Parameter, hosts: str) -> str:
    """Return the value of ``--to``, or raise BadParameter for a wrong address."""
    from kiel_groups.config import KAFKA_PORT, parse_hosts

    try:
        if hosts:
            parse_hosts(hosts, KAFKA_PORT, "")
    except ConfigError as error:
        raise click.BadParameter(str(error).removeprefix(": "), context, parameter, param_hint="'--to'") from None
    return hosts


def _read_properties(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> tuple[Path | None, Mapping[str, Any]]:
    """
    Return the file of ``--target-properties``, and the settings in it. Raise BadParameter if the file cannot be used.
    """
    from kiel_groups.mirror.settings import parse_properties

    if path is None or context.resilient_parsing:
        return None, {}
    try:
        text = path.read_text(encoding="utf-8")
        warn_if_open(path, lambda warning: context.obj.say("warning", warning))
        found = parse_properties(text)
        if brokers := found.keys() & {"bootstrap.servers", "metadata.broker.list"}:
            raise ConfigError(f"has {brokers.pop()}; expected other settings, because --to names the brokers")
        return path, found
    except (OSError, UnicodeDecodeError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}"
    except ConfigError as error:
        why = str(error)
    raise click.BadParameter(f"{path} {why}", context, parameter)


_source_option = click.option(
    "--from",
    "source",
    required=True,
    callback=checked_zookeeper,
    envvar="KIEL_GROUPS_MIRROR_FROM",
    show_envvar=True,
    metavar="HOST:PORT",
    help="ZooKeeper of the source, which also names its brokers. A chroot follows the last server: z:2181/x.",
)


def _target_option(*, required: bool) -> Callable[[FC], FC]:
    aside = "" if required else "  [default: the target of the mirror]"
    # With any default, even None, click would not miss the option.
    default: dict[str, Any] = {} if required else {"default": ""}
    return click.option(
        "--to",
        "target",
        required=required,
        callback=_checked_brokers,
        envvar="KIEL_GROUPS_MIRROR_TO",
        show_envvar=True,
        metavar="HOST:PORT",
        help=f"One or more brokers of the target, separated by commas.{aside}",
        **default,
    )


_name_option = click.option(
    "--name", default="mirror", show_default=True, metavar="NAME", help="The name of the mirror's connector."
)

_group_option = click.option(
    "--group",
    metavar="NAME",
    help="The group of workers that runs the mirror, in the source's ZooKeeper.  [default: the same as --name]",
)

_properties_option = click.option(
    "--target-properties",
    "properties",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_read_properties,
    metavar="FILE",
    help="More settings of librdkafka for the target, as security.protocol=SSL: one on each line, or a JSON object."
    " They are not stored: each process of the mirror reads its FILE.",
)


def mirror_options(*, needs_target: bool) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """
    Return a decorator that adds ``--from``, ``--to``, ``--name``, ``--group`` and ``--target-properties`` to a command.

    The command's function gets ``MirrorClusters`` as ``clusters``.

    Args:
        needs_target: Whether the user must give ``--to``.
    """

    def with_options(command: Callable[..., int]) -> Callable[..., int]:
        @_source_option
        @_target_option(required=needs_target)
        @_name_option
        @_group_option
        @_properties_option
        @security_option
        @click.pass_context
        @wraps(command)
        def with_clusters(
            context: click.Context,
            /,
            *,
            source: str,
            target: str,
            name: str,
            group: str | None,
            properties: tuple[Path | None, Mapping[str, Any]],
            **options: Any,
        ) -> int:
            from kiel_groups.config import check_name

            check_name(name, "--name")
            clusters = MirrorClusters(source, target, name, check_name(group or name, "--group"), *properties)
            result: int = context.invoke(command, clusters=clusters, **options)
            return result

        return with_clusters

    return with_options
