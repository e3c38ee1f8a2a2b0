"""Planned changes of a group's ``config``: who may be drained, what is kept, and when a change is answered."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from kazoo.exceptions import BadVersionError, NoNodeError

from kiel_groups.errors import ConfigError, ConflictError, CoordinationError
from kiel_groups.group.znodes.contents import MemberAssignment, MemberInfo, Snapshot, Znode
from kiel_groups.group.znodes.round_contents import Offer, RoundMember
from kiel_groups.ops.actions import group_config
from kiel_groups.ops.actions.group_config import (
    ConfigChange,
    await_settled,
    plan_drain,
    plan_rebalance,
    plan_settings,
    plan_undrain,
)
from kiel_groups.rest.calls import refusal_of
from tests.helpers.group_snapshots import HEALTHY, PARTITIONS, A, B, config, plan, without

pytestmark = pytest.mark.unit

CONFIG = "/kiel-groups/g/config"
#: The id of a member that is gone.
GONE = "g_host-1700000000000-cccc"


class Read(NamedTuple):
    """A read that is done, as kazoo's asynchronous calls return it."""

    value: Any

    def get(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class FakeClient:
    """A client of kazoo with these znodes; ``config`` has version 5. Each write of it is kept in ``written``."""

    connected = True

    def __init__(self, znodes: Snapshot) -> None:
        self.znodes = dict(znodes)
        self.written: list[dict[str, Any]] = []

    def get(self, path: str) -> Any:
        return self.get_async(path).get()

    def get_children(self, path: str) -> Any:
        return self.get_children_async(path).get()

    def get_async(self, path: str) -> Read:
        parents = {each.rpartition("/")[0] for each in self.znodes}
        if path not in self.znodes and path not in {
            "/".join(each.split("/")[:n]) for each in parents for n in range(9)
        }:
            return Read(NoNodeError())
        znode = self.znodes.get(path, Znode())
        return Read((znode.data, _Stat(len(self.get_children(path)), znode.session)))

    def get_children_async(self, path: str) -> Read:
        return Read(
            sorted({each[len(path) + 1 :].split("/")[0] for each in self.znodes if each.startswith(f"{path}/")})
        )

    def set(self, path: str, data: bytes, version: int) -> None:
        assert path == CONFIG
        if version != 5 + len(self.written):
            raise BadVersionError
        self.written.append(json.loads(data))
        self.znodes[path] = Znode(data)


class _Stat:
    """The fields of a stat that readers use."""

    version, ctime, mtime, czxid, mzxid = 5, 0, 0, 0, 0

    def __init__(self, children: int, session: int) -> None:
        self.numChildren = children
        self.ephemeralOwner = session


def client_of(znodes: Snapshot = HEALTHY) -> Any:
    return FakeClient(znodes)


def drained_after(change: ConfigChange) -> object:
    assert change.after is not None
    return change.after.get("drained")


def test_a_drain_names_the_slots_and_asks_for_a_plan() -> None:
    """The change keeps all other fields, counts what the member owns, and is written on its version only."""
    client = client_of({**HEALTHY, CONFIG: config(static_grace_ms=5, later=1)})
    change = plan_drain(client, "g", "aaaa")
    assert change.changes == (("drained", None, [A]),)
    assert (change.owned, change.version) == ({A: 2}, 5)
    change.apply(client)
    (written,) = client.written
    assert written.pop("rebalance") == {"at": change.request_ms, "reason": f"drain of {A}"}
    assert written == json.loads(config(static_grace_ms=5, later=1).data) | {"drained": [A]}
    with pytest.raises(ConflictError, match="was changed meanwhile, so nothing was written") as refused:
        change.apply(client)
    answer = refusal_of(refused.value)
    assert (answer.status, answer.headers) == (409, {"Retry-After": "1"})


def test_a_static_member_is_drained_by_its_instance_id() -> None:
    """Its next session has another member id. An instance that is away can be drained, too."""
    info = MemberInfo(member_id=B, session_timeout_ms=1, subscription=("t",), instance_id="two", host="b")
    static = {**HEALTHY, f"/kiel-groups/g/members/{B}": Znode(info.encode(), 0xBBBB)}
    for name in ("two", B, "bbbb"):
        assert drained_after(plan_drain(client_of(static), "g", name)) == ["two"]
    assert drained_after(plan_drain(client_of(static), "g", host="b")) == ["two"]
    away = Znode(MemberAssignment(4, B, frozenset(PARTITIONS[2:]), away_since_ms=1).encode())
    gone = {**without(f"/kiel-groups/g/members/{B}"), "/kiel-groups/g/allocation/two": away}
    assert drained_after(plan_drain(client_of(gone), "g", "two")) == ["two"]


def test_ids_of_departed_members_are_forgotten_at_the_next_write() -> None:
    """No later member has such an id. An instance id stays, because its member starts again under it."""
    client = client_of({**HEALTHY, CONFIG: config(drained=["shelf", GONE])})
    assert drained_after(plan_drain(client, "g", A)) == [A, "shelf"]
    assert drained_after(plan_settings(client, "g", {"static_grace_ms": "7"})) == ["shelf"]
    assert drained_after(plan_undrain(client, "g", "shelf")) is None


def test_a_drain_that_leaves_a_topic_without_members_is_refused() -> None:
    """Unless the caller wants it: its partitions would have no owner."""
    half = {**HEALTHY, CONFIG: config(drained=[A])}
    with pytest.raises(ConfigError, match=r"of group g that subscribes to t would be drained: .* by leave_unowned"):
        plan_drain(client_of(half), "g", B)
    with pytest.raises(ConfigError, match="that subscribes to t would be drained"):
        plan_drain(client_of(), "g", host="host")
    assert drained_after(plan_drain(client_of(half), "g", B, leave_unowned=True)) == [A, B]


def test_what_is_as_wanted_is_not_written() -> None:
    """A repeated drain has nothing to write, but the request of the first one to wait for."""
    request = {"at": 7, "reason": "drain"}
    change = plan_drain(client_of({**HEALTHY, CONFIG: config(drained=[A], rebalance=request)}), "g", A)
    assert (change.changes, change.after, change.request_ms) == ((), None, 7)
    assert plan_settings(client_of(), "g", {"allocator": "sticky"}).after is not None
    client = client_of({**HEALTHY, CONFIG: config(allocator="sticky")})
    assert plan_settings(client, "g", {"allocator": "sticky"}).after is None


def test_a_later_request_has_a_later_time() -> None:
    """Even if the clock of its maker is behind that of an earlier one."""
    future = 10**15
    client = client_of({**HEALTHY, CONFIG: config(rebalance={"at": future, "reason": "x"})})
    change = plan_rebalance(client, "g", reason="disks")
    assert (change.request_ms, change.changes) == (future + 1, ())
    assert change.after is not None
    assert change.after["rebalance"] == {"at": future + 1, "reason": "disks"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"member": "nobody"}, "group g has no member 'nobody'; its members are "),
        ({"member": "host"}, "group g has no member 'host'; it is a host: give host='host'"),
        ({"host": "hos"}, "group g has no member at host 'hos'; did you mean 'host'?"),
        ({"host": "elsewhere"}, "group g has no member at host 'elsewhere'; there are members at host"),
    ],
)
def test_an_unknown_member_or_host_is_refused(given: dict[str, str], message: str) -> None:
    """The error says where the members are."""
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        plan_drain(client_of(), "g", **given)  # type: ignore[arg-type]


