"""The result of loading groups, however they are coordinated."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["LoadedGroups", "ViewT"]

ViewT = TypeVar("ViewT")


@dataclass(frozen=True, slots=True)
class LoadedGroups(Generic[ViewT]):
    """
    The views of groups at one moment.

    ``brokers`` is the number of live brokers. ``lag_problem`` is the reason why some offsets or log ends are unknown,
    or "" if all are known. ``problems`` are the reasons why groups may be missing; ``lists_empty`` is False if groups
    without members are, because brokers do not list them. ``seen_ms`` is the time at which the groups were read, in
    epoch milliseconds.
    """

    groups: tuple[ViewT, ...]
    brokers: int
    lag_problem: str = ""
    problems: tuple[str, ...] = ()
    lists_empty: bool = True
    seen_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
