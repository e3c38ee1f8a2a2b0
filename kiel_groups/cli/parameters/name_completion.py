"""Complete names for a shell after TAB; if ZooKeeper fails or is slow, there are no names to complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kiel_groups.admin.cluster_admin import Client

__all__ = ["complete_allocators", "complete_clusters", "complete_groups", "complete_members", "complete_topics"]

_TIMEOUT_S = 1.0


def complete_topics(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the topics with this prefix, if the command line, the environment or the file names a ZooKeeper."""
    from kiel_groups.admin import cluster_admin

    return _from_zookeeper(context, typed, cluster_admin.topics)


def complete_groups(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the groups with this prefix, of all clients; ZooKeeper is found as in ``complete_topics``."""
    from kiel_groups.admin.group_inspection import list_groups

    return _from_zookeeper(context, typed, list_groups)


def complete_members(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the member ids with this prefix in the group that the command line names."""
    from kiel_groups.admin.group_inspection import list_members

    group = str(context.params.get("group") or "")
    return _from_zookeeper(context, typed, lambda client: list_members(client, group)) if group else []


def complete_allocators(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the built-in allocators with this prefix."""
    from kiel_groups.allocators import ALLOCATORS

    return _matching(typed, ALLOCATORS)


def complete_clusters(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return the names of this user's running clusters that have this prefix."""
    from kiel_groups.embedded.clusters.named_clusters import running_clusters

    return _matching(typed, (running.name for running in running_clusters()))


def _from_zookeeper(context: click.Context, typed: str, names: Callable[[Client], list[str]]) -> list[str]:
    hosts = context.params.get("zookeeper") or context.lookup_default("zookeeper") or _from_environment()
    if not isinstance(hosts, str) or not hosts:
        return []
    from kiel_groups.admin import cluster_admin
    from kiel_groups.errors import KielGroupsError

    try:
        with cluster_admin.zookeeper(hosts, timeout_s=_TIMEOUT_S) as client:
            return _matching(typed, names(client))
    except KielGroupsError:
        # The shell discards the error output of a completion.
        return []


def _matching(typed: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(typed)]


def _from_environment() -> str | None:
    import os

    return os.environ.get("KIEL_GROUPS_ZOOKEEPER")