def test_other_mistakes_are_refused() -> None:
    """Each error says what to do."""
    with pytest.raises(ConfigError, match=f"{A} is not drained; drained in group g: shelf"):
        plan_undrain(client_of({**HEALTHY, CONFIG: config(drained=["shelf"])}), "g", A)
    with pytest.raises(ConfigError, match="no member of kiel-groups was ever in it"):
        plan_rebalance(client_of({}), "g")
    with pytest.raises(ConfigError, match=r"group g has no members$"):
        plan_drain(client_of({CONFIG: HEALTHY[CONFIG]}), "g", host="host")
    with pytest.raises(ConfigError, match="group g has no members now"):
        plan_rebalance(client_of({CONFIG: HEALTHY[CONFIG]}), "g")
    with pytest.raises(ConfigError, match=r"reason: 'a.*b' given; expected 1 to 200 printable"):
        plan_rebalance(client_of(), "g", reason="a\nb")
    refused = client_of({**HEALTHY, CONFIG: config(drained=[A], static_grace_ms=-1)})
    with pytest.raises(
        ConfigError, match=r"the leader refuses .* static_grace_ms: -1 .*'kiel-groups config unset g FIE"
    ):
        plan_drain(refused, "g", A)
    assert plan_settings(refused, "g", {}, ["static_grace_ms"]).changes == (("static_grace_ms", -1, None),)


