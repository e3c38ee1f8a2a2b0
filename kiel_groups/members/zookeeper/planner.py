"""
Make the plans of a group of consumers: read and watch members, brokers, topics and settings, and run the allocator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kiel_groups.allocators import Allocator, allocator_name, named_allocator, sticky
from kiel_groups.config import BROKER_V1
from kiel_groups.errors import AllocatorError, ProtocolError
from kiel_groups.group.planner import (
    Inputs,
    Publication,
    Target,
    absences,
    allocate,
    describe_allocator,
    describe_change,
    fallback_target,
    limit_claims,
    members_by_slot,
    next_end_ms,
    plan,
)
from kiel_groups.group.topic_patterns import PatternMatch
from kiel_groups.group.znodes.contents import (
    GroupState,
    MemberAssignment,
    MemberInfo,
    encode_object,
    parse_broker_rack,
    parse_object,
    parse_offset,
    parse_preferred_leaders,
    parse_topic,
    whole_number,
)
from kiel_groups.group.znodes.group_settings import (
    DynamicConfig,
    Weights,
    forget_departed,
    generation_of,
    parse_weights,
)
from kiel_groups.group.znodes.layout import BROKER_IDS, TOPICS, GroupLayout, topic_path
from kiel_groups.group.znodes.transactions import Put
from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.members.topic_matcher import RETRY_S, TopicMatcher
from kiel_groups.members.zookeeper.leader import LeaderDriver, MakePlan
from kiel_groups.members.zookeeper.monitors import ForeignMemberMonitor, OwnershipMonitor
from kiel_groups.model import Allocation, MemberId, Slot, TopicPartition
from kiel_groups.wording import counted
from kiel_groups.zookeeper.runtime import ends_within
from kiel_groups.zookeeper.session import Node, children_watched
from kiel_groups.zookeeper.tasks import SessionContext

log = logging.getLogger(__name__)


_Parsed = TypeVar("_Parsed")


class WatchedValues:
    """
    Caches values of znodes for the plans of one leader on its session, until their watches fire.

    The object calls ``on_change`` with a text that names the change, such as "member m1 changed".
    """

    def __init__(self, context: SessionContext, on_change: Callable[[str], None]) -> None:
        self._session = context.session
        self._group = context.group
        self._metrics = context.metrics
        self._on_change = on_change
        self._watchers: dict[str, Callable[[], None]] = {}
        #: Values that were read and have not changed since, by the name of their watcher.
        self._known: dict[str, Any] = {}
        self._reading: dict[str, object] = {}
        #: The names of the live members, including members whose znode cannot be read.
        self.member_names: frozenset[MemberId] = frozenset()

    def forget(self) -> None:
        """Drop all cached values, because their watches may be lost."""
        self._known.clear()
        self._reading.clear()

    def watcher(self, what: str) -> Callable[[], None]:
        """Return the watcher for a kind of change, always the same one, so that renewed watches do not accumulate."""
        return self._watchers.setdefault(what, partial(self._changed, what))

    def _changed(self, what: str) -> None:
        self._known.pop(what, None)
        self._reading.pop(what, None)
        self._on_change(f"{what} changed")

    async def cached(self, what: str, read: Callable[[], Awaitable[_Parsed]]) -> _Parsed:
        """Return a value, cached until its watch fires. A value whose watch fires during the read is not cached."""
        if what in self._known:
            known: _Parsed = self._known[what]
            return known
        reading = self._reading[what] = object()
        found = await read()
        if self._reading.pop(what, None) is reading:
            self._known[what] = found
        return found

    async def cached_many(
        self,
        kind: str,
        names: Iterable[str],
        path_of: Callable[[str], str],
        parse: Callable[[str, Node], _Parsed | None],
    ) -> dict[str, _Parsed | None]:
        """Return values of one kind by name, cached as by ``cached``, or None for a missing or unreadable znode."""
        whats = {name: f"{kind} {name}" for name in names}
        values = {name: self._known.get(what) for name, what in whats.items()}
        unread = {name: what for name, what in whats.items() if what not in self._known}
        reading = object()
        self._reading |= dict.fromkeys(unread.values(), reading)
        nodes = await self.watched_many([path_of(name) for name in unread], unread.values())
        for (name, what), node in zip(unread.items(), nodes, strict=True):
            values[name] = None if node is None else parse(name, node)
            if self._reading.pop(what, None) is reading:
                self._known[what] = values[name]
        return values

    async def members(
        self, layout: GroupLayout, parse: Callable[[MemberId, bytes, str], _Parsed]
    ) -> dict[MemberId, tuple[int, _Parsed]]:
        """Return the live members that can be read, by member id, each with the zxid of its registration."""
        names = sorted(await self._session.children(layout.members, self.watcher("members")) or ())
        for name in self.member_names.difference(names):
            self.drop(f"member {name}")
        self.member_names = frozenset(names)

        def registered(name: MemberId, node: Node) -> tuple[int, _Parsed] | None:
            info = self.parsed(partial(parse, name), node, layout.member(name))
            return None if info is None else (node.czxid, info)

        found = await self.cached_many("member", names, layout.member, registered)
        return {name: each for name, each in found.items() if each is not None}

    def drop(self, what: str) -> None:
        """Forget a value that will not be read again, and its watcher."""
        self._known.pop(what, None)
        self._reading.pop(what, None)
        watcher = self._watchers.pop(what, None)
        if watcher is not None:
            self._session.forget(watcher)

    async def watched(self, path: str, what: str) -> Node | None:
        """Read a znode and watch it. If it does not exist, return None and watch for its creation."""
        return (await self.watched_many([path], [what]))[0]

    async def watched_many(self, paths: Sequence[str], whats: Iterable[str]) -> list[Node | None]:
        """
        Read znodes and watch them. For each znode that does not exist, return None and watch for its creation.

        One call reads all znodes, instead of one task for each znode. So the session limits how many reads are in
        flight ahead of a heartbeat, however many members and topics there are.
        """
        watchers = [self.watcher(what) for what in whats]
        nodes = await self._session.get_many(paths, watchers)
        absent = [number for number, node in enumerate(nodes) if node is None]
        answers = await self._session.exists_many([paths[n] for n in absent], [watchers[n] for n in absent])
        # These znodes were created between the two reads.
        late = [number for number, node in zip(absent, answers, strict=True) if node is not None]
        found = await self._session.get_many([paths[n] for n in late], [watchers[n] for n in late])
        for number, node in zip(late, found, strict=True):
            nodes[number] = node
        return nodes

    def parsed(self, parse: Callable[[bytes, str], _Parsed], node: Node, path: str) -> _Parsed | None:
        """Parse a znode's value. If the value is invalid, log an error and return None."""
        try:
            return parse(node.data, path)
        except ProtocolError as error:
            log.error("group %s: %s; ignoring it", self._group, error)
            self._metrics.count("znodes_unreadable")
            return None


