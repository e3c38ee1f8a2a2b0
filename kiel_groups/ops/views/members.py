"""Show the members of a group, of any client, as a document for programs and as a table for people."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from kiel_groups.config import CLIENT_ID
from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.layout import KIEL_GROUPS
from kiel_groups.model import Slot
from kiel_groups.ops.views.checks import short_name
from kiel_groups.ops.views.group_view import ForeignMember, GroupView, MemberView, PartitionView
from kiel_groups.ops.views.report import Listing, ago
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE
from kiel_groups.wording import counted, some

#: The kinds of clients that members may use.
OURS, JAVA, KIEL, OTHER = "kiel-groups", "java", "kiel", "other"

#: The names of foreign kinds in the table, and the client of our members that the table leaves out.
_KINDS = {JAVA: "Java", KIEL: "kiel", OTHER: "foreign"}
_USUAL = "tornado"

#: The consumer id of Kafka 0.8's Java consumer, after the group and a dash: host, milliseconds and a part of a UUID.
_JAVA_ID = re.compile(r"(?P<host>.+)-(?P<started_ms>\d{13})-[0-9a-f]{8}")


#: The fields of a member.
_FIELDS = (
    *("id", "instance_id", "kind", "client", "protocol_version", "host", "pid", "leads", "capacity", "rack"),
    *("partitions", "assigned", "session_timeout_ms", "started_at", "drained"),
)


def members_document(view: GroupView) -> dict[str, Any]:
    """
    Return the document of a group's live members, including the members of other clients.

    ``kind`` is ``kiel-groups``, ``java``, ``kiel`` or ``other``. ``partitions`` is the number of partitions that the
    member owns. ``assigned`` is the number of partitions that the plan assigns to the member. Unknown values are null:
    a coordinator does not return the kinds of members, and a plan may not include every member.
    """
    owned = Counter(partition.owner for partition in view.partitions)
    return {
        "group": view.group,
        "type": view.protocol_type,
        "state": view.state,
        "allocator": view.allocator or None,
        "members": [
            *(_member(view, member) for member in view.members),
            *(_foreign(view.group, member, owned[member.name]) for member in view.foreign_members),
        ],
    }


def _member(view: GroupView, member: MemberView) -> dict[str, Any]:
    is_ours = view.coordinator is None or view.allocator.startswith("kiel-") or member.client == CLIENT_ID
    is_known = view.is_of_consumers and member.subscription is not None
    assigned = member.owned if view.coordinator is not None else member.target
    drained = () if view.dynamic_config is None else view.dynamic_config.drained
    return {
        "id": member.member_id,
        "instance_id": member.instance_id,
        "kind": OURS if is_ours else None,
        "client": member.client,
        "protocol_version": member.protocol_version,
        "host": member.host,
        "pid": member.pid,
        "leads": member.leads,
        "capacity": member.settings.get("capacity", 1.0) if view.coordinator is None and is_known else None,
        "rack": member.settings.get("rack"),
        "partitions": len(member.owned) if is_known else None,
        "assigned": None if assigned is None or not is_known else len(assigned),
        "session_timeout_ms": member.session_timeout_ms,
        "started_at": member.started_at_ms,
        "drained": member.slot in drained,
    }


def _foreign(group: str, member: ForeignMember, owned: int) -> dict[str, Any]:
    found = dict.fromkeys(_FIELDS) | {"id": member.name, "kind": KIEL, "leads": False, "drained": False}
    if member.path.startswith(f"{KIEL_GROUPS}/"):  # Such members claim no partitions.
        return found
    java = _JAVA_ID.fullmatch(member.name.removeprefix(f"{group}_"))
    found |= {"kind": JAVA if java else OTHER, "partitions": owned}
    return found | ({"host": java["host"], "started_at": int(java["started_ms"])} if java else {})


def all_members(view: GroupView) -> tuple[MemberView, ...]:
    """
    Return the live members of a group, followed by the members of other clients in the same form.

    ``client`` of a member of another client is ``Java``, ``kiel`` or ``foreign``, and ``host`` is "" if it is unknown.
    """
    owned: dict[str | None, list[PartitionView]] = defaultdict(list)
    for partition in view.partitions if view.foreign_members else ():
        owned[partition.owner].append(partition)
    found = (_foreign(view.group, member, len(owned[member.name])) for member in view.foreign_members)
    foreign = (
        MemberView(each["id"], _KINDS[each["kind"]], each["host"] or "", None, tuple(owned[each["id"]]))
        for each in found
    )
    return (*view.members, *foreign)


def members_report(document: Mapping[str, Any], place: str, now_ms: int) -> list[RenderableType]:
    """
    Return a heading and a table of the document of ``members_document``. Columns without a value are left out.

    The table is left out if the group has no members.

    Args:
        document: The document.
        place: The cluster, as "in ZooKeeper at z:2181/x" or "at brokers b:9092".
        now_ms: Epoch milliseconds, for ages.
    """
    members = document["members"]
    allocator = f", allocator {document['allocator']}" if document["allocator"] else ""
    is_hidden = not members and document["state"] == "unreadable"
    number = "? members" if is_hidden else counted(members, "member")
    title = f"group {document['group']} {place}: {number}, {document['state']}{allocator}"
    columns: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("member", _name),
        ("instance", lambda member: member["instance_id"] or ""),
        ("client", _client),
        ("host", lambda member: member["host"] or ""),
        ("owns", _share),
        ("capacity", lambda member: "" if member["capacity"] in (None, 1) else f"{member['capacity']:g}"),
        ("rack", lambda member: member["rack"] or ""),
        ("timeout", lambda member: _seconds(member["session_timeout_ms"])),
        ("joined", lambda member: ago(member["started_at"], now_ms)),
        ("drained", lambda member: "drained" if member["drained"] else ""),
    ]
    if all(_client(member) == "ours" for member in members):
        columns = [each for each in columns if each[0] != "client"]
    if document["type"] not in ("", PROTOCOL_TYPE):
        columns = [each for each in columns if each[0] != "owns"]
    texts = [(heading, [f"{text_of(member):.120}" for member in members]) for heading, text_of in columns]
    return [Text(title, style="bold"), *([Listing([each for each in texts if any(each[1])])] if members else [])]


def _name(member: Mapping[str, Any]) -> str:
    name: str = member["id"] if member["kind"] in (KIEL, OTHER) else short_name(member["id"])
    return f"{name} leads" if member["leads"] else name


def _client(member: Mapping[str, Any]) -> str:
    """
    Return the member's client with its protocol version if the version is known, else the client's kind, else its name.
    """
    client, version = member["client"] or "", member["protocol_version"]
    if version is not None:
        return f"{client}, protocol {version}"
    if member["kind"] == OURS:
        return "ours" if client in ("", _USUAL) else f"ours, {client}"
    return _KINDS.get(member["kind"], client)


def _share(member: Mapping[str, Any]) -> str:
    owned, assigned = member["partitions"], member["assigned"]
    if owned is None:
        return "?"
    return str(owned) if assigned in (None, owned) else f"{owned} → {assigned}"


def _seconds(milliseconds: int | None) -> str:
    return "" if milliseconds is None else f"{milliseconds / 1000:g} s"


def find_slots(
    group: str,
    ids: Mapping[Slot, Collection[str]],
    hosts: Mapping[Slot, str],
    names: Iterable[str] = (),
    host: str | None = None,
) -> set[Slot]:
    """
    Return the slots of the members that an operator selects by name or by host.

    Args:
        group: The group's name, for errors.
        ids: The slot and the member id of each member, by slot.
        hosts: The host of each live member, by slot.
        names: Member ids, the session ids at their ends, or instance ids.
        host: A host whose members are all selected, in addition to ``names``.

    Raises:
        ConfigError: A name or the host fits no member, or a name fits several members.
    """
    if not ids and (host or names):
        raise ConfigError(f"group {group} has no members")
    found = {slot for slot, its in hosts.items() if host and its == host}
    if host and not found:
        near = get_close_matches(host, hosts.values(), 1)
        known = some(sorted(set(hosts.values())), 10)
        meant = f"did you mean {near[0]!r}?" if near else f"there are members at {known}" if known else "none is alive"
        raise ConfigError(f"group {group} has no member at host {host!r:.80}; {meant}")
    for name in names:
        exact = {slot for slot, own in ids.items() if name in own}
        fitting = exact or {slot for slot, own in ids.items() if any(each.endswith(f"-{name}") for each in own)}
        if not fitting:
            meant = (
                f"it is a host: give host={name!r}"
                if name in hosts.values()
                else f"its members are {some(sorted(ids))}"
            )
            raise ConfigError(f"group {group} has no member {name!r:.80}; {meant}")
        if len(fitting) > 1:
            raise ConfigError(
                f"member {name!r} of group {group} may be {' or '.join(sorted(fitting))}; give the whole id"
            )
        found |= fitting
    return found
