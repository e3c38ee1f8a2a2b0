"""
Compute the effective settings of a group with their sources, and the changes of the group's ``config`` with their
progress.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NamedTuple

from rich.console import RenderableType

from kiel_groups.config import DebounceConfig, GroupConfig
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.contents import GroupSettings, encode_object
from kiel_groups.group.znodes.group_settings import DynamicConfig
from kiel_groups.model import Slot
from kiel_groups.ops.views.checks import short_name
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.report import Column, report_table
from kiel_groups.wording import counted, some

_DEBOUNCE = tuple(f"debounce.{field.name}" for field in fields(DebounceConfig))
_AGREED = tuple(field.name for field in fields(GroupSettings))
#: The settings that 'config set' sets.
_SETTABLE = ("allocator", *_DEBOUNCE, "static_grace_ms", "broker_racks.BROKER")
#: Fields whose own fields are settings.
_NESTED = ("debounce", "broker_racks")
_DEFAULTS: Mapping[str, float] = {**GroupConfig(group="-").member_settings, "capacity": 1.0}
_OF_MEMBERS = (
    "session_timeout_ms",
    *(name for name in _DEFAULTS if name not in (*_DEBOUNCE, "static_grace_ms")),
    *("rack", "instance_id"),
)

#: The commands that change these fields.
_COMMANDS = {
    "drained": "'kiel-groups drain' and 'undrain'",
    "weights": "'kiel-groups weights set'",
    "rebalance": "'kiel-groups rebalance'",
}


class SettingChange(NamedTuple):
    """
    A setting in a group's ``config``, with its value before and after a change. None means that the setting is not set.
    """

    name: str
    before: Any
    after: Any


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the settings in a group's ``config`` by their names. A setting in an object has a name such as
    ``debounce.quiet_ms``.

    Empty lists, the version and the request for a plan are left out.
    """
    flat: dict[str, Any] = {}
    for name, value in found.items():
        if name in _NESTED and isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": each for inner, each in value.items()}
        elif isinstance(value, list):
            flat |= {name: sorted(map(str, value))} if value else {}
        elif name not in ("version", "rebalance"):
            flat[name] = value
    return flat


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[SettingChange, ...]:
    """Return the settings that differ between two values of a group's ``config``. Requests for plans are ignored."""
    then, now = _flat(before), _flat(after)
    return tuple(
        SettingChange(name, then.get(name), now.get(name))
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    )


def edited(
    before: Mapping[str, Any], put: Mapping[str, str], removed: Collection[str], *, founding: bool = False
) -> dict[str, Any]:
    """
    Return the fields of a group's ``config`` after settings are set and removed.

    Args:
        before: The present fields.
        put: Texts of values by the names of settings.
        removed: Names of settings, or of whole fields such as ``debounce``.
        founding: Whether the result replaces a ``config`` that members cannot read. Then ``put`` must also have the
            settings that all members agree on.

    Raises:
        ConfigError: A setting cannot be set or removed in the ``config``; the text says how to change the setting. Or a
            setting to remove is not set. Or ``founding`` is True, and ``put`` lacks a setting.
    """
    after = {name: dict(each) if isinstance(each, Mapping) else each for name, each in before.items()}
    if founding:
        agreed = {name: put[name] for name in _AGREED if name in put}
        if missing_ones := [name for name in _AGREED if name not in put]:
            raise ConfigError(
                f"--replace: give {', '.join(missing_ones)}, too, with the values that the members are started with: a"
                f" member with other values is refused (the defaults are {_shown_agreed(GroupConfig(group='-'))})"
            )
        checked = GroupConfig(group="-", **agreed)  # type: ignore[arg-type]
        agreed |= {"store": checked.store, "mode": checked.mode}
        after |= json.loads(GroupSettings(**agreed).encode())
        put = {name: text for name, text in put.items() if name not in _AGREED}
    for name, text in put.items():
        field, _, inner = name.partition(".")
        if name not in _SETTABLE and (field != "broker_racks" or not inner):
            raise ConfigError(_refusal(name))
        value = int(text) if name.endswith("_ms") and text.isascii() and text.isdigit() else text
        outer = after.get(field)
        after[field] = {**(outer if isinstance(outer, dict) else {}), inner: value} if inner else value
    for name in removed:
        if name in _AGREED:
            raise ConfigError(_refusal(name))
        field, _, inner = name.partition(".")
        outer = after.get(field)
        if inner and isinstance(outer, dict) and inner in outer:
            del outer[inner]
            if not outer:
                del after[field]
        elif not inner and field in after and field not in ("version", "rebalance"):
            del after[field]
        else:
            present = [each for each in _flat(before) if each not in _AGREED]
            raise ConfigError(
                f"{name:.80} is not set in the group's config; set there: {some(present, 20) or 'nothing'}"
            )
    return after


