"""Find the problems of a cluster's servers, and of the znodes of groups. ``checks`` has the other rules on groups."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rich.text import Text

from kiel_groups.config import HostPort
from kiel_groups.group.cluster_identity import ClusterIdentity
from kiel_groups.group.znodes.contents import (
    Snapshot,
)
from kiel_groups.group.znodes.layout import (
    CONSUMERS,
    ROOT,
    TOPICS,
    GroupLayout,
)
from kiel_groups.ops.views.checks import Finding, check_group
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.report import Sentences, finding_rows
from kiel_groups.wording import counted, some


class Check(NamedTuple):
    """The result of a check: the name of its subject, a text about the subject's state, and the subject's problems."""

    subject: str
    text: str
    findings: tuple[Finding, ...] = ()


def check_lines(check: Check) -> Sentences:
    """Render a check as a line of text, with its problems and their remedies below this line."""
    word = Text("wrong", "bold red") if check.findings else Text("ok   ", "green")
    text = f"{check.subject}: {check.text}" if check.text else check.subject
    return Sentences([(word, text), *finding_rows(check.findings, lambda _: Text())])


# The servers.


#: The session timeout that is asked for: the default of members, in milliseconds.
ASKED_MS = 10_000

#: The problems of a server that runs, and with which a client agrees on no protocol or no credentials; their remedy.
_OF_SECURITY = re.compile(r"certificate|TLS|SASL|it refuses|security\.rst")
_SECURITY_REMEDY = "give --security a file that fits, or correct the server's certificate (docs/security.rst)"


class ServerAnswer(NamedTuple):
    """
    The answers of one ZooKeeper server.

    ``problem`` is the reason why the server opens no session, or "". ``version`` and ``mode`` are "" if the server does
    not answer ``srvr``, because its ``4lw.commands.whitelist`` lacks this command. ``granted_ms`` is the session
    timeout that the server grants to a client that requests ``ASKED_MS``. ``least_ms`` and ``most_ms`` are the shortest
    and the longest session timeout that the server grants. ``is_stranger`` is whether the server belongs to another
    ensemble than the first server.
    """

    address: HostPort
    problem: str = ""
    version: str = ""
    mode: str = ""
    granted_ms: int = 0
    least_ms: int = 0
    most_ms: int = 0
    is_stranger: bool = False


def check_server(server: ServerAnswer) -> Check:
    """Check that a ZooKeeper server opens sessions."""
    subject = f"ZooKeeper {server.address}"
    if server.problem:
        text = f"ZooKeeper's server {server.address} does not serve: {server.problem}"
        remedy = "start it, or look at its log: without a majority of its ensemble, a server opens no session"
        remedy = _SECURITY_REMEDY if _OF_SECURITY.search(server.problem) else remedy
        return Check(subject, "does not serve", (Finding("unreachable", text, remedy),))
    version = server.version or "version unknown ('srvr' is not whitelisted)"
    granted = f"{_seconds(server.granted_ms)} granted to members that ask for {_seconds(ASKED_MS)}"
    limits = f"{_seconds(server.least_ms)} to {_seconds(server.most_ms)} possible"
    return Check(subject, f"{version}{f', {server.mode}' if server.mode else ''}; sessions: {granted}, {limits}")


def check_ensemble(servers: Sequence[ServerAnswer]) -> Check:
    """Check that all servers that open sessions belong to one ensemble."""
    serving = [each for each in servers if not each.problem]
    strangers = [str(each.address) for each in serving if each.is_stranger]
    findings: tuple[Finding, ...] = ()
    if strangers:
        text = f"{some(strangers)}: of another ensemble than {serving[0].address}, whose sessions are not known there"
        remedy = "give the servers of one ensemble: members of two ensembles both own all partitions"
        findings = (Finding("ensembles", text, remedy),)
    return Check("ensemble", counted(serving, "server serves", "servers serve"), findings)


def check_chroot(
    hosts: str, chroot: str, registered: int, elsewhere: Mapping[str, int], *, exists: bool = True
) -> Check:
    """
    Check that brokers are registered below the chroot.

    Args:
        hosts: The servers, without the chroot.
        chroot: The chroot, or "".
        registered: The number of brokers that are registered below the chroot.
        elsewhere: The numbers of brokers that are registered below other paths, by path.
        exists: Whether the chroot exists.
    """
    subject = f"chroot {chroot or '/'}"
    if registered:
        return Check(subject, counted(registered, "broker is registered", "brokers are registered"))
    what = f"no broker is registered below {chroot or '/'}" if exists else f"the chroot {chroot} does not exist"
    if elsewhere:
        places = some(f"{counted(count, 'broker')} below {path or '/'}" for path, count in sorted(elsewhere.items()))
        remedy = some((f"give --zookeeper {hosts}{path}" for path in sorted(elsewhere)), 1)
        return Check(subject, "no broker", (Finding("chroot", f"{what}; elsewhere: {places}", remedy),))
    remedy = "start the brokers; if they are running, their zookeeper.connect names other servers"
    return Check(subject, "no broker", (Finding("brokerless", what, remedy),))


class BrokerAnswer(NamedTuple):
    """
    The answers of the broker at one address.

    ``name`` is the broker's name for people, with the broker's id if it is registered in ZooKeeper. ``problem`` is the
    reason why the broker does not answer, or "". ``release`` is a text with the releases of Kafka that the broker may
    have, or "" if unknown. ``is_too_new`` is whether the broker refuses the requests of this package. ``identity`` is
    the cluster's identity as this broker reports it, or None if the broker does not answer.
    """

    name: str
    problem: str = ""
    release: str = ""
    is_too_new: bool = False
    identity: ClusterIdentity | None = None


def check_broker(broker: BrokerAnswer, cluster: ClusterIdentity, place: str = "ZooKeeper") -> Check:
    """
    Check that a broker answers, belongs to the cluster, and is not too new.

    Args:
        broker: The broker's answers.
        cluster: The identity of the cluster.
        place: The source of the cluster's identity, for people.
    """
    if broker.problem:
        remedy = "start it; if it is running, its advertised address cannot be reached from this host"
        remedy = _SECURITY_REMEDY if _OF_SECURITY.search(broker.problem) else remedy
        finding = Finding("unreachable", f"{broker.name} does not answer: {broker.problem}", remedy)
        return Check(broker.name, "does not answer", (finding,))
    findings = []
    named = broker.identity if broker.identity is not None else ClusterIdentity({})

    def worded(text: str) -> str:
        text = text.replace("ZooKeeper", place).replace("the brokers have", "this one has")
        return text.replace("the brokers name", "this one names")

    if difference := cluster.difference(named):
        remedy = "give servers of one cluster; a consumer refuses these when it starts"
        text = f"{broker.name} is of another cluster: {worded(difference)}"
        findings.append(Finding("other-cluster", text, remedy))
    elif doubt := cluster.doubt(named):
        remedy = "give an address that is registered; a broker that has just started may not know its cluster yet"
        text = f"it is not known whether {broker.name} is of the same cluster: {worded(doubt)}"
        findings.append(Finding("unknown-cluster", text, remedy))
    if broker.is_too_new:
        remedy = "this version of kiel-groups reads from Kafka 0.8 to 3.9"
        findings.append(Finding("too-new", f"{broker.name} does not know the fetch requests of Kafka 0.8", remedy))
    is_odd = cluster.may_differ(named) and not findings
    aside = "; it names other addresses than those registered, as behind a proxy" if is_odd else ""
    return Check(broker.name, (broker.release or "release unknown") + aside, tuple(findings))


#: How far the time of a znode may be in the future before the clocks count as different, in milliseconds.
_CLOCK_MS = 5_000


def check_clock(newest_ms: int, now_ms: int) -> Check:
    """
    Check that this host's clock is not behind ZooKeeper's clock.

    Without a write to ZooKeeper, a clock that is ahead cannot be found.

    Args:
        newest_ms: The time by ZooKeeper's clock at which the newest znode was written, in epoch milliseconds; 0 if no
            znode was read.
        now_ms: The time by this host's clock after the znodes were read, in epoch milliseconds.
    """
    late_ms = newest_ms - now_ms
    if late_ms > _CLOCK_MS:
        finding = Finding(
            "clock",
            f"ZooKeeper wrote a znode {_seconds(late_ms)} in the future of this host's clock",
            "synchronise the clocks (NTP) of this host and of ZooKeeper's servers: ages that commands show are wrong",
        )
        return Check("clock", "differs from ZooKeeper's", (finding,))
    if newest_ms <= 0:
        return Check("clock", "not compared with ZooKeeper's: no znode was read")
    # A clock that is ahead looks like a cluster in which nothing has been written for as long.
    age = _seconds(max(0, -late_ms))
    return Check("clock", f"not behind ZooKeeper's; if it is ahead, by less than the {age} since the newest znode")


def _seconds(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


# What several groups share.


#: The largest size of a znode, or of a list of names, in bytes, unless servers and clients set ``jute.maxbuffer``; and
#: the fraction of this size from which on a znode is reported.
_ROOM, _FULL = 1 << 20, 0.8


def check_shared(names: Mapping[str, Collection[str]], granted: Rights) -> Check:
    """
    Check the sizes and the ACLs of the znodes that all groups share.

    Args:
        names: The names of the children of each path. The names of one path's children must fit into one answer of
            ZooKeeper.
        granted: The rights that the ACLs of the root, and of the parents of all groups, give to everyone.
    """
    needed = dict.fromkeys((ROOT, CONSUMERS), _READ | _CREATE)
    if not needed.keys() <= granted.keys():
        needed["/"] = _CREATE
    sizes = {path: _size_of_names(below) for path, below in names.items()}
    listed = ", ".join(sorted(sizes))
    return Check("shared znodes", f"sizes and ACLs of {listed}", (*_full(sizes), *check_rights(needed, granted)))


def _size_of_names(names: Iterable[str]) -> int:
    """Return the size of a list of names in ZooKeeper's answer, in bytes. The answer has a length before each name."""
    return sum(len(name.encode()) + 4 for name in names)


