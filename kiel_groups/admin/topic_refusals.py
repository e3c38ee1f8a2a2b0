"""Errors about the names of topics, the same whether ZooKeeper or a broker is asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from kiel_groups.errors import ConfigError, UnknownTopicError
from kiel_groups.wording import some

__all__ = ["existing_topics", "unknown_topics"]


def existing_topics(names: Sequence[str]) -> ConfigError:
    """Return the error about topics that exist already; its text names up to ten."""
    do = "exists already; delete it first, or choose another name"
    return ConfigError(
        f"{_named(names)} {do if len(names) == 1 else 'exist already; delete them first, or choose other names'}"
    )


def unknown_topics(missing: Sequence[str], found: Collection[str], place: str) -> UnknownTopicError:
    """
    Return the error about topics that do not exist; its text names up to ten, and suggests similar names.

    Args:
        missing: The names of the missing topics.
        found: The names of the existing topics.
        place: Where they were looked for, such as "in ZooKeeper at zk-1:2181".
    """
    near = [match for name in missing for match in get_close_matches(name, found, 1)]
    hint = f" (did you mean {some(map(repr, near))}?)" if near else ""
    return UnknownTopicError(f"{_named(missing)} {'does' if len(missing) == 1 else 'do'} not exist {place}{hint}")


def _named(names: Sequence[str]) -> str:
    return f"{'topic' if len(names) == 1 else 'topics'} {some(map(repr, names), 10)}"