def _shown_agreed(settings: GroupConfig) -> str:
    return " ".join(f"{name}={getattr(settings, name)}" for name in _AGREED)


def _refusal(name: str) -> str:
    """Return the error text for a setting that cannot be set in a group's ``config``, with the way to set it."""
    if name in _AGREED:
        return (
            f"{name}: all members have to agree on it, so it cannot change while the group exists; start a new group"
            " with the new value, 'kiel-groups offsets copy' has it begin at the offsets of this one"
        )
    if name in _COMMANDS:
        return f"{name}: {_COMMANDS[name]} changes it"
    member_name = name.replace("debounce_", "debounce.")
    if member_name in _DEBOUNCE:
        return f"there is no setting {name!r}; did you mean {member_name!r}?"
    if name in _OF_MEMBERS:
        return (
            f"{name!r}: each member has its own; change the argument of its consumer, GroupedConsumer({name}=...), and"
            " restart that member"
        )
    near = get_close_matches(name, _SETTABLE, 1)
    meant = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(_SETTABLE)}"
    return f"there is no setting {name!r:.80}; {meant}"


def check_fields(found: Mapping[str, Any], path: str) -> DynamicConfig:
    """
    Check the fields of a group's ``config`` as the leader does.

    Raises:
        ConfigError: A field is invalid. The text names the field and the expected value.
    """
    try:
        return DynamicConfig.parse(encode_object(found), path)
    except ProtocolError as error:
        raise ConfigError(str(error.__cause__ or error)) from error


def newly_unowned(view: GroupView, before: Collection[Slot], after: Collection[Slot]) -> list[str]:
    """Return the topics that lose their last undrained subscriber by a change of the drained slots."""

    def served(drained: Collection[Slot]) -> set[str]:
        return {topic for each in view.members if each.slot not in drained for topic in each.subscription or ()}

    return sorted(served(before) - served(after))


def missing(view: GroupView, request_ms: int | None) -> str:
    """
    Return the reason why a group has not settled, as a text.

    The leader has not answered the request for a plan, partitions have not moved yet, or the group is in another state.
    Return "" if the group has settled, or has no members.

    Args:
        view: The group.
        request_ms: The time of the request for a plan that the leader must answer, in epoch milliseconds, or None if
            there is no request.
    """
    if not view.members:
        return ""
    answered = view.group_state.request_ms if view.group_state is not None else None
    if request_ms is not None and (answered is None or answered < request_ms):
        leader = f"the leader {short_name(view.leader)} has" if view.leader else "there is no leader that has"
        return f"{leader} not planned yet"
    if view.state == "settled":
        return ""
    moving = [each for each in view.partitions if each.owner != each.target]
    owners = sorted({short_name(each.owner) for each in moving if each.owner is not None})
    if not moving:
        return f"the group is {view.state}"
    still = f", still owned by {some(owners)}" if owners else ""
    return f"{counted(moving, 'partition has', 'partitions have')} not moved yet{still}"


def outcome(view: GroupView, slots: Collection[Slot]) -> str:
    """
    Return a text on the last plan of a settled group.

    The text has the number of moved partitions, or the reason why no partition has moved, and the numbers of partitions
    of up to four ``slots``.
    """
    if not view.members:
        return f"group {view.group} has no members any more"
    settled = f"group {view.group} has settled"
    if view.history and view.group_state is not None:
        newest = view.history[0]
        text = counted(newest.moved, "partition has moved", "partitions have moved")
        if not newest.moved and view.group_state.fallback:
            text = f"no partition has moved: {view.group_state.fallback}"
        elif not newest.moved and view.away:
            text = f"no partition has moved while {some(sorted(view.away))} is away, whose partitions are kept"
        elif not newest.moved and slots:  # Partitions without an owner do not count as moved.
            text = "no partition has moved from one member to another"
        elif not newest.moved:
            text = f"no partition has moved: by {view.group_state.allocator}, the allocation is right as it is"
        settled += f" at generation {newest.generation}: {text}"
    named = sorted((each.slot, len(each.owned)) for each in view.members if each.slot in slots)
    return "; ".join([settled, *(f"{slot} owns {counted(owned, 'partition')}" for slot, owned in named[:4])])


class Setting(NamedTuple):
    """
    An effective setting of a group, or of some of its members.

    ``value`` is None if the value is unknown. ``source`` is the source of the value, for people. ``members`` are the
    members that have this value, or empty if all members have it. ``change`` is the way to change the setting.
    """

    name: str
    value: Any
    source: str
    members: tuple[str, ...]
    change: str


