"""The options of what coordinates groups, and where: ``--coordination``, ``--zookeeper`` and ``--brokers``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import click

from kiel_groups.cli.parameters.option_sources import source_of
from kiel_groups.cli.parameters.shared_options import (
    BROKERS,
    ZOOKEEPER,
    coordination_option,
    optional_brokers_option,
    optional_zookeeper_option,
)

__all__ = ["ClusterAddress", "cluster_options", "in_zookeeper_only", "refuse_given", "refuse_zookeeper"]

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)


class ClusterAddress(NamedTuple):
    """What coordinates the groups of a cluster, and the hosts to ask: those of ZooKeeper, or some brokers."""

    coordination: str
    hosts: str

    @property
    def is_of_brokers(self) -> bool:
        return self.coordination == BROKERS

    @property
    def place(self) -> str:
        """The cluster as texts for users name it."""
        return f"at brokers {self.hosts}" if self.is_of_brokers else f"in ZooKeeper at {self.hosts}"


def cluster_options(command: Callable[..., int]) -> Callable[..., int]:
    """
    Add the three options to a command, whose function gets a ``ClusterAddress`` as ``cluster``.

    ZooKeeper's hosts are needed unless brokers coordinate the groups; then brokers are.
    """

    @coordination_option("What coordinates the groups: ZooKeeper, or the brokers (Kafka 0.9 or later).")
    @optional_zookeeper_option
    @optional_brokers_option
    @click.pass_context
    @wraps(command)
    def with_cluster(
        context: click.Context, /, *, coordination: str, zookeeper: str | None, brokers: str | None, **options: Any
    ) -> int:
        hosts = _brokers(context, brokers) if coordination == BROKERS else _zookeeper(context, zookeeper)
        result: int = context.invoke(command, cluster=ClusterAddress(coordination, hosts), **options)
        return result

    return with_cluster


def in_zookeeper_only(why: str) -> Callable[[FC], FC]:
    """
    Add ``--coordination`` to a command that serves no groups of brokers, to say so.

    Args:
        why: Why it does not, as the end of a sentence.
    """

    def refuse(context: click.Context, parameter: click.Parameter, coordination: str) -> None:
        if coordination == BROKERS and not context.resilient_parsing:
            source = source_of(context, parameter)
            aside = f" ({BROKERS!r} is set in {source}; '--coordination zookeeper' overrides it)" if source else ""
            raise click.UsageError(
                f"'{context.command_path.partition(' ')[2]}' is for groups that ZooKeeper coordinates: {why}{aside}.",
                context,
            )

    return coordination_option(f"'{ZOOKEEPER}' only: {why}.", is_eager=True, expose_value=False, callback=refuse)


def refuse_given(context: click.Context, names: Sequence[str], why: str) -> None:
    """Raise UsageError for options on the command line that would have no effect; ``why`` ends its message."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and given is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"'{max(parameter.opts, key=len)}' {why}.", context)


def refuse_zookeeper(context: click.Context) -> None:
    """Raise UsageError if the command line names a ZooKeeper, although brokers coordinate the groups."""
    source = source_of(context, _parameter(context, "coordination"))
    aside = f", which is set in {source}" if source else ""
    refuse_given(context, ("zookeeper",), f"does not go with '--coordination brokers'{aside}: no ZooKeeper is asked")


def _brokers(context: click.Context, brokers: str | None) -> str:
    refuse_zookeeper(context)
    if brokers is None:
        raise click.MissingParameter("Brokers coordinate the groups.", context, _parameter(context, "brokers"))
    return brokers


def _zookeeper(context: click.Context, zookeeper: str | None) -> str:
    why = "needs '--coordination brokers'; without it, the groups are those in ZooKeeper, which '--zookeeper' names"
    refuse_given(context, ("brokers",), why)
    if zookeeper is None:
        why = "If brokers coordinate the groups, give '--coordination brokers' and '--brokers'."
        raise click.MissingParameter(why, context, _parameter(context, "zookeeper"))
    return zookeeper


def _parameter(context: click.Context, name: str) -> click.Parameter:
    return next(each for each in context.command.params if each.name == name)