def _full(sizes: Mapping[str, int]) -> Iterator[Finding]:
    full = {path: size for path, size in sizes.items() if size >= _ROOM * _FULL}
    if full:
        listed = some(f"{path} ({size / _ROOM:.0%})" for path, size in sorted(full.items()))
        yield Finding(
            "nearly-full",
            f"{counted(full, 'znode is', 'znodes are')} nearly as large as ZooKeeper permits (1 MiB): {listed}",
            "what does not fit is refused: divide the topics among more groups or more members, and delete dead groups"
            " ('kiel-groups groups delete')",
        )


#: The rights to znodes, by path: the sum of ZooKeeper's numbers of the rights.
Rights: TypeAlias = Mapping[str, int]

_READ, _WRITE, _CREATE, _DELETE = 1, 2, 4, 8
_LETTERS = ((_CREATE, "c"), (_DELETE, "d"), (_READ, "r"), (_WRITE, "w"))
_FOLDER = _READ | _CREATE | _DELETE


def rights_needed(group: str, paths: Collection[str]) -> dict[str, int]:
    """Return the rights that members need to a group's znodes. Znodes that are not in ``paths`` are left out."""
    layout = GroupLayout(group)
    needed = dict.fromkeys((*layout.parents, layout.starts, layout.history), _FOLDER)
    needed |= {layout.group_state: _FOLDER | _WRITE, layout.config: _READ, layout.weights: _READ}
    parents = (f"{layout.owners}/", f"{layout.offsets}/")
    needed |= {path: _FOLDER for path in paths if path.startswith(parents) and path.count("/") == 4}
    return {path: rights for path, rights in needed.items() if path in paths}


