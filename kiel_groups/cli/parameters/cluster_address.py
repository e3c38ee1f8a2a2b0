"""
Complete names of groups, topics, members and clusters when the user presses TAB in a shell.

If a server fails or is slow, no name is completed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import click

from kiel_groups.allocators import ALLOCATORS, installed_allocators
from kiel_groups.errors import KielGroupsError
from kiel_groups.ops.actions.cluster_address import BROKERS, ZOOKEEPER, ClusterAddress

#: How long a completion waits for the answer of a server, in seconds.
_TIMEOUT_S = 1.0


def complete_topics(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """
    Return the topics whose names begin with ``typed``.

    If brokers coordinate the groups, the brokers list the topics, or else ZooKeeper does. The command line, the
    environment or the file of ``--config`` names the servers. Without servers, return no name.
    """
    return _named(context, typed, lambda cluster: cluster.topics().names())


def complete_groups(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the groups of all clients whose names begin with ``typed``, from the servers as ``complete_topics``."""
    return _named(context, typed, lambda cluster: cluster.groups().names())


def complete_members(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the member ids that begin with ``typed``, in the group in ZooKeeper that the command line names."""
    from kiel_groups.ops.zookeeper_client import zookeeper
    from kiel_groups.ops.zookeeper_reader import list_members

    group, hosts = str(context.params.get("group") or ""), _setting(context, ZOOKEEPER)
    if not group or not hosts:
        return []
    try:
        with zookeeper(hosts, timeout_s=_TIMEOUT_S) as client:
            return _matching(typed, list_members(client, group))
    except KielGroupsError:
        return []


def complete_allocators(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """
    Return the names of allocators that begin with ``typed``.

    If brokers coordinate the groups, these are the assignors for groups of brokers, and installed allocators.
    """
    if _setting(context, "coordination") == BROKERS:
        from kiel_groups.allocators.assignors import ASSIGNORS

        return _matching(typed, {**ASSIGNORS, **installed_allocators()})
    return _matching(typed, {**ALLOCATORS, **installed_allocators()})


def complete_clusters(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the names of this user's running clusters that begin with ``typed``."""
    from kiel_groups.embedded.named_clusters import running_clusters

    return _matching(typed, (running.name for running in running_clusters()))


def complete_servers(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the servers whose names begin with ``typed``, of the running cluster that the command line names."""
    from kiel_groups.embedded.named_clusters import find_cluster

    running = find_cluster(str(context.params.get("name") or "default"))
    return _matching(typed, (server.name for server in running.servers) if running is not None else ())


def _named(context: click.Context, typed: str, names: Callable[[ClusterAddress], list[str]]) -> list[str]:
    coordination = _setting(context, "coordination") or ZOOKEEPER
    hosts = _setting(context, coordination)
    if not hosts:
        return []

    try:
        return _matching(typed, names(ClusterAddress(coordination, hosts, _TIMEOUT_S)))
    except KielGroupsError:
        # The shell discards the error output of a completion.
        return []


def _matching(typed: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(typed)]


def _setting(context: click.Context, name: str) -> str:
    """Return the value of a shared setting from the command line, the file or the environment, or "" if not set."""
    given = context.params.get(name)
    if name == "coordination" and given != BROKERS:
        given = None  # The default: a command may lack the option, or not have parsed it yet.
    value = given or context.lookup_default(name) or os.environ.get(f"KIEL_GROUPS_{name.upper()}")
    return value if isinstance(value, str) else ""
