"""The credentials, the TLS settings and the ACLs of a ZooKeeper, as the file with the credentials has them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.security import ACL, ANYONE_ID_UNSAFE, AUTH_IDS, Id, Permissions, make_digest_acl_credential

from kiel_groups.config import ZOOKEEPER_PORT, Secret, ZooKeeperConfig, parse_hosts
from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.layout import CONSUMERS, ROOT
from kiel_groups.security_file import NO_SECRET, ServerSecurity, parsed, table_for

_RIGHTS = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}
DIGEST_MD5, GSSAPI = "DIGEST-MD5", "GSSAPI"
_SCHEMES = ("auth", "digest", "ip", "sasl", "world", "x509")


def _acl(place: str, given: object) -> tuple[ACL, ...]:
    """Parse an ACL: ``"creator-all"``, or entries as zkCli has them, such as ``"sasl:tools:cdrwa"``, in a list."""
    entries = [given] if isinstance(given, str) else given
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{place}: {given!r:.100} given; expected 'creator-all', or a list such as {_ACL_EXAMPLE}")
    found = []
    for entry in entries:
        text = "auth::cdrwa" if entry == "creator-all" else str(entry)
        scheme, _, rest = text.partition(":")
        name, _, letters = rest.rpartition(":")
        is_anyone = (scheme, name) in (("world", "anyone"), ("auth", ""))
        is_named = scheme in _SCHEMES[1:] and scheme != "world" and bool(name)
        if scheme == "digest" and not _DIGEST_NAME.fullmatch(name):
            raise ConfigError(
                f"{place}: an entry of the scheme 'digest' without the digest of a password; expected"
                " digest:USER:DIGEST:RIGHTS, where DIGEST is Base64 of the SHA-1 of USER:PASSWORD, as zkCli's getAcl"
                " shows it"
            )
        if not (is_anyone or is_named) or not letters or not set(letters) <= _RIGHTS.keys():
            raise ConfigError(
                f"{place}: {entry!r:.100} given; expected entries of a scheme ({', '.join(_SCHEMES)}), a name and"
                f" rights, such as {_ACL_EXAMPLE}"
            )
        rights = 0
        for letter in letters:
            rights |= _RIGHTS[letter]
        found.append(ACL(rights, Id(scheme, name)))
    return tuple(found)


#: The name of a user of the scheme "digest". A password in place of its digest would be stored, and match no user.
_DIGEST_NAME = re.compile(r"[^:]+:[A-Za-z0-9+/]{27,}={0,2}")

_ACL_EXAMPLE = '["creator-all", "sasl:tools:cdrwa", "world:anyone:r"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSecurity(ServerSecurity):
    """
    The credentials and the TLS settings of one ZooKeeper. By default, there are none.

    Digest and SASL need a user and a password. With ``sasl_mechanism`` "GSSAPI", SASL needs none: the user is that of
    the Kerberos ticket in the ticket cache, and ``sasl_service`` is the service in the principal of the servers.
    ``acl`` is the ACL of the znodes that a client creates for groups and workers, ``acl_consumers`` that of those which
    the tools of Kafka 0.8 read, and ``acl_offsets`` that of the offsets among these.
    """

    KIND: ClassVar[str] = "zookeeper"
    PORT: ClassVar[int] = ZOOKEEPER_PORT

    digest_user: str = ""
    digest_password: Secret = NO_SECRET
    sasl_mechanism: str = DIGEST_MD5
    sasl_service: str = "zookeeper"
    acl: tuple[ACL, ...] = parsed(_acl)
    acl_consumers: tuple[ACL, ...] = parsed(_acl)
    acl_offsets: tuple[ACL, ...] = parsed(_acl)

    def check(self, place: str) -> None:
        """Check the credentials, and the ACLs for them. ``place`` names the table in errors."""
        if ":" in self.digest_user:
            raise ConfigError(f"{place} digest-user: it has a ':'; expected none, because the password follows a ':'")
        if self.sasl_mechanism not in (DIGEST_MD5, GSSAPI):
            raise ConfigError(
                f"{place} sasl-mechanism: {self.sasl_mechanism!r:.100} given; expected {DIGEST_MD5} or {GSSAPI}"
            )
        if self.has_ticket and self.sasl_user:
            raise ConfigError(f"{place}: 'sasl-user' with GSSAPI; expected none, because the ticket has the user")
        if self.has_ticket or self.sasl_user:
            _check_sasl(place, self.sasl_mechanism)
        acls = {"acl": self.acl, "acl-consumers": self.acl_consumers, "acl-offsets": self.acl_offsets}
        given = {key: acl for key, acl in acls.items() if acl}
        has_credentials = bool(self.identities)
        if not has_credentials and any(each.id == AUTH_IDS for acl in given.values() for each in acl):
            raise ConfigError(f"{place}: an ACL for the creator, without credentials; expected a user or a certificate")
        if given and not self.acl:
            raise ConfigError(f"{place}: {min(given)!r} without 'acl'; expected both")
        for key, acl in given.items():
            if not any(_is_for(each, self) for each in acl):
                raise ConfigError(
                    f"{place} {key}: no entry gives all rights to this client, so it could not use the znodes that it"
                    f" creates; expected 'creator-all', or an entry with cdrwa for its user"
                )

    @property
    def has_ticket(self) -> bool:
        """Whether the user of SASL is the one of a Kerberos ticket."""
        return self.sasl_mechanism == GSSAPI

    @property
    def unknown_schemes(self) -> frozenset[str]:
        """The schemes in which this client has an identity whose name is not known here."""
        known = (("x509", bool(self.tls_certificate)), ("sasl", self.has_ticket))
        return frozenset(scheme for scheme, is_unknown in known if is_unknown)

    @property
    def auth_data(self) -> set[tuple[str, Secret]]:
        """The schemes and the credentials that kazoo's client sends after each connection."""
        return {("digest", Secret(f"{self.digest_user}:{self.digest_password}"))} if self.digest_user else set()

    @property
    def sasl_options(self) -> dict[str, Any] | None:
        """kazoo's options for SASL, or None without SASL."""
        if self.has_ticket:
            return {"mechanism": GSSAPI, "service": self.sasl_service}
        if not self.sasl_user:
            return None
        return {"mechanism": DIGEST_MD5, "username": self.sasl_user, "password": self.sasl_password}

    @property
    def identities(self) -> list[Id]:
        """
        The identities that these credentials have at a server. The subject of a certificate, and the user of a ticket,
        are not known.
        """
        digest = make_digest_acl_credential(self.digest_user, self.digest_password)
        return [
            *([Id("digest", digest)] if self.digest_user else []),
            *([Id("sasl", self.sasl_user)] if self.sasl_user or self.has_ticket else []),
            *([Id("x509", "")] if self.tls_certificate else []),
        ]

    @property
    def acls(self) -> dict[str, list[ACL]]:
        """The ACLs of the znodes that this client creates, by their keys in the file. Without ACLs, it is empty."""
        paths = {"acl": f"{ROOT}/g", "acl-consumers": f"{CONSUMERS}/g", "acl-offsets": f"{CONSUMERS}/g/offsets"}
        return {key: acl for key, path in paths.items() if (acl := self.acl_of(path)) is not None}

    def acl_of(self, path: str) -> list[ACL] | None:
        """
        Return the ACL for a znode that this client creates, or None for an open one.

        The parents of all groups are open: each group may have other users. Znodes of Kafka are open because brokers
        of 0.8 have no credentials.
        """
        if self.acl and path.startswith(f"{ROOT}/"):
            return list(self.acl)
        if self.acl and path.startswith(f"{CONSUMERS}/"):
            is_of_offsets = path.split("/")[3:4] == ["offsets"]
            readable = self.acl_consumers or (*self.acl, ACL(Permissions.READ, ANYONE_ID_UNSAFE))
            return list((is_of_offsets and self.acl_offsets) or readable)
        return None