class PlanReader:
    """
    Reads the inputs of one leader's plans, on its session.

    The reader reads inputs that seldom change only once, and watches them: brokers, topics, settings, weights, and each
    member's znode. A member's znode is created again when its subscription changes. The reader calls ``on_change`` with
    a text that names the change.
    """

    def __init__(self, context: SessionContext, on_change: Callable[[str], None]) -> None:
        self._session = context.session
        self._layout = context.layout
        self._config = context.config
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._values = WatchedValues(context, on_change)
        self._dynamic_config = DynamicConfig()
        #: The last weights that could be read; empty if there were none.
        self._weights: Weights = {}
        self._matcher = TopicMatcher(context.group, context.metrics, context.runtime)
        self._on_change = on_change
        self._retry: asyncio.TimerHandle | None = None
        #: The topics that the last plan asked for.
        self._topic_names: frozenset[str] = frozenset()
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
        """Read all inputs of a plan. From now on, call ``on_change`` when a watched input changes."""
        cached = self._values.cached
        # The config is read before the members, so that a drained member that is not found below has left.
        self._dynamic_config, config = await cached("config", self._read_dynamic_config)
        brokers, members, state_node, assignments, history, self._weights = await asyncio.gather(
            cached("brokers", self._read_brokers),
            self._live_members(),
            self._session.get(self._layout.group_state),
            self._read_assignments(),
            self._session.children(self._layout.history),
            cached("weights", self._read_weights),
        )
        away = absences(assignments, members, self._runtime.wall_ms(), self.grace_ms)
        members = {slot: member for slot, member in members.items() if slot not in away}
        self._warn_of_settings({*members, *away})
        path = self._layout.group_state
        group_state = None if state_node is None else self._values.parsed(GroupState.parse, state_node, path)
        used = {member.pattern for member in members.values() if member.pattern}
        names, patterns = await self._matches(used, group_state.patterns if group_state else {})
        subscribed = {topic for member in members.values() for topic in member.subscription}
        topics = await self._topics(subscribed.union(*(match.topics for match in patterns.values())))
        return Inputs(
            members=members,
            topics=topics,
            brokers=brokers,
            group_state=group_state,
            group_state_version=None if state_node is None else state_node.version,
            assignments=assignments,
            away=away,
            history=tuple(sorted(number for name in history or () if (number := generation_of(name)) is not None)),
            dynamic_config=self._dynamic_config,
            forgetting=None if config is None else self._forgetting(config),
            weights=self._weights,
            patterns=patterns,
            has_topics=bool(names),
        )

    async def _matches(
        self, patterns: Collection[str], before: Mapping[str, PatternMatch]
    ) -> tuple[Collection[str], dict[str, PatternMatch]]:
        """
        Return the names of all topics, and what the members' patterns match. Without patterns, do not read the names.

        If some topics cannot be compared with a pattern now, these topics match as in the last plan, ``before``, and a
        change is reported a few seconds later.
        """
        if not patterns:
            return (), {}
        watcher = self._values.watcher("topics")
        listed = await self._values.cached("topics", lambda: children_watched(self._session, TOPICS, watcher))
        names = listed or ()
        found = await self._matcher.matches(patterns, names, before)
        if not self._matcher.is_complete:
            self.stop()
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._on_change, "topics of patterns")
        return names, found

    def stop(self) -> None:
        """Cancel the timer."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _forgetting(self, config: Node) -> Put | None:
        """
        Return the write that removes departed members from ``drained`` in the group's config, or None if ``drained``
        has no departed member.
        """
        after = forget_departed(parse_object(config.data, self._layout.config), self._values.member_names)
        if self._dynamic_config.drained.issubset(after.get("drained", ())):
            return None
        return Put(self._layout.config, encode_object(after), config.version)

    async def returned(self, away: Sequence[Slot]) -> bool:
        """Return whether any of these slots has a live member again that subscribes."""
        members = await self._live_members()
        return any(slot in members and members[slot].subscribes for slot in away)

    async def _read_brokers(self) -> int:
        """Return the number of brokers, and watch for changes, even if no broker has ever registered."""
        return len(await children_watched(self._session, BROKER_IDS, self._values.watcher("brokers")) or ())

    async def _live_members(self) -> dict[Slot, MemberInfo]:
        """Read the live members by slot (:func:`members_by_slot`)."""
        return members_by_slot((await self._values.members(self._layout, MemberInfo.parse)).values())

    async def _read_assignments(self) -> dict[Slot, MemberAssignment | None]:
        slots = await self._session.children(self._layout.group_state) or []
        nodes = await self._session.get_many([self._layout.assignment(slot) for slot in slots])
        return {
            slot: self._values.parsed(MemberAssignment.parse, node, self._layout.assignment(slot))
            for slot, node in zip(slots, nodes, strict=True)
            if node is not None
        }

    async def _read_dynamic_config(self) -> tuple[DynamicConfig, Node | None]:
        """
        Read the group's dynamic settings, with their znode. If they are invalid, return the previous settings, and
        None.
        """
        node = await self._values.watched(self._layout.config, "config")
        if node is None:
            return DynamicConfig(), None
        try:
            return DynamicConfig.parse(node.data, self._layout.config), node
        except ProtocolError as error:
            log.error("group %s: %s; keeping the previous settings", self._layout.group, error)
            self._metrics.count("group_settings_refused")
            return self._dynamic_config, None

    async def _read_weights(self) -> Weights:
        """
        Read the weights of partitions. If the weights cannot be read, return the previous weights.

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

    async def racks(self, inputs: Inputs) -> dict[TopicPartition, str]:
        """Read the racks of partitions' preferred leaders; see ``Inputs.racks``."""
        ids = await self._session.children(BROKER_IDS) or []
        paths = [f"{BROKER_IDS}/{broker_id}" for broker_id in ids]
        registered = {
            int(broker_id): self._values.parsed(parse_broker_rack, node, path)
            for broker_id, path, node in zip(ids, paths, await self._session.get_many(paths), strict=True)
            if node is not None and whole_number(broker_id) is not None
        }
        topics = sorted(inputs.topics)
        nodes = zip(topics, await self._session.get_many(list(map(topic_path, topics))), strict=True)
        leaders = {
            topic: node and self._values.parsed(parse_preferred_leaders, node, topic_path(topic))
            for topic, node in nodes
        }
        return inputs.racks(registered, {topic: found for topic, found in leaders.items() if found})

    async def lags(self, inputs: Inputs, handler: PartitionHandler) -> dict[TopicPartition, int]:
        """
        Ask for the lags of partitions, in messages. Leave out partitions without a stored offset or without an answer.
        """
        partitions = sorted(partition for partition in inputs.partitions if partition.topic in inputs.subscribed)
        ends = (await handler.log_offsets(partitions, "latest")).found
        if self._config.store == BROKER_V1:
            stored = {each: its.offset for each, its in (await handler.kafka_offsets.read(partitions)).found.items()}
        else:
            paths = list(map(self._layout.offset, partitions))
            found = zip(partitions, paths, await self._session.get_many(paths), strict=True)
            read = {each: node and self._values.parsed(parse_offset, node, path) for each, path, node in found}
            stored = {each: offset for each, offset in read.items() if isinstance(offset, int)}
        return {each: max(0, end - stored[each]) for each, end in ends.items() if each in stored}

    def _warn_of_settings(self, slots: Collection[Slot]) -> None:
        """Log each probable mistake in the settings once, until the setting is corrected."""
        warnings = set(self._dynamic_config.unknown_field_hints())
        warnings |= {f"drained: {slot} is no member" for slot in self._dynamic_config.unknown_drained(slots)}
        for warning in sorted(warnings - self._warnings):
            log.warning("group %s: %s: %s", self._layout.group, self._layout.config, warning)
        self._warnings = warnings

    async def _topics(self, names: set[str]) -> dict[str, tuple[int, ...]]:
        for gone in self._topic_names - names:
            self._values.drop(f"topic {gone}")
        self._topic_names = frozenset(names)

        def numbers(name: str, node: Node) -> tuple[int, ...] | None:
            return self._values.parsed(parse_topic, node, topic_path(name))

        found = await self._values.cached_many("topic", sorted(names), topic_path, numbers)
        return {name: partitions for name, partitions in found.items() if partitions is not None}


