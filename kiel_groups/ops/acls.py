"""Compare the ACLs of a group's znodes with those that the file with the credentials asks for, and set them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import ACL, OPEN_ACL_UNSAFE

from kiel_groups.errors import CoordinationError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.ops.zookeeper_client import Client
from kiel_groups.ops.zookeeper_reader import read_group
from kiel_groups.wording import counted
from kiel_groups.zookeeper.security import acl_text

#: A user of the scheme "digest", and the digest of the password, which is not shown.
_DIGEST = re.compile(r"(digest:[^:\s]+):[^:\s]+")


class ZnodeAcl(NamedTuple):
    """
    The ACL of a znode, and the ACL that the file asks for, each as a text without digests.

    ``present`` is "" if it is not known. ``differs`` is whether the ACLs differ.
    """

    path: str
    present: str
    wanted: str
    differs: bool


def group_paths(client: Client, group: str) -> list[str]:
    """Return the paths of a group's znodes that kiel-groups creates, in alphabetical order."""
    roots = GroupLayout(group).roots[:2]
    below = tuple(f"{root}/" for root in roots)
    return sorted(path for path in read_group(client, group) if path in roots or path.startswith(below))


def read_acls(client: Client, paths: Iterable[str]) -> list[ZnodeAcl]:
    """Read the ACLs of znodes. Znodes that do not exist are left out."""
    found = []
    for path, read in [(path, client.get_acls_async(path)) for path in paths]:
        present: list[ACL] = []
        try:
            present = read.get()[0]
        except NoNodeError:
            continue
        except NoAuthError:
            pass
        wanted = client.security.acl_of(path) or OPEN_ACL_UNSAFE
        texts = [acl_text(each, client.security) for each in (present, wanted)]
        shown = [_DIGEST.sub(r"\1:...", text) for text in texts]
        found.append(ZnodeAcl(path, shown[0], shown[1], texts[0] != texts[1]))
    return found


def apply_acls(client: Client, group: str) -> int:
    """
    Set the ACL that the file asks for, at each znode of a group whose ACL differs. Return the number of these znodes.

    The children of a znode may be readable only when its ACL has been set, so the group is read again until no ACL
    differs.

    Raises:
        CoordinationError: ZooKeeper refused to set ACLs, because these credentials may not do that. The text names the
            first znode. All other ACLs are set.
    """
    tried, changed, refused = set[str](), 0, list[str]()
    while wrong := [
        each.path for each in read_acls(client, group_paths(client, group)) if each.differs and each.path not in tried
    ]:
        tried.update(wrong)
        for path in wrong:
            with suppress(NoNodeError):  # Ephemeral znodes may be gone.
                try:
                    client.set_acls(path, client.security.acl_of(path) or OPEN_ACL_UNSAFE)
                    changed += 1
                except NoAuthError:
                    refused.append(path)
    if refused:
        raise CoordinationError(
            f"these credentials may not set the ACLs of {counted(refused, 'znode')}, such as {refused[0]}; set:"
            f" {changed:,}"
        )
    return changed
