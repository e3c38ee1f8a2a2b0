"""The reader of a plan's inputs, with watches that notify the leader when they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from kiel_groups.coordination.leader.watched_values import WatchedValues
from kiel_groups.coordination.session.session_context import SessionContext
from kiel_groups.coordination.session.zk_session import Node
from kiel_groups.errors import ProtocolError
from kiel_groups.group.leader.planner import Inputs
from kiel_groups.group.leader.static_members import absences
from kiel_groups.group.znodes.contents import GroupState, MemberAssignment, MemberInfo, parse_topic
from kiel_groups.group.znodes.dynamic_config import DynamicConfig
from kiel_groups.group.znodes.history import generation_of
from kiel_groups.group.znodes.layout import BROKER_IDS, topic_path
from kiel_groups.group.znodes.partition_weights import Weights, parse_weights
from kiel_groups.model import MemberId, Slot

__all__ = ["PlanReader"]

log = logging.getLogger(__name__)

_Parsed = TypeVar("_Parsed")


class PlanReader:
    """
    Reads the inputs of one leader's plans, on its session.

    Inputs that seldom change are read once and watched: brokers, topics, settings, weights, and each member's znode,
    which is created again when its subscription changes. ``on_change`` is called with a text that names the change.
    """

    def __init__(self, context: SessionContext, on_change: Callable[[str], None]) -> None:
        self._session = context.session
        self._layout = context.layout
        self._config = context.config
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._values = WatchedValues(context, on_change)
        self._member_names: set[MemberId] = set()
        self._dynamic_config = DynamicConfig()
        #: The last weights that could be read; empty if there were none.
        self._weights: Weights = {}
        #: The warnings about settings that were logged and still apply.
        self._warnings: set[str] = set()

    @property
    def grace_ms(self) -> int:
        """How long a static member that is away keeps its partitions, in milliseconds, by the settings last read."""
        given = self._dynamic_config.static_grace_ms
        return self._config.static_grace_ms if given is None else given

    def forget(self) -> None:
        """Drop all cached values, because their watches may be lost."""
        self._values.forget()

    async def read(self) -> Inputs:
        """Read all inputs of a plan. From now on, ``on_change`` is called when a watched input changes."""
        cached = self._values.cached
        brokers, members, group_state, assignments, history, (self._dynamic_config, weights) = await asyncio.gather(
            cached("brokers", self._read_brokers),
            self._live_members(),
            self._session.get(self._layout.group_state),
            self._read_assignments(),
            self._session.children(self._layout.history),
            # Nested because gather() is typed for at most six arguments.
            asyncio.gather(
                self._values.cached("config", self._read_dynamic_config),
                self._values.cached("weights", self._read_weights),
            ),
        )
        self._weights = weights
        away = absences(assignments, members, self._runtime.wall_ms(), self.grace_ms)
        self._warn_of_settings({*members, *away})
        topics = await self._topics(sorted({topic for member in members.values() for topic in member.subscription}))
        return Inputs(
            members=members,
            topics=topics,
            brokers=brokers,
            group_state=None
            if group_state is None
            else self._values.parsed(GroupState.parse, group_state, self._layout.group_state),
            group_state_version=None if group_state is None else group_state.version,
            assignments=assignments,
            away=away,
            history=tuple(sorted(number for name in history or () if (number := generation_of(name)) is not None)),
            dynamic_config=self._dynamic_config,
            weights=weights,
        )

    async def returned(self, away: Sequence[Slot]) -> bool:
        """Return whether any of these slots has a live member again."""
        return not (await self._live_members()).keys().isdisjoint(away)

    async def _read_brokers(self) -> int:
        """Return the number of brokers, and watch for changes, even if no broker has ever registered."""
        watcher = self._values.watcher("brokers")
        names = await self._session.children(BROKER_IDS, watcher)
        if names is None and await self._session.exists(BROKER_IDS, watcher) is not None:
            names = await self._session.children(BROKER_IDS, watcher)
        return len(names or ())

    async def _live_members(self) -> dict[Slot, MemberInfo]:
        """Read the live members by slot. If two members share a slot, the member that registered later counts."""
        names = sorted(await self._session.children(self._layout.members, self._values.watcher("members")) or ())
        for name in self._member_names - set(names):
            self._values.drop(f"member {name}")
        self._member_names = set(names)
        newest: dict[Slot, tuple[int, MemberInfo]] = {}
        members = await self._values.cached_many("member", names, self._layout.member, self._registered)
        for found in members.values():
            if found is not None and (found[1].slot not in newest or newest[found[1].slot][0] < found[0]):
                newest[found[1].slot] = found
        return {slot: info for slot, (_, info) in newest.items()}

    def _registered(self, name: MemberId, node: Node) -> tuple[int, MemberInfo] | None:
        """Return the zxid of a registration and its content, or None if the registration cannot be read."""
        info = self._values.parsed(partial(MemberInfo.parse, name), node, self._layout.member(name))
        return None if info is None else (node.czxid, info)

    async def _read_assignments(self) -> dict[Slot, MemberAssignment | None]:
        slots = await self._session.children(self._layout.group_state) or []
        nodes = await self._session.get_many([self._layout.assignment(slot) for slot in slots])
        return {
            slot: self._values.parsed(MemberAssignment.parse, node, self._layout.assignment(slot))
            for slot, node in zip(slots, nodes, strict=True)
            if node is not None
        }

    async def _read_dynamic_config(self) -> DynamicConfig:
        """Read the group's dynamic settings. If the settings cannot be read, return the previous ones."""
        node = await self._values.watched(self._layout.config, "config")
        if node is None:
            return DynamicConfig()
        try:
            return DynamicConfig.parse(node.data, self._layout.config)
        except ProtocolError as error:
            log.error("group %s: %s; keeping the previous settings", self._layout.group, error)
            self._metrics.count("group_settings_refused")
            return self._dynamic_config

    async def _read_weights(self) -> Weights:
        """
        Read the weights of partitions. If the weights cannot be read, return the previous ones.

        Without the previous weights, a garbled znode would move partitions, and its repair would move them back.
        """
        node = await self._values.watched(self._layout.weights, "weights")
        if node is None:
            return {}
        try:
            # Parsing the weights of 100,000 partitions takes about a second.
            parse = partial(parse_weights, node.data, self._layout.weights)
            return await self._runtime.in_thread(parse, "weights")
        except ProtocolError as error:
            effect = "keeping the previous weights" if self._weights else "planning without weights"
            log.error("group %s: %s; %s", self._layout.group, error, effect)
            self._metrics.count("znodes_unreadable")
            return self._weights

    def _warn_of_settings(self, slots: Collection[Slot]) -> None:
        """Log settings that are probably mistakes, each only once until it is corrected."""
        warnings = set(self._dynamic_config.unknown_field_hints())
        warnings |= {f"drained: {slot} is no member" for slot in self._dynamic_config.unknown_drained(slots)}
        for warning in sorted(warnings - self._warnings):
            log.warning("group %s: %s: %s", self._layout.group, self._layout.config, warning)
        self._warnings = warnings

    async def _topics(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        found = await self._values.cached_many(
            "topic", names, topic_path, lambda name, node: self._values.parsed(parse_topic, node, topic_path(name))
        )
        return {name: partitions for name, partitions in found.items() if partitions is not None}
