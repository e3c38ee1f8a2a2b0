"""The reader of a plan's inputs, with watches that notify the leader when they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

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
        self._on_change = on_change
        self._watchers: dict[str, Callable[[], None]] = {}
        #: Values that were read and have not changed since, by the name of their watcher.
        self._known: dict[str, Any] = {}
        self._reading: dict[str, object] = {}
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
        self._known.clear()
        self._reading.clear()

    async def read(self) -> Inputs:
        """Read all inputs of a plan. From now on, ``on_change`` is called when a watched input changes."""
        brokers, members, group_state, assignments, history, (self._dynamic_config, weights) = await asyncio.gather(
            self._cached("brokers", self._read_brokers),
            self._live_members(),
            self._session.get(self._layout.group_state),
            self._read_assignments(),
            self._session.children(self._layout.history),
            # Nested because gather() is typed for at most six arguments.
            asyncio.gather(
                self._cached("config", self._read_dynamic_config), self._cached("weights", self._read_weights)
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
            else self._parsed(GroupState.parse, group_state, self._layout.group_state),
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

    def _watcher(self, what: str) -> Callable[[], None]:
        """Return the one watcher for a kind of change, so that renewed watches do not accumulate."""
        return self._watchers.setdefault(what, partial(self._changed, what))

    def _changed(self, what: str) -> None:
        self._known.pop(what, None)
        self._reading.pop(what, None)
        self._on_change(f"{what} changed")

    async def _cached(self, what: str, read: Callable[[], Awaitable[_Parsed]]) -> _Parsed:
        """Return a value, cached until its watch fires. A value whose watch fires during the read is not cached."""
        if what in self._known:
            known: _Parsed = self._known[what]
            return known
        reading = self._reading[what] = object()
        found = await read()
        if self._reading.pop(what, None) is reading:
            self._known[what] = found
        return found

    async def _cached_many(
        self,
        kind: str,
        names: Iterable[str],
        path_of: Callable[[str], str],
        parse: Callable[[str, Node], _Parsed | None],
    ) -> dict[str, _Parsed | None]:
        """Return values of one kind by name, cached as by ``_cached``, or None for a missing or unreadable znode."""
        whats = {name: f"{kind} {name}" for name in names}
        values = {name: self._known.get(what) for name, what in whats.items()}
        unread = {name: what for name, what in whats.items() if what not in self._known}
        reading = object()
        self._reading |= dict.fromkeys(unread.values(), reading)
        nodes = await self._watched_many([path_of(name) for name in unread], unread.values())
        for (name, what), node in zip(unread.items(), nodes, strict=True):
            values[name] = None if node is None else parse(name, node)
            if self._reading.pop(what, None) is reading:
                self._known[what] = values[name]
        return values

    async def _read_brokers(self) -> int:
        """Return the number of brokers, and watch for changes, even if no broker has ever registered."""
        watcher = self._watcher("brokers")
        names = await self._session.children(BROKER_IDS, watcher)
        if names is None and await self._session.exists(BROKER_IDS, watcher) is not None:
            names = await self._session.children(BROKER_IDS, watcher)
        return len(names or ())

    async def _live_members(self) -> dict[Slot, MemberInfo]:
        """Read the live members by slot. If two members share a slot, the member that registered later counts."""
        names = sorted(await self._session.children(self._layout.members, self._watcher("members")) or ())
        for name in self._member_names - set(names):
            self._forget_member(name)
        self._member_names = set(names)
        newest: dict[Slot, tuple[int, MemberInfo]] = {}
        members = await self._cached_many("member", names, self._layout.member, self._registered)
        for found in members.values():
            if found is not None and (found[1].slot not in newest or newest[found[1].slot][0] < found[0]):
                newest[found[1].slot] = found
        return {slot: info for slot, (_, info) in newest.items()}

    def _registered(self, name: MemberId, node: Node) -> tuple[int, MemberInfo] | None:
        """Return the zxid of a registration and its content, or None if the registration cannot be read."""
        info = self._parsed(partial(MemberInfo.parse, name), node, self._layout.member(name))
        return None if info is None else (node.czxid, info)

    def _forget_member(self, name: MemberId) -> None:
        what = f"member {name}"
        self._known.pop(what, None)
        self._reading.pop(what, None)
        watcher = self._watchers.pop(what, None)
        if watcher is not None:
            self._session.forget(watcher)

    async def _read_assignments(self) -> dict[Slot, MemberAssignment | None]:
        slots = await self._session.children(self._layout.group_state) or []
        nodes = await self._session.get_many([self._layout.assignment(slot) for slot in slots])
        return {
            slot: self._parsed(MemberAssignment.parse, node, self._layout.assignment(slot))
            for slot, node in zip(slots, nodes, strict=True)
            if node is not None
        }

    async def _read_dynamic_config(self) -> DynamicConfig:
        """Read the group's dynamic settings. If the settings cannot be read, return the previous ones."""
        node = await self._watched(self._layout.config, "config")
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
        node = await self._watched(self._layout.weights, "weights")
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
        found = await self._cached_many(
            "topic", names, topic_path, lambda name, node: self._parsed(parse_topic, node, topic_path(name))
        )
        return {name: partitions for name, partitions in found.items() if partitions is not None}

    async def _watched(self, path: str, what: str) -> Node | None:
        """Read a znode and watch it. If it does not exist, return None and watch for its creation."""
        return (await self._watched_many([path], [what]))[0]

    async def _watched_many(self, paths: Sequence[str], whats: Iterable[str]) -> list[Node | None]:
        """
        Read znodes and watch them. For each znode that does not exist, return None and watch for its creation.

        One call reads all znodes, instead of one task for each znode. So the session limits how many reads are in
        flight ahead of a heartbeat, however many members and topics there are.
        """
        watchers = [self._watcher(what) for what in whats]
        nodes = await self._session.get_many(paths, watchers)
        absent = [number for number, node in enumerate(nodes) if node is None]
        answers = await self._session.exists_many([paths[n] for n in absent], [watchers[n] for n in absent])
        # Znodes that were created between the two reads.
        late = [number for number, node in zip(absent, answers, strict=True) if node is not None]
        found = await self._session.get_many([paths[n] for n in late], [watchers[n] for n in late])
        for number, node in zip(late, found, strict=True):
            nodes[number] = node
        return nodes

    def _parsed(self, parse: Callable[[bytes, str], _Parsed], node: Node, path: str) -> _Parsed | None:
        """Parse a znode's value. If the value is invalid, log an error and return None."""
        try:
            return parse(node.data, path)
        except ProtocolError as error:
            log.error("group %s: %s; ignoring it", self._layout.group, error)
            self._metrics.count("znodes_unreadable")
            return None
