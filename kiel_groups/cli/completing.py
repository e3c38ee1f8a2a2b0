"""Names that a shell offers after TAB; it never fails, and never keeps anybody waiting."""

from __future__ import annotations

import click

__all__ = ["complete_topics"]

_PATIENCE_S = 1.0


def complete_topics(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Topics that begin so, where the line, the environment or the file says which ZooKeeper to ask."""
    hosts = context.params.get("zookeeper") or context.lookup_default("zookeeper") or _from_environment()
    if not isinstance(hosts, str) or not hosts:
        return []
    from kiel_groups.coordination import admin
    from kiel_groups.errors import KielGroupsError

    try:
        with admin.zookeeper(hosts, timeout_s=_PATIENCE_S) as client:
            return [topic for topic in admin.topics(client) if topic.startswith(typed)]
    except KielGroupsError:
        # There is nobody to tell: a shell throws away what completion says.
        return []


def _from_environment() -> str | None:
    import os

    return os.environ.get("KIEL_GROUPS_ZOOKEEPER")