AGREED = {"store": "broker-v1", "mode": "cooperative", "auto_offset_reset": "latest"}


def test_an_unreadable_config_is_replaced_on_demand() -> None:
    """No member can read it, so the operator names what all members agree on. What is lost is shown, bounded."""
    garbage = b"\x00\xff" * 1_000
    client = client_of({**HEALTHY, CONFIG: Znode(garbage)})
    for planned in (plan_settings, plan_drain):
        with pytest.raises(ConfigError, match=r"g cannot be read: .* 'kiel-groups config set g --replace' replaces it"):
            planned(client, "g", {"allocator": "sticky"} if planned is plan_settings else A)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=r"--replace: give store, auto_offset_reset, too, .* store=zookeeper mode="):
        plan_settings(client, "g", {"mode": "cooperative"}, replace=True)
    with pytest.raises(ConfigError, match="store: 'disk' given; expected 'zookeeper' or "):
        plan_settings(client, "g", AGREED | {"store": "disk"}, replace=True)
    change = plan_settings(client, "g", AGREED | {"allocator": "sticky"}, replace=True)
    assert (change.lost, change.is_live) == (garbage, True)
    assert change.changes[0] == ("config", f"{garbage[:60]!r}, 2,000 bytes", None)
    change.apply(client)
    (written,) = client.written
    assert written.pop("rebalance")["reason"].startswith("config store=broker-v1, mode=")
    assert written == AGREED | {"version": 1, "allocator": "sticky"}
    with pytest.raises(ConfigError, match="members can read the config of group g; change it without --replace"):
        plan_settings(client, "g", AGREED, replace=True)


def test_what_can_be_read_of_a_config_stays() -> None:
    """Of a JSON object that lacks a setting. The members of a group of programs write their own config."""
    partial = {**HEALTHY, CONFIG: Znode(b'{"store":"zookeeper","drained":["shelf"]}')}
    change = plan_settings(client_of(partial), "g", AGREED, replace=True)
    assert change.after is not None
    assert change.after["drained"] == ["shelf"]
    assert ("store", "zookeeper", "broker-v1") in change.changes
    assert all(each.name != "config" for each in change.changes)
    program = Znode(RoundMember(member_id="p-1-aaaa", joined=0, offer=Offer("numbers", ())).encode(), 0xAAAA)
    programs = {CONFIG: Znode(b"?"), "/kiel-groups/g/members/p-1-aaaa": program}
    with pytest.raises(ConfigError, match="the members of group g are programs"):
        plan_settings(client_of(programs), "g", AGREED, replace=True)


def test_a_wait_ends_when_the_leader_has_answered_and_all_members_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of what is missing is reported once."""
    client, reports = client_of(), []

    def sleep(_: float) -> None:
        if len(reports) == 1:
            client.znodes["/kiel-groups/g/allocation"] = plan(generation=5, request_ms=9)
            client.znodes[f"/kiel-groups/g/allocation/{A}"] = Znode(MemberAssignment(5, A, frozenset()).encode())
            everything = MemberAssignment(5, B, frozenset(PARTITIONS))
            client.znodes[f"/kiel-groups/g/allocation/{B}"] = Znode(everything.encode())
        elif len(reports) == 2:
            client.znodes |= {f"/consumers/g/owners/t/{number}": Znode(f"{B}-0".encode()) for number in range(2)}

    view = await_settled(client, "g", 9, timeout_s=60, report=reports.append, sleep=sleep)
    assert view.state == "settled"
    assert reports == ["the leader aaaa has not planned yet", "2 partitions have not moved yet, still owned by aaaa"]


def test_a_wait_that_is_too_long_says_what_is_missing() -> None:
    """A group whose members have all left has nothing to wait for. A broken connection ends the wait."""
    with pytest.raises(CoordinationError, match="did not settle within 0 s: the leader aaaa has not planned yet"):
        await_settled(client_of(), "g", 9, timeout_s=0)
    assert not await_settled(client_of({CONFIG: HEALTHY[CONFIG]}), "g", 9, timeout_s=0).members
    client = client_of()
    client.connected = False
    with pytest.raises(CoordinationError, match="the connection to ZooKeeper broke"):
        await_settled(client, "g", 9, timeout_s=0)
    assert group_config.await_settled(client_of(), "g", None, timeout_s=0).state == "settled"