class PartitionPlanner:
    """
    Makes the plans of a group of consumers; see ``PlanMaker``.

    Args:
        context: The process on its session.
        allocator: Computes the assignments.
        handler: Asks brokers for the ends of logs, for allocators that use lags, or None if this process has no
            consumer.
        requests: The leader's driver. The planner informs the driver of changed inputs.
    """

    def __init__(
        self,
        context: SessionContext,
        allocator: Allocator,
        handler: PartitionHandler | None,
        requests: LeaderDriver,
    ) -> None:
        self._session = context.session
        self._layout = context.layout
        self._member_id = context.member_id
        self._config = context.config
        self._tasks = context.tasks
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._allocator = allocator
        self._handler = handler
        self._requests = requests
        # The inputs of the last published plan, and the inputs of the newest plan.
        self._before: Inputs | None = None
        self._planned_from: Inputs | None = None
        self._reader = PlanReader(context, self._on_change)
        self._ownership_monitor = OwnershipMonitor(context)
        self._foreign_members = ForeignMemberMonitor(context)
        #: The owner of each partition in the newest plan.
        self._wanted: dict[TopicPartition, MemberId] = {}
        #: The allocation of the newest plan.
        self._allocation: Allocation = {}
        self._grace_timer: asyncio.TimerHandle | None = None
        #: Why the last plan was withheld, as ``Inputs.missing``, or "" if it was not.
        self._withheld = ""
        #: The cause of the newest plan, for the log.
        self._cause = ""

    @property
    def alone(self) -> bool:
        """Whether the newest plan has no other member than this process."""
        known = self._planned_from
        return known is not None and {m.member_id for m in known.members.values()} <= {self._member_id}

    def begin(self) -> None:
        """Forget the plans of an earlier term."""
        self._before = None

    def forget(self) -> None:
        """Drop all cached inputs, and look for foreign members again now: watches may have been lost."""
        self._reader.forget()
        self._foreign_members.start()

    def stop(self) -> None:
        """Stop the timer and the monitors."""
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
        self._reader.stop()
        self._ownership_monitor.stop()
        self._foreign_members.stop()

    def _on_change(self, cause: str) -> None:
        self._requests.changed(cause)
        if self._requests.is_leader and self._planned_from is not None and self._planned_from.away:
            self._tasks.start(self._check_returned(tuple(self._planned_from.away)))

    async def _check_returned(self, away: tuple[Slot, ...]) -> None:
        """Plan at once if a static member is back: its partitions were kept, so no debounce is necessary."""
        if await self._reader.returned(away):
            self._requests.changed("return", urgent=True)

    async def read(self) -> MakePlan:
        """Read the inputs of the next plan, and return the function that makes the plan."""
        return partial(self._plan, await self._reader.read())

    async def _plan(self, inputs: Inputs, candidate: str, cause: str, since_s: float) -> Publication | None:
        """Run the allocator, and return the writes that publish its plan, or None if no plan must be published."""
        self._apply_dynamic_config(inputs)
        if not self._may_plan(inputs):
            return None
        target = limit_claims(await self._allocate(inputs), self._layout, self._session.client.chroot)
        cause = self._describe_cause(cause, inputs, target)
        publication = plan(
            self._layout,
            inputs,
            target,
            leader=self._member_id,
            candidate=candidate,
            cause=cause,
            now_ms=self._runtime.wall_ms(),
            took_ms=round(1000 * (_now_s() - since_s)),
        )
        self._planned_from, self._allocation, self._cause = inputs, target.allocation, cause
        self._wanted = {
            partition: inputs.members[slot].member_id
            for slot, owned in target.allocation.items()
            if slot in inputs.members
            for partition in owned
        }
        if publication is None:
            self._monitor_owners()
        return publication

    def published(self, generation: int, moved: int, took_ms: int) -> None:
        """Log the plan, and monitor the owners of its partitions."""
        self._monitor_owners()
        group, cause = self._layout.group, self._cause
        moves = counted(moved, "partition moves", "partitions move")
        fields = {"group": group, "generation": generation, "cause": cause, "moved": moved, "took_ms": took_ms}
        text = "group %s: generation %d is published after %d ms, %s: %s"
        log.info(text, group, generation, took_ms, moves, cause, extra={"fields": fields})

    def _monitor_owners(self) -> None:
        """Record that the newest plan is published, and monitor the owners of its partitions."""
        assert self._planned_from is not None
        self._before = self._planned_from
        self._ownership_monitor.expect(self._wanted, {member.member_id for member in self._before.members.values()})

    def _describe_cause(self, cause: str, inputs: Inputs, target: Target) -> str:
        """Describe, for the log and the group state, why this plan differs from the last published plan."""
        changed = describe_change(self._before, inputs) or (cause if self._before is None else "")
        described = ", ".join(filter(None, (changed, describe_allocator(inputs.group_state, target))))
        if described:
            return described
        if self._planned_from is not self._before:
            # The stored plan may come from an interrupted publication, for changes that have been undone since.
            return "publication interrupted"
        # An allocator may depend on data that no leader reads. Otherwise, an operator has changed the stored plan.
        stored, published, wanted = map(_owned, (inputs.stored, self._allocation, target.allocation))
        return "allocator" if stored == published != wanted else "manual"

    def _apply_dynamic_config(self, inputs: Inputs) -> None:
        """Apply the group's dynamic settings, and plan again when the next grace period of a static member ends."""
        self._requests.set_debounce(inputs.dynamic_config.debounced(self._config.debounce))
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
        end_ms = next_end_ms(inputs.away, self._reader.grace_ms)
        if end_ms is not None:
            delay_s = max(0.0, (end_ms - self._runtime.wall_ms()) / 1000)
            self._grace_timer = asyncio.get_running_loop().call_later(delay_s, self._requests.changed, "end of grace")

    def _may_plan(self, inputs: Inputs) -> bool:
        """
        Return whether to plan.

        The leader does not plan if members subscribe to topics, but the cluster has no broker or none of these topics.
        """
        was, self._withheld = self._withheld, inputs.missing
        if inputs.missing:
            self._metrics.count("plans_withheld")
            if inputs.missing != was:  # The leader looks again at intervals; one line is enough.
                log.warning("group %s: no %s found; keeping the current plan", self._layout.group, inputs.missing)
        elif was:
            log.warning("group %s: brokers and topics found; planning", self._layout.group)
        return not inputs.missing

    async def _allocate(self, inputs: Inputs) -> Target:
        allocator = self._allocator
        if inputs.dynamic_config.allocator is not None:
            allocator = named_allocator(inputs.dynamic_config.allocator, "allocator")
        try:
            return await self._run(allocator, inputs)
        except AllocatorError as error:
            self._metrics.count("allocator_failures")
            fresh = await self._run(sticky, inputs)
            target = fallback_target(inputs, fresh, str(error))
            log.error("group %s: %s", self._layout.group, target.fallback)
            return target

    async def _run(self, allocator: Allocator, inputs: Inputs) -> Target:
        """
        Run an allocator on a thread, because it is the user's code and may be slow.

        The planner reads lags and racks only for allocators that use them.
        """
        name = allocator_name(allocator)
        racks: dict[TopicPartition, str] = {}
        lags: dict[TopicPartition, int] = {}
        if getattr(allocator, "uses_racks", False):
            racks = await self._reader.racks(inputs)
        if getattr(allocator, "uses_lag", False):
            if self._handler is None:
                text = "group %s: an allocator process reads no lags; %s allocates without them"
                log.warning(text, self._layout.group, name)
            else:
                lags = await self._reader.lags(inputs, self._handler)
        run = partial(allocate, inputs, allocator, racks, lags)
        started_s, limit_s = _now_s(), self._config.allocator_timeout_ms / 1000
        call = self._runtime.in_thread(run, "allocator")
        if not await ends_within(call, limit_s):
            raise AllocatorError(f"allocator {name} did not return within {limit_s:g} s")
        target = call.result()
        self._metrics.observe("allocator", _now_s() - started_s)
        return target


def _owned(allocation: Allocation) -> Allocation:
    """Return the allocation without empty assignments. Departed members' empty assignments may remain for a while."""
    return {slot: partitions for slot, partitions in allocation.items() if partitions}


def _now_s() -> float:
    return asyncio.get_running_loop().time()