def acl_text(acl: Iterable[ACL], security: ZooKeeperSecurity) -> str:
    """
    Return the entries of an ACL in alphabetical order, as servers store them, with spaces between: two equal texts are
    equal ACLs.

    Servers replace the creator by the identities of the client that creates the znode. If the name of an identity is
    not known here, an ACL for any name in its scheme counts as one for this client.
    """
    entries = set()
    for perms, (scheme, name) in acl:
        letters = "".join(letter for letter, right in _RIGHTS.items() if perms & right)
        own = security.identities if (scheme, name) == AUTH_IDS else [Id(scheme, name)]
        for each in own:
            shown = "..." if each.scheme in security.unknown_schemes else each.id
            entries.add(f"{each.scheme}:{shown}:{letters}")
    return " ".join(sorted(entries))


def security_of(config: ZooKeeperConfig) -> ZooKeeperSecurity:
    """
    Return the credentials and the TLS settings for the servers of a connection string, from the file of ``config``.

    Raises:
        ConfigError: See ``table_for``.
    """
    servers = parse_hosts(config.hosts.removesuffix(config.chroot), ZOOKEEPER_PORT, "zk_hosts")
    return table_for(config.security, ZooKeeperSecurity, servers)


def _is_for(entry: ACL, security: ZooKeeperSecurity) -> bool:
    """
    Return whether an entry of an ACL gives all rights to this client.

    The client does not know its address, and not the name of each identity, so entries with these count.
    """
    known = (AUTH_IDS, ANYONE_ID_UNSAFE, *security.identities)
    is_own = entry.id in known or entry.id.scheme in {"ip", *security.unknown_schemes}
    return is_own and entry.perms == Permissions.ALL


def _check_sasl(place: str, mechanism: str) -> None:
    extra = "gssapi" if mechanism == GSSAPI else "sasl"
    try:
        from puresasl.mechanisms import mechanisms
    except ImportError:
        raise ConfigError(f"{place}: SASL needs the package pure-sasl; install kiel-groups[{extra}]") from None
    if mechanism not in mechanisms:
        raise ConfigError(f"{place}: GSSAPI needs the package kerberos; install kiel-groups[gssapi]")
