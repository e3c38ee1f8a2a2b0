"""Complete names for a shell after TAB; if a server fails or is slow, there are no names to complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kiel_groups.ops.cluster_admin import Client

__all__ = ["complete_allocators", "complete_clusters", "complete_groups", "complete_members", "complete_topics"]

_TIMEOUT_S = 1.0

_BROKERS = "brokers"


def complete_topics(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """
    Return the topics with this prefix: those that brokers know, if these coordinate groups, or those in ZooKeeper.

    The command line, the environment or the file names the servers.
    """
    if _setting(context, "coordination") == _BROKERS:
        from kiel_groups.ops.broker_reader import topic_names

        return _from_brokers(context, typed, topic_names)
    from kiel_groups.ops import cluster_admin

    return _from_zookeeper(context, typed, cluster_admin.topics)


def complete_groups(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the groups with this prefix, of all clients; the servers are found as in ``complete_topics``."""
    if _setting(context, "coordination") == _BROKERS:
        from kiel_groups.ops.coordinated_loader import names_of_coordinated_groups

        return _from_brokers(context, typed, names_of_coordinated_groups)
    from kiel_groups.ops.group_inspection import list_groups

    return _from_zookeeper(context, typed, list_groups)


def complete_members(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the member ids with this prefix in the group that the command line names."""
    from kiel_groups.ops.group_inspection import list_members

    group = str(context.params.get("group") or "")
    return _from_zookeeper(context, typed, lambda client: list_members(client, group)) if group else []


def complete_allocators(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the built-in allocators with this prefix; with those of Java, if brokers coordinate groups."""
    if _setting(context, "coordination") == _BROKERS:
        from kiel_groups.allocators.assignors import ASSIGNORS

        return _matching(typed, ASSIGNORS)
    from kiel_groups.allocators import ALLOCATORS

    return _matching(typed, ALLOCATORS)


def complete_clusters(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the names of this user's running clusters that have this prefix."""
    from kiel_groups.embedded.named_clusters import running_clusters

    return _matching(typed, (running.name for running in running_clusters()))


def _from_zookeeper(context: click.Context, typed: str, names: Callable[[Client], list[str]]) -> list[str]:
    hosts = _setting(context, "zookeeper")
    if not hosts:
        return []
    from kiel_groups.errors import KielGroupsError
    from kiel_groups.ops import cluster_admin

    try:
        with cluster_admin.zookeeper(hosts, timeout_s=_TIMEOUT_S) as client:
            return _matching(typed, names(client))
    except KielGroupsError:
        # The shell discards the error output of a completion.
        return []


def _from_brokers(context: click.Context, typed: str, names: Callable[[str, float], list[str]]) -> list[str]:
    hosts = _setting(context, "brokers")
    if not hosts:
        return []
    from kiel_groups.errors import KielGroupsError

    try:
        return _matching(typed, names(hosts, _TIMEOUT_S))
    except KielGroupsError:
        return []


def _matching(typed: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(typed)]


def _setting(context: click.Context, name: str) -> str:
    """Return a setting of all commands from the command line, the file or the environment, or ""."""
    given = context.params.get(name)
    if name == "coordination" and given != _BROKERS:
        given = None  # The default: a command may lack the option, or not have parsed it yet.
    value = given or context.lookup_default(name) or os.environ.get(f"KIEL_GROUPS_{name.upper()}")
    return value if isinstance(value, str) else ""
