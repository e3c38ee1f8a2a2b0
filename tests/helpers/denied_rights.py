"""
Take one right at one znode away from each of many groups, and check what a role says and does in each of them.

The znodes are those of a control group. What the role needs of each of them is recorded from its requests in the
control group, so no table of outcomes is written by hand: a role that needs the right says so in one line, which names
the znode and the right, and a role that does not need it works as before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, Permissions, make_digest_acl, make_digest_acl_credential

from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.zookeeper.kazoo_client import InterruptibleClient, SecuredClient
from kiel_groups.zookeeper.rights import right_of
from kiel_groups.zookeeper.tasks import AUDIT_JITTER
from tests.helpers.waiting import within

__all__ = [
    "ADMIN",
    "RIGHTS",
    "ROLE",
    "DeniedRights",
    "Need",
    "Role",
    "acl_without",
    "needs_of",
    "persistent",
    "security_file",
]

#: The users. Each has its name as its password.
ROLE, ADMIN = "role", "admin"

RIGHTS = {
    "create": Permissions.CREATE,
    "delete": Permissions.DELETE,
    "read": Permissions.READ,
    "write": Permissions.WRITE,
}

#: ``reconcile_interval_ms`` of roles that have it: what they need for an audit is part of what they need.
AUDIT_MS = 1_000

#: How long each step of a role may take, in seconds.
_LIMIT_S = 60.0


class Need(NamedTuple):
    """A right that a role needs, and the path of the znode, with ``*`` in place of the group's name."""

    right: str
    path: str


class Role(Protocol):
    """A process in the group of this name, which uses the file that ``security_file`` has written."""

    group: str

    async def start(self) -> None:
        """Join the group, and wait until all is done that follows a join."""

    async def act(self, is_refused: Callable[[], bool]) -> None:
        """Do all that the role does, on two sessions, and wait until it is done, or until ``is_refused``."""

    @property
    def works(self) -> bool:
        """Whether the role is in the group now, and has done all that there is to do."""

    async def close(self) -> None:
        """Leave the group in order."""


def security_file(folder: Path, user: str = ROLE) -> Path:
    """Write a file with the credentials of a user, whose znodes the administrator may change, and return its path."""
    admin = make_digest_acl_credential(ADMIN, ADMIN)
    path = folder / f"{user}.toml"
    acl = f'["creator-all", "digest:{admin}:cdrwa"]'
    path.write_text(f'[zookeeper]\ndigest-user = "{user}"\ndigest-password = "{user}"\nacl = {acl}\n', encoding="utf-8")
    path.chmod(0o600)
    return path


def acl_without(right: str = "") -> list[ACL]:
    """Return an ACL with all rights for the administrator, and with all rights but this one for the role."""
    entry = make_digest_acl(ROLE, ROLE, all=True)
    return [ACL(entry.perms & ~RIGHTS.get(right, 0), entry.id), make_digest_acl(ADMIN, ADMIN, all=True)]


def persistent(client: KazooClient, group: str) -> list[str]:
    """Return the paths of the persistent znodes of a group that kiel-groups creates, sorted."""
    found, level = [], list(GroupLayout(group).roots[:2])
    while level:
        path = level.pop()
        with suppress(NoNodeError):
            if not client.get(path)[1].ephemeralOwner:
                found.append(path)
                level += [f"{path}/{child}" for child in client.get_children(path)]
    return sorted(found)


@contextmanager
def needs_of(group: str) -> Iterator[set[Need]]:
    """Record the rights that all clients in this process need at znodes of a group."""
    needs = set[Need]()
    with pytest.MonkeyPatch.context() as patched:
        for kind in (SecuredClient, InterruptibleClient):
            patched.setattr(kind, "_call", _recording(kind._call, group, needs))
        yield needs


def _recording(call: Callable[..., Any], group: str, needs: set[Need]) -> Callable[..., Any]:
    def recording(client: KazooClient, request: Any, answer: Any) -> Any:
        for each in getattr(request, "operations", [request]):
            path = client.unchroot(getattr(each, "path", ""))
            if f"/{group}" in path and type(each).__name__ not in ("GetACL", "SetACL"):
                right, znode = right_of(each, path)
                needs.add(Need(right, znode.replace(group, "*")))
        return call(client, request, answer)

    return recording