def check_rights(needed: Rights, granted: Rights) -> Iterator[Finding]:
    """Yield the finding about znodes whose ACL gives members too few rights. Only znodes in ``granted`` are checked."""
    lacking = {path: rights for path, rights in granted.items() if needed.get(path, 0) & ~rights}
    if lacking:
        listed = some(f"{path} (anyone: {_letters(rights) or 'nothing'})" for path, rights in sorted(lacking.items()))
        mixed = f"of {len(granted):,} " if len(lacking) < len(granted) else ""
        yield Finding(
            "acl",
            f"ACLs of {counted(lacking, 'znode')} {mixed}keep members from reading or writing: {listed}",
            "give --security with the members' credentials (docs/security.rst); or, if the group is to be open, zkCli:"
            f" setAcl {min(lacking)} world:anyone:cdrwa, for each",
        )


def _letters(rights: int) -> str:
    return "".join(letter for right, letter in _LETTERS if rights & right)


def check_mixed(in_zookeeper: Iterable[GroupView], by_brokers: Iterable[GroupView]) -> Iterator[Finding]:
    """Yield a finding for each group name with members in ZooKeeper and other members that brokers coordinate."""
    live = {view.group: len(view.members) for view in by_brokers if view.members}
    for view in in_zookeeper:
        # Workers that brokers coordinate have znodes for other purposes.
        size = len(view.members) + len(view.foreign_members)
        if size and view.group in live:
            yield Finding(
                "mixed",
                f"the group {view.group} has {counted(size, 'member')} in ZooKeeper, and"
                f" {counted(live[view.group], 'member')} that brokers coordinate",
                "they read the same partitions, and commit to different places: stop those of one kind, or give them"
                " another group",
            )


