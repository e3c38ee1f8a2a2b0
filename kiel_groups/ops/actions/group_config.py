"""
Change the settings that the leader of a group follows, drain members, or request a plan from the leader.

Each change is one write of the group's ``config``, with a request for a plan. The leader answers a request with a new
generation, even if no partition moves. The new generation shows that the leader has read the change; see
``await_settled``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kazoo.exceptions import BadVersionError, KazooException, NoNodeError

from kiel_groups.errors import ConfigError, ConflictError, CoordinationError, ProtocolError
from kiel_groups.group.znodes.contents import GroupSettings, encode_object, parse_object
from kiel_groups.group.znodes.group_settings import LONGEST_REASON, DynamicConfig, check_reason, forget_departed
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import MemberId, Slot
from kiel_groups.ops.views.config_view import SettingChange, check_fields, differences, edited, missing, newly_unowned
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.members import find_slots
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.ops.zookeeper_client import Client, refusal_text
from kiel_groups.ops.zookeeper_reader import list_members, read_group, refuse_programs
from kiel_groups.wording import counted, own_command, some

#: The interval between two reads of the group while a caller waits, in seconds.
_INTERVAL_S = 0.5

#: How many bytes of an unreadable config are shown.
MOST_SHOWN_BYTES = 60


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """
    A planned change of a group's ``config``.

    ``changes`` are the settings that change, with their values before and after. ``changes`` is empty if no setting
    changes. ``owned`` has the slots that are drained or undrained, with the number of partitions that each slot owns
    now. A slot is the instance id of a static member, or the id of another member. ``after`` has the fields to write,
    or None for no write. ``version`` is the version of the znode that the write requires. ``request_ms`` is the time of
    the newest request for a plan after the change, in milliseconds since 1970, or None if there never was a request.
    ``is_live`` is whether the group has members. ``lost`` is the unreadable data that the change replaces, or empty.
    """

    group: str
    changes: tuple[SettingChange, ...]
    owned: Mapping[Slot, int]
    after: Mapping[str, Any] | None
    version: int
    request_ms: int | None
    is_live: bool
    lost: bytes

    def apply(self, client: Client) -> None:
        """
        Write the change, unless ``after`` is None.

        Raises:
            ConflictError: Another client has changed the ``config`` meanwhile. Nothing was written.
        """
        if self.after is None:
            return
        try:
            client.set(GroupLayout(self.group).config, encode_object(self.after), self.version)
        except (BadVersionError, NoNodeError) as error:
            raise ConflictError(
                f"the config of group {self.group} was changed meanwhile, so nothing was written; try again"
            ) from error


def plan_drain(
    client: Client, group: str, member: str | None = None, *, host: str | None = None, leave_unowned: bool = False
) -> ConfigChange:
    """
    Plan to drain a member, or all members of a host. Drained members stay in the group, but get no partitions.

    Args:
        client: The caller's own session.
        group: The group's name.
        member: A member id, the session id at its end, or an instance id, even of an absent static member.
        host: The host of the members, as ``describe`` shows it. Give either ``host`` or ``member``.
        leave_unowned: Whether all subscribers of a topic may be drained, so that its partitions get no owner.

    Raises:
        ConfigError: The member, or a member on the host, does not exist. Or the group's ``config`` is invalid. Or all
            subscribers of a topic would be drained.
        GroupConfigError: The members are programs.
    """
    current = _read(client, group)
    was = current.check().drained
    view = view_group(group, read_group(client, group))
    owned = _owned(view, member, host)
    unowned = newly_unowned(view, was, was | owned.keys())
    if unowned and not leave_unowned:
        raise ConfigError(
            f"every member of group {group} that subscribes to {some(unowned)} would be drained: start another member"
            " first, or permit partitions without an owner by leave_unowned"
        )
    after = {**current.fields, "drained": sorted(was | owned.keys())}
    return current.changed(after, _reason(f"drain of {some(owned, 2)}"), owned)


def plan_undrain(client: Client, group: str, member: str | None = None, *, host: str | None = None) -> ConfigChange:
    """
    Plan that a drained member, or the drained members of a host, get partitions again.

    The arguments are as for ``plan_drain``.

    Raises:
        ConfigError: The member, or every member of the host, is not drained or does not exist; or the group's
            ``config`` is invalid.
        GroupConfigError: The members are programs.
    """
    current = _read(client, group)
    was = current.check().drained
    if member is not None and member in was:  # The member may have left the group.
        owned: Mapping[Slot, int] = {member: 0}
    else:
        found = _owned(view_group(group, read_group(client, group)), member, host)
        owned = {slot: count for slot, count in found.items() if slot in was}
        if not owned:
            are = "is" if len(found) == 1 else "are"
            drained = some(sorted(was), 10) or "none"
            raise ConfigError(f"{some(found)} {are} not drained; drained in group {group}: {drained}")
    after = {**current.fields, "drained": sorted(was - owned.keys())}
    return current.changed(after, _reason(f"undrain of {some(owned, 2)}"), owned)


def plan_rebalance(client: Client, group: str, *, reason: str = "rebalance") -> ConfigChange:
    """
    Plan to request a new plan from the group's leader, without a change of settings.

    Args:
        client: The caller's own session.
        group: The group's name.
        reason: The cause of the plan in the group's history, of 1 to 200 characters.

    Raises:
        ConfigError: The group has no members, and so no leader; or the reason or the group's ``config`` is invalid.
        GroupConfigError: The members are programs.
    """
    check_reason(reason)
    current = _read(client, group)
    current.check()
    if not current.members:
        raise ConfigError(f"group {group} has no members now; when one joins, its leader plans without being asked")
    return current.changed(current.fields, reason, {}, forced=True)


def plan_settings(
    client: Client, group: str, put: Mapping[str, str], removed: Collection[str] = (), *, replace: bool = False
) -> ConfigChange:
    """
    Plan to set settings in the group's ``config``, and to remove settings from it.

    After a setting is removed, the leader's own option applies.

    Args:
        client: The caller's own session.
        group: The group's name.
        put: Texts of values by the names of settings, such as ``debounce.quiet_ms``.
        removed: Names of settings, or of unknown fields.
        replace: Whether to replace a ``config`` that members cannot read. Then ``put`` must have the settings that all
            members agree on. If the ``config`` is a JSON object, its other fields stay.

    Raises:
        ConfigError: A setting cannot be set in the ``config``, a value is invalid, or a setting to remove is not set.
            Or members can read the ``config`` although ``replace`` is True. Or members cannot read the ``config`` and
            ``replace`` is False.
        GroupConfigError: The members are programs.
    """
    current = _read(client, group, replace=replace)
    after = edited(current.fields, put, removed, founding=replace)
    texts = [*(f"{name}={text}" for name, text in put.items()), *(f"unset {name}" for name in removed)]
    return current.changed(after, _reason(f"config {', '.join(texts)}"), {})


def await_settled(
    client: Client,
    group: str,
    request_ms: int | None,
    *,
    timeout_s: float,
    report: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], object] = time.sleep,
) -> GroupView:
    """
    Wait until the leader has answered a request for a plan, and each member owns its assigned partitions.

    Args:
        client: The caller's own session.
        group: The group's name.
        request_ms: ``ConfigChange.request_ms``.
        timeout_s: How long to wait, in seconds.
        report: Called with a line about what is missing, whenever this line changes.
        sleep: Waits for a number of seconds.

    Returns:
        The last view of the group. The view has no members if all members have left meanwhile.

    Raises:
        CoordinationError: The group has not settled after ``timeout_s``. The text says what is missing. Or ZooKeeper
            failed.
    """
    until_s, reported = time.monotonic() + timeout_s, ""
    while True:
        if not client.connected:  # A read would wait without limit for a new connection.
            raise CoordinationError("the connection to ZooKeeper broke while waiting")
        try:
            view = view_group(group, read_group(client, group))
        except KazooException as error:
            raise CoordinationError(f"ZooKeeper failed while waiting: {refusal_text(error)}") from error
        if not (text := missing(view, request_ms)):
            return view
        if time.monotonic() >= until_s:
            raise CoordinationError(f"group {group} did not settle within {timeout_s:g} s: {text}")
        if text != reported:
            report(text)
            reported = text
        sleep(_INTERVAL_S)


class _Current(NamedTuple):
    """
    The present fields of a group's ``config``, the version of its znode, and the ids of the members.

    The members were read after the ``config``. ``lost`` is the unreadable data that is to be replaced, or empty.
    """

    group: str
    fields: Mapping[str, Any]
    version: int
    members: frozenset[MemberId]
    lost: bytes = b""

    @property
    def path(self) -> str:
        return GroupLayout(self.group).config

    def check(self) -> DynamicConfig:
        """Return the fields as the leader follows them. Raise ConfigError if the leader refuses the fields."""
        try:
            return check_fields(self.fields, self.path)
        except ConfigError as error:
            raise ConfigError(
                f"the leader refuses the config of group {self.group}: {error};"
                f" {own_command('config', 'unset', self.group, 'FIELD')} removes that field"
            ) from error

    def changed(
        self, after: Mapping[str, Any], reason: str, owned: Mapping[Slot, int], *, forced: bool = False
    ) -> ConfigChange:
        """
        Return the change from the present fields to ``after``, with a request for a plan.

        If no setting changes, the change has no write, unless it is ``forced``.

        Args:
            after: The new fields, without the request.
            reason: The reason of the request.
            owned: See ``ConfigChange``.
            forced: Whether to write the request even if no setting changes.

        Raises:
            ConfigError: A field is invalid.
        """
        config = check_fields(after, self.path)
        after = forget_departed(after, self.members)
        changes, last_ms = differences(self.fields, after), config.request.at_ms if config.request else None
        if self.lost and not self.fields:
            text = f"{self.lost[:MOST_SHOWN_BYTES]!r}, {counted(len(self.lost), 'byte')}"
            changes = (SettingChange("config", text, None), *changes)
        change = ConfigChange(
            self.group, changes, owned, None, self.version, last_ms, is_live=bool(self.members), lost=self.lost
        )
        if not changes and not forced:
            return change
        # A later request has a later time, also if the clock of its maker is behind.
        request_ms = max(time.time_ns() // 1_000_000, (last_ms or 0) + 1)
        after["rebalance"] = {"at": request_ms, "reason": reason}
        return replace(change, after=after, request_ms=request_ms)


def _read(client: Client, group: str, *, replace: bool = False) -> _Current:
    """
    Read the ``config`` and the members of a group of consumers. ``replace`` is as for ``plan_settings``.

    Raises:
        ConfigError: No member was ever in the group. Or members can read the ``config`` although ``replace`` is True.
            Or members cannot read the ``config`` and ``replace`` is False.
        GroupConfigError: The members are programs.
    """
    refuse_programs(client, group)
    path = GroupLayout(group).config
    try:
        data, stat = client.get(path)
    except NoNodeError:
        raise ConfigError(f"group {group!r} has no settings: no member of kiel-groups was ever in it") from None
    fields: Mapping[str, Any] = {}
    try:
        fields = parse_object(data, path)
        if replace:
            GroupSettings.parse(data, path)
            raise ConfigError(f"members can read the config of group {group}; change it without --replace")
        data = b""
    except ProtocolError as error:
        if not replace:
            raise ConfigError(
                f"the config of group {group} cannot be read: {error};"
                f" {own_command('config', 'set', group, '--replace')} replaces it"
            ) from error
        if not view_group(group, read_group(client, group)).is_of_consumers:
            raise ConfigError(f"the members of group {group} are programs, which write their own config") from error
    # The members are read after the settings: a drained member that is missing then has left.
    return _Current(group, fields, stat.version, frozenset(list_members(client, group)), data)


def _reason(text: str) -> str:
    """Return a text as a legal reason of a request: printable, and not longer than ``LONGEST_REASON``."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:LONGEST_REASON]


def _owned(view: GroupView, member: str | None, host: str | None) -> dict[Slot, int]:
    """Return the slots that ``find_slots`` finds for a member or a host, with the number of partitions of each slot."""
    owned = dict.fromkeys(view.away, 0) | {each.slot: len(each.owned) for each in view.members}
    ids = {slot: {slot} for slot in owned}
    for each in view.members:
        ids[each.slot].add(each.member_id)
    hosts = {each.slot: each.host for each in view.members}
    found = find_slots(view.group, ids, hosts, () if member is None else (member,), host)
    return {slot: owned[slot] for slot in sorted(found)}
