"""Names that a shell offers after TAB; it never fails, and never keeps anybody waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kiel_groups.admin.cluster_admin import Client

__all__ = ["complete_allocators", "complete_clusters", "complete_groups", "complete_members", "complete_topics"]

_PATIENCE_S = 1.0


def complete_topics(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Topics that begin so, where the line, the environment or the file says which ZooKeeper to ask."""
    from kiel_groups.admin import cluster_admin

    return _asked(context, typed, cluster_admin.topics)


def complete_groups(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Groups that begin so, of every kind; asked as for topics."""
    from kiel_groups.admin.group_inspection import list_groups

    return _asked(context, typed, list_groups)


def complete_members(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Members of the group that the line names, by their ids."""
    from kiel_groups.admin.group_inspection import list_members

    group = str(context.params.get("group") or "")
    return _asked(context, typed, lambda client: list_members(client, group)) if group else []


def complete_allocators(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Allocators that have a name; a function of the user's is not to be guessed."""
    from kiel_groups.allocators import ALLOCATORS

    return _beginning(typed, ALLOCATORS)


def complete_clusters(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Clusters of this user that run."""
    from kiel_groups.embedded.clusters.named_clusters import running_clusters

    return _beginning(typed, (running.name for running in running_clusters()))


def _asked(context: click.Context, typed: str, names: Callable[[Client], list[str]]) -> list[str]:
    hosts = context.params.get("zookeeper") or context.lookup_default("zookeeper") or _from_environment()
    if not isinstance(hosts, str) or not hosts:
        return []
    from kiel_groups.admin import cluster_admin
    from kiel_groups.errors import KielGroupsError

    try:
        with cluster_admin.zookeeper(hosts, timeout_s=_PATIENCE_S) as client:
            return _beginning(typed, names(client))
    except KielGroupsError:
        # There is nobody to tell: a shell throws away what completion says.
        return []


def _beginning(typed: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(typed)]


def _from_environment() -> str | None:
    import os

    return os.environ.get("KIEL_GROUPS_ZOOKEEPER")