# The znodes of a group.


#: The kinds of findings about the progress of a group. The commands 'describe' and 'verify' show them.
_OF_PROGRESS = frozenset(
    {
        *("unconsumed", "unplanned", "publishing", "unassigned", "away", "unowned", "wrongly-owned", "unopened"),
        # ``gone-offsets`` reports the offsets that certainly have no use.
        "orphan-offsets",
        *("beyond-end", "idle", "rebalancing", "missing-offset", "stuck"),
    }
)


def check_znodes(view: GroupView, znodes: Snapshot, now_ms: int) -> Iterator[Finding]:
    """
    Yield the findings about a group that do not depend on its members' progress.

    Args:
        view: The view of the group.
        znodes: The znodes of the group and of its topics, as ``read_group`` returns them. A group that brokers
            coordinate has no znodes.
        now_ms: The present time in epoch milliseconds.
    """
    for finding in check_group(view, now_ms):
        if not finding.passing and finding.kind not in _OF_PROGRESS:
            yield finding
    yield from _persistent(view, znodes)
    yield from _full(_sizes(znodes))


def _persistent(view: GroupView, znodes: Snapshot) -> Iterator[Finding]:
    """Yield the finding about znodes of members, owners and orders that are persistent instead of ephemeral."""
    layout = GroupLayout(view.group)
    folders = {layout.members: 4, layout.election: 4, layout.ids: 4, layout.owners: 5, layout.orders: 4}
    found = [
        path
        for path, znode in sorted(znodes.items())
        if not znode.session
        and not znode.closed
        and any(path.startswith(f"{folder}/") and path.count("/") == depth for folder, depth in folders.items())
    ]
    if found:
        what = counted(found, "znode of a member, owner or order is", "znodes of members, owners or orders are")
        yield Finding(
            "not-ephemeral",
            f"{what} not ephemeral, so no session ends with it: {some(found)}",
            f"written by hand or restored from a backup; delete each (zkCli: delete {found[0]})",
        )


def _sizes(znodes: Snapshot) -> dict[str, int]:
    """Return the size of each znode, in bytes: the size of its data or of its children's names, whichever is larger."""
    below: dict[str, int] = defaultdict(int)
    for path in znodes:
        if not path.startswith(f"{TOPICS}/"):
            below[path.rpartition("/")[0]] += _size_of_names([path.rpartition("/")[2]])
    return {path: max(len(znode.data), below.get(path, 0)) for path, znode in znodes.items()}


def lasting(first: Iterable[Finding], second: Iterable[Finding]) -> tuple[Finding, ...]:
    """
    Return the findings of the second read that the first read also had.

    The znodes of a group are read one after the other. So a member that joins or leaves during a read may look wrong
    in this read.
    """

    def key(finding: Finding) -> tuple[Any, ...]:
        return (finding.kind, finding.members, finding.partitions)

    known = set(map(key, first))
    return tuple(finding for finding in second if key(finding) in known)
