"""What a leader reads to plan from, and the watches that tell it when to look again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from functools import partial
from typing import Any, TypeVar

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.machine import wall_ms
from kiel_groups.coordination.session import Node, Session
from kiel_groups.errors import ProtocolError
from kiel_groups.group.absences import absences
from kiel_groups.group.history import generation_of
from kiel_groups.group.layout import BROKER_IDS, GroupLayout, topic_path
from kiel_groups.group.planning import Inputs
from kiel_groups.group.tuning import Tuning
from kiel_groups.group.znodes import MemberInfo, Pointer, Slice, parse_topic
from kiel_groups.metrics import Metrics
from kiel_groups.model import MemberId, Slot

__all__ = ["PlanReader"]

log = logging.getLogger(__name__)

_Parsed = TypeVar("_Parsed")


class PlanReader:
    """
    Reads the inputs of one leader's plans, on its session.

    What seldom changes (brokers, topics, settings, each member's znode, which is created anew where the member
    subscribes to something else) is read once and watched. ``on_change`` is told what kind of thing changed.
    """

    def __init__(
        self,
        session: Session,
        layout: GroupLayout,
        config: GroupConfig,
        metrics: Metrics,
        on_change: Callable[[str], None],
    ) -> None:
        self._session = session
        self._layout = layout
        self._config = config
        self._metrics = metrics
        self._on_change = on_change
        self._watchers: dict[str, Callable[[], None]] = {}
        #: What was read and has not changed since, by what its watcher calls it.
        self._known: dict[str, Any] = {}
        self._reading: dict[str, object] = {}
        self._member_names: set[MemberId] = set()
        self._tuning = Tuning()
        #: What was said of it and is still so.
        self._remarks: set[str] = set()

    @property
    def grace_ms(self) -> int:
        """How long the place of a static member is kept, as last read."""
        given = self._tuning.static_grace_ms
        return self._config.static_grace_ms if given is None else given

    def forget(self) -> None:
        """Watches may be gone: what was read is to be read again."""
        self._known.clear()
        self._reading.clear()

    async def read(self) -> Inputs:
        """Everything that a plan is made from; from now on changes are told."""
        brokers, members, pointer, slices, history, self._tuning = await asyncio.gather(
            self._kept("brokers", self._read_brokers),
            self._living(),
            self._session.get(self._layout.pointer),
            self._slices(),
            self._session.children(self._layout.history),
            self._kept("config", self._read_tuning),
        )
        away = absences(slices, members, wall_ms(), self.grace_ms)
        self._remark({*members, *away})
        topics = await self._topics(sorted({topic for member in members.values() for topic in member.subscription}))
        return Inputs(
            members=members,
            topics=topics,
            brokers=brokers,
            pointer=None if pointer is None else self._parsed(Pointer.parse, pointer, self._layout.pointer),
            pointer_version=None if pointer is None else pointer.version,
            slices=slices,
            away=away,
            history=tuple(sorted(number for name in history or () if (number := generation_of(name)) is not None)),
            tuning=self._tuning,
        )

    async def returned(self, away: Sequence[Slot]) -> bool:
        """Whether the member of one of these slots is back."""
        return not (await self._living()).keys().isdisjoint(away)

    def _watcher(self, what: str) -> Callable[[], None]:
        """One watcher a kind of change, so that watches that are set again do not pile up."""
        return self._watchers.setdefault(what, partial(self._changed, what))

    def _changed(self, what: str) -> None:
        self._known.pop(what, None)
        self._reading.pop(what, None)
        self._on_change(f"{what} changed")

    async def _kept(self, what: str, read: Callable[[], Awaitable[_Parsed]]) -> _Parsed:
        """A value as it was read, until its watch fires; one whose watch fired while it was read is not kept."""
        if what in self._known:
            known: _Parsed = self._known[what]
            return known
        reading = self._reading[what] = object()
        found = await read()
        if self._reading.pop(what, None) is reading:
            self._known[what] = found
        return found

    async def _read_brokers(self) -> int:
        """How many brokers there are; a watch stands also where there never was one."""
        watcher = self._watcher("brokers")
        names = await self._session.children(BROKER_IDS, watcher)
        if names is None and await self._session.exists(BROKER_IDS, watcher) is not None:
            names = await self._session.children(BROKER_IDS, watcher)
        return len(names or ())

    async def _living(self) -> dict[Slot, MemberInfo]:
        """One member a slot: of two in one place the newer one, by the order of their registration."""
        names = sorted(await self._session.children(self._layout.members, self._watcher("members")) or ())
        for name in self._member_names - set(names):
            self._forget_member(name)
        self._member_names = set(names)
        newest: dict[Slot, tuple[int, MemberInfo]] = {}
        for found in await asyncio.gather(*map(self._member, names)):
            if found is not None and (found[1].slot not in newest or newest[found[1].slot][0] < found[0]):
                newest[found[1].slot] = found
        return {slot: info for slot, (_, info) in newest.items()}

    async def _member(self, name: MemberId) -> tuple[int, MemberInfo] | None:
        """A member as it registered, and in which transaction; None for one that is gone or cannot be read."""
        return await self._kept(f"member {name}", partial(self._read_member, name))

    async def _read_member(self, name: MemberId) -> tuple[int, MemberInfo] | None:
        path = self._layout.member(name)
        node = await self._watched(path, f"member {name}")
        info = None if node is None else self._parsed(partial(MemberInfo.parse, name), node, path)
        return None if node is None or info is None else (node.czxid, info)

    def _forget_member(self, name: MemberId) -> None:
        what = f"member {name}"
        self._known.pop(what, None)
        self._reading.pop(what, None)
        watcher = self._watchers.pop(what, None)
        if watcher is not None:
            self._session.forget(watcher)

    async def _slices(self) -> dict[Slot, Slice | None]:
        slots = await self._session.children(self._layout.pointer) or []
        nodes = await self._session.get_many([self._layout.slice(slot) for slot in slots])
        return {
            slot: self._parsed(Slice.parse, node, self._layout.slice(slot))
            for slot, node in zip(slots, nodes, strict=True)
            if node is not None
        }

    async def _read_tuning(self) -> Tuning:
        """What people have set; where that cannot be, what they had set before."""
        node = await self._watched(self._layout.config, "config")
        if node is None:
            return Tuning()
        try:
            return Tuning.parse(node.data, self._layout.config)
        except ProtocolError as error:
            log.error("group %s: %s; it is not followed", self._layout.group, error)
            self._metrics.count("group_settings_refused")
            return self._tuning

    def _remark(self, slots: Container[Slot]) -> None:
        """Say once what people have set and cannot have meant."""
        remarks = set(self._tuning.misspelt())
        remarks |= {f"drained: {slot} is no member" for slot in self._tuning.strangers(slots)}
        for remark in sorted(remarks - self._remarks):
            log.warning("group %s: %s: %s", self._layout.group, self._layout.config, remark)
        self._remarks = remarks

    async def _topics(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        found = await asyncio.gather(*map(self._topic, names))
        return {name: partitions for name, partitions in zip(names, found, strict=True) if partitions is not None}

    async def _topic(self, name: str) -> tuple[int, ...] | None:
        return await self._kept(f"topic {name}", partial(self._read_topic, name))

    async def _read_topic(self, name: str) -> tuple[int, ...] | None:
        node = await self._watched(topic_path(name), f"topic {name}")
        return None if node is None else self._parsed(parse_topic, node, topic_path(name))

    async def _watched(self, path: str, what: str) -> Node | None:
        """A znode, None where there is none; a watch stands in either case."""
        watcher = self._watcher(what)
        node = await self._session.get(path, watcher)
        if node is None and await self._session.exists(path, watcher) is not None:
            node = await self._session.get(path, watcher)
        return node

    def _parsed(self, parse: Callable[[bytes, str], _Parsed], node: Node, path: str) -> _Parsed | None:
        """A znode's value; what cannot be read is left out, loudly."""
        try:
            return parse(node.data, path)
        except ProtocolError as error:
            log.error("group %s: %s; it is left out", self._layout.group, error)
            self._metrics.count("znodes_unreadable")
            return None