class DeniedRights:
    """
    The groups of one role: one for each right at each persistent znode.

    Args:
        admin: A client with the administrator's credentials.
        new_role: Creates a role in a group that has this name.
        unique: Returns the unique name of a group.
        caplog: Has the warnings and the errors of all roles.
    """

    def __init__(
        self,
        admin: KazooClient,
        new_role: Callable[[str], Role],
        unique: Callable[[str], str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self._admin = admin
        self._new_role = new_role
        self._unique = unique
        self._caplog = caplog
        #: Called after the rights were taken away, and before all roles act.
        self.before_acting: Callable[[], Awaitable[object]] | None = None
        #: The znodes, with ``*`` in place of the group's name, and what the role needs while it works, and to leave.
        self.paths: list[str] = []
        self.needs, self.needs_to_close = set[Need](), set[Need]()

    async def check(self, share: slice = slice(None)) -> None:
        """Record the needs, then play all groups at once, or the ``share`` of them."""
        await self._record()
        # The name of a source's offset has a digest of its file, and each worker has a file of its own.
        paths = [path for path in self.paths if "/connect/offsets/" not in path]
        cells = {Need(right, path): self._new_role(self._unique("group")) for path in paths for right in RIGHTS}
        played = dict(sorted(cells.items(), key=lambda pair: (pair[0].path, pair[0].right))[share])
        await _all(role.start() for role in played.values())
        self._caplog.clear()
        for need, role in played.items():
            with suppress(NoNodeError):  # Not all groups have the same number of plans, or of changes.
                self._admin.set_acls(need.path.replace("*", role.group), acl_without(need.right))
        await self._begin_acts()
        await _all(role.act(partial(self._is_refused, role)) for role in played.values())
        needing = {need: role for need, role in played.items() if need in self.needs}
        await within(lambda: all(map(self._is_refused, needing.values())), _LIMIT_S)
        problems = [problem for need, role in played.items() for problem in self._problems(need, role, self.needs)]
        refused = {need: role for need, role in played.items() if self._refusals(role)}
        self._caplog.clear()
        for need, role in refused.items():
            with suppress(NoNodeError):
                self._admin.set_acls(need.path.replace("*", role.group), acl_without())
        await within(lambda: all(role.works for role in refused.values()), _LIMIT_S)
        problems += [f"{need} is there again: {self._said(role)}" for need, role in refused.items() if not role.works]
        problems += [f"{need} is back: {self._said(role)}" for need, role in refused.items() if self._refusals(role)]
        await _all(role.close() for role in played.values())
        left = {need: role for need, role in played.items() if need not in refused}
        problems += [each for need, role in left.items() for each in self._problems(need, role, self.needs_to_close)]
        assert not problems, "\n".join(problems)

    async def _record(self) -> None:
        control = self._new_role(self._unique("group"))
        await control.start()
        found = [path.replace(control.group, "*") for path in persistent(self._admin, control.group)]
        # The names of some znodes are ids of members, which differ in each group.
        self.paths = [path for path in found if path.count("*") == 1]
        with needs_of(control.group) as self.needs:
            await self._begin_acts()
            await control.act(lambda: False)
            # An audit has no effect that the test could wait for.
            await asyncio.sleep(AUDIT_MS / 1000 * (1 + AUDIT_JITTER))
        with needs_of(control.group) as self.needs_to_close:
            await control.close()

    async def _begin_acts(self) -> None:
        if self.before_acting is not None:
            await self.before_acting()

    def _is_refused(self, role: Role) -> bool:
        return bool(self._refusals(role))

    def _lines(self, role: Role) -> list[logging.LogRecord]:
        return [
            record
            for record in self._caplog.records
            if record.levelno >= logging.WARNING and f"{role.group}" in record.getMessage()
        ]

    def _said(self, role: Role) -> list[str]:
        return [record.getMessage() for record in self._lines(role)]

    def _refusals(self, role: Role) -> list[str]:
        return [line for line in self._said(role) if "ZooKeeper refused" in line or "no longer allows reading" in line]

    def _problems(self, need: Need, role: Role, needs: set[Need]) -> Iterator[str]:
        """Yield what is wrong with the log lines of a role that lacks a right."""
        refusals, path = self._refusals(role), need.path.replace("*", role.group)
        # A refusal is ZooKeeper's, so the need is there, even if the control group, at another pace, did not have it.
        if need in needs and not refusals:
            yield f"{need} is needed: {self._said(role)}"
        if len(refusals) > 1:
            yield f"{need}: {len(refusals)} lines: {refusals}"
        if refusals and not (path in refusals[0] and f"denies this client the right to {need.right}" in refusals[0]):
            yield f"{need}: another line: {refusals[0]}"
        if traces := [record.getMessage() for record in self._lines(role) if record.exc_info]:
            yield f"{need}: tracebacks: {traces}"


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at once, each within the limit. Raise the errors of all of them."""

    async def limited(work: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(_LIMIT_S):
            await work

    done = await asyncio.gather(*map(limited, works), return_exceptions=True)
    if errors := [each for each in done if isinstance(each, BaseException)]:
        raise ExceptionGroup("roles failed", [each for each in errors if isinstance(each, Exception)])