_SET, _RESTART = "config set", "member restart"


def effective_settings(view: GroupView) -> tuple[Setting, ...]:
    """Return the effective settings of a group, its leader and its members, with their sources."""
    return (*_of_group(view), *_of_leader(view), *_of_members(view))


def _of_group(view: GroupView) -> Iterator[Setting]:
    for name in _AGREED:
        if view.settings is None:
            yield Setting(name, None, "unreadable config", (), "config set --replace")
        else:
            yield Setting(name, getattr(view.settings, name), "the first member", (), "another group")


def _of_leader(view: GroupView) -> Iterator[Setting]:
    """
    Yield the settings that the leader follows. If the group's ``config`` lacks a setting, the leader's own option
    applies.

    The leader's own options are unknown if the leader is an allocator process or the ``config`` is invalid. With an
    invalid ``config``, the leader follows the last valid ``config``. If the group has no leader, yield the next
    leader's settings. Values that depend on the next leader are unknown.
    """
    config = view.dynamic_config or DynamicConfig()
    leader = next((member for member in view.members if member.leads), None)
    own = "the leader" if view.leader is not None else "the next leader"
    if view.dynamic_config is None:
        leader, own = None, "the last valid config"
    for name in ("allocator", *_DEBOUNCE, "static_grace_ms"):
        value: Any = config.overrides.get(name)
        source = "config" if value is not None else own
        if value is None and name == "allocator":
            value = view.allocator or None
        elif value is None and leader is not None:
            value = leader.settings.get(name, _DEFAULTS[name])
            source = "the leader" if name in leader.settings else "default"
        yield Setting(name, value, source, (), _SET)
    for broker, rack in config.broker_racks:
        yield Setting(f"broker_racks.{broker}", rack, "config", (), _SET)
    if config.drained:
        yield Setting("drained", sorted(config.drained), "config", (), "drain, undrain")
    if view.weights:
        yield Setting("weights", counted(view.weights, "partition"), "weights", (), "weights set")


def _of_members(view: GroupView) -> Iterator[Setting]:
    """Yield the settings that members have of their own: an entry for each setting and each of its distinct values."""
    for name in _OF_MEMBERS:
        values: dict[Any, list[str]] = {}
        for member in view.members:
            unset = member.session_timeout_ms if name == "session_timeout_ms" else _DEFAULTS.get(name)
            values.setdefault(member.settings.get(name, unset), []).append(short_name(member.member_id))
        for value, members in values.items():
            source = "default" if value == _DEFAULTS.get(name) else "the member"
            source = "ZooKeeper" if name == "session_timeout_ms" else source
            if value is not None:
                yield Setting(name, value, source, tuple(members) if len(values) > 1 else (), _RESTART)


def settings_tables(settings: Iterable[Setting]) -> RenderableType:
    """Return the table of the effective settings."""
    columns = (
        Column[Setting]("setting", lambda each: each.name),
        Column[Setting]("value", lambda each: shown_value(each.value)),
        Column[Setting]("from", _source),
        Column[Setting]("change it by", lambda each: each.change),
    )
    return report_table(columns, settings)


def _source(setting: Setting) -> str:
    return setting.source + (f" of {some(setting.members)}" if setting.members else "")


def changes_table(changes: Iterable[SettingChange], heading: str = "setting") -> RenderableType:
    """Return a table of settings with their values before and after a change."""
    columns = (
        Column[SettingChange](heading, lambda each: each.name),
        Column[SettingChange]("before", lambda each: shown_value(each.before)),
        Column[SettingChange]("after", lambda each: shown_value(each.after)),
    )
    return report_table(columns, changes)


def shown_value(value: Any) -> str:
    """Return a value of a setting as a text of bounded length, or "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return some(map(str, value), 8) or "none"
    return f"{value:g}" if isinstance(value, float) else f"{value!s:.300}"


def change_document(group: str, changes: Iterable[SettingChange], owned: Mapping[Slot, int]) -> dict[str, Any]:
    """Return the document of a change. ``owned`` has the numbers of partitions of the drained or undrained slots."""
    return {
        "group": group,
        "members": [{"slot": slot, "owned": count} for slot, count in sorted(owned.items())],
        "changes": [{"setting": name, "before": before, "after": after} for name, before, after in changes],
    }


def settings_document(group: str, settings: Iterable[Setting]) -> dict[str, Any]:
    """
    Return the document of the effective settings.

    An unknown value is null. ``members`` is null if all members have the value.
    """
    return {
        "group": group,
        "settings": [
            {
                "setting": each.name,
                "value": each.value,
                "from": each.source,
                "members": list(each.members) or None,
                "change": each.change,
            }
            for each in settings
        ],
    }
