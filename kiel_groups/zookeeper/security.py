"""Read the file with the credentials and the TLS settings of each ZooKeeper."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kazoo.security import ACL, ANYONE_ID_UNSAFE, AUTH_IDS, Id, Permissions, make_digest_acl_credential

from kiel_groups.config import ZOOKEEPER_PORT, HostPort, ZooKeeperConfig, parse_hosts
from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.layout import CONSUMERS, ROOT

log = logging.getLogger(__name__)

#: The permissions of other users than the owner. A file with a secret must not have them.
_OTHERS = 0o077

#: The files with secrets for which a warning was given.
_reported: set[Path] = set()


class Secret(str):
    """A text that no log line, error or ``repr`` of another object shows. kazoo logs the ``repr`` of its requests."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "[hidden]"


_NONE = Secret()


class _TlsSocket(ssl.SSLSocket):
    """A TLS socket whose ``shutdown`` does not end the encryption: another thread could then send plain text."""

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self, how)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSecurity:
    """
    The credentials and the TLS settings of one ZooKeeper, from one table of the file. By default, there are none.

    Each field is a key of the table, with dashes in place of underscores. ``servers`` are the servers that the table is
    for. Without ``servers``, the table is for all servers that no other table names. Digest and SASL (DIGEST-MD5) need
    a user and a password. Each key about TLS also turns TLS on. ``tls`` alone trusts the system's authorities, and
    ``tls_ca`` names a file with the only authorities to trust. ``tls_certificate`` and ``tls_key`` name the files of
    the client's own certificate. The key may be in the file of the certificate. ``tls_check_host`` says whether the
    certificate of a server must have the server's name. ``acl`` is the ACL of the znodes that a client creates for
    groups and workers, ``acl_consumers`` that of those which the tools of Kafka 0.8 read, and ``acl_offsets`` that of
    the offsets among these.
    """

    servers: tuple[HostPort, ...] = ()
    digest_user: str = ""
    digest_password: Secret = _NONE
    sasl_user: str = ""
    sasl_password: Secret = _NONE
    tls: bool = False
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_key_password: Secret = _NONE
    tls_check_host: bool = True
    acl: tuple[ACL, ...] = ()
    acl_consumers: tuple[ACL, ...] = ()
    acl_offsets: tuple[ACL, ...] = ()

    def client_settings(self) -> dict[str, Any]:
        """Return the arguments of kazoo's client for these credentials. ``ImmediateHandler`` performs TLS."""
        settings: dict[str, Any] = {}
        if self.digest_user:
            settings["auth_data"] = {("digest", Secret(f"{self.digest_user}:{self.digest_password}"))}
        if self.sasl_user:
            settings["sasl_options"] = {
                "mechanism": "DIGEST-MD5",
                "username": self.sasl_user,
                "password": self.sasl_password,
            }
        return settings

    @property
    def identities(self) -> list[Id]:
        """The identities that these credentials have at a server. The subject of a certificate is not known."""
        digest = make_digest_acl_credential(self.digest_user, self.digest_password)
        return [
            *([Id("digest", digest)] if self.digest_user else []),
            *([Id("sasl", self.sasl_user)] if self.sasl_user else []),
            *([Id("x509", "")] if self.tls_certificate else []),
        ]

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

    def tls_context(self) -> ssl.SSLContext | None:
        """
        Read the certificates, and return the context of the next connection, or None without TLS.

        Raises:
            ConfigError: A certificate or a key cannot be read, or they do not fit together.
        """
        if not self.tls:
            return None
        name = f"tls-ca: {self.tls_ca}"
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
            context.sslsocket_class = _TlsSocket
            context.check_hostname = self.tls_check_host
            if self.tls_certificate:
                name = f"tls-certificate: {self.tls_certificate}"
                # A password is always given. Without one, OpenSSL would ask at the terminal.
                context.load_cert_chain(self.tls_certificate, self.tls_key or None, self.tls_key_password)
        except (OSError, ValueError) as error:  # also all errors of ssl, and a password that is too long for it
            aside = f", with the key in {self.tls_key}" if self.tls_key and "certificate" in name else ""
            raise ConfigError(f"{name} cannot be used{aside}: {getattr(error, 'strerror', None) or error}") from error
        return context


def acl_text(acl: Iterable[ACL], security: ZooKeeperSecurity) -> str:
    """
    Return the entries of an ACL in alphabetical order, as servers store them, with spaces between: two equal texts are
    equal ACLs.

    Servers replace the creator by the identities of the client that creates the znode. The subject of the client's
    certificate is not known here, so an ACL for any subject counts as one for this client.
    """
    entries = set()
    for perms, (scheme, name) in acl:
        letters = "".join(letter for letter, right in _RIGHTS.items() if perms & right)
        own = security.identities if (scheme, name) == AUTH_IDS else [Id(scheme, name)]
        hidden = {"x509": "..."} if security.tls_certificate else {}
        entries |= {f"{each.scheme}:{hidden.get(each.scheme, each.id)}:{letters}" for each in own}
    return " ".join(sorted(entries))


def security_of(config: ZooKeeperConfig) -> ZooKeeperSecurity:
    """
    Return the credentials and the TLS settings for the servers of a connection string, from the file of ``config``.

    Raises:
        ConfigError: The file cannot be read, or has a mistake; or a table names some of the servers, but not all; or no
            table is for them. A connection without credentials would then be a surprise.
    """
    if config.security is None:
        return ZooKeeperSecurity()
    servers = set(parse_hosts(config.hosts.removesuffix(config.chroot), ZOOKEEPER_PORT, "zk_hosts"))
    tables = read_security(Path(config.security))
    for name, table in tables.items():
        if table.servers and not servers.isdisjoint(table.servers):
            if not servers <= set(table.servers):
                others = ", ".join(sorted(map(str, servers.difference(table.servers))))
                raise ConfigError(f"{config.security}: [{name}] is not for {others}; add to its 'servers'")
            return table
    if (default := next((table for table in tables.values() if not table.servers), None)) is None:
        asked = ", ".join(sorted(map(str, servers)))
        raise ConfigError(f"{config.security}: no table is for {asked}; expected one, or a table without 'servers'")
    return default


def read_security(path: Path, warn: Callable[[str], object] = log.warning) -> dict[str, ZooKeeperSecurity]:
    """
    Read all tables of a file, by name. The paths of other files in it are relative to its folder.

    Args:
        path: The file.
        warn: Called with a warning, once in each process, for a file with a secret that other users can read.

    Raises:
        ConfigError: The file cannot be read, or has a mistake.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # The text of the error has at most one character of the file.
        raise ConfigError(f"{path} is not TOML: {error}") from error
    found: dict[str, ZooKeeperSecurity] = {}
    for name, table in tables.items():
        place = f"{path}: [{name:.100}]"
        if not isinstance(table, Mapping):
            raise ConfigError(f"{path}: {name:.100} is no table; expected one for each ZooKeeper, such as [zookeeper]")
        found[name] = security = _security(place, path.parent, table)
        for other in tuple(found)[:-1]:
            if not security.servers and not found[other].servers:
                raise ConfigError(f"{place}: neither this table nor [{other}] has 'servers'; expected at most one such")
            if both := set(security.servers).intersection(found[other].servers):
                raise ConfigError(f"{place}: {min(both)} is in [{other}], too; expected each server once")
    secrets = [Path(each.tls_key or each.tls_certificate) for each in found.values() if each.tls_certificate]
    if any(isinstance(value, str) and "password" in key for table in tables.values() for key, value in table.items()):
        secrets.append(path)
    for each in secrets:
        if each not in _reported and is_open(each):
            _reported.add(each)
            warn(f"other users can read the secret in {each}; 'chmod 600' denies it")
    return found


def _security(place: str, folder: Path, table: Mapping[str, Any]) -> ZooKeeperSecurity:
    """Return the settings of one table. ``place`` names the file and the table in errors."""
    defaults = {field.name.replace("_", "-"): field.default for field in fields(ZooKeeperSecurity)}
    assert MISSING not in defaults.values()
    values: dict[str, Any] = {}
    for key, given in table.items():
        if key not in defaults:
            near = get_close_matches(key.replace("_", "-"), defaults, 1)
            expected = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(defaults)}"
            raise ConfigError(f"{place}: there is no {key!r:.100}; {expected}")
        values[key] = _value(f"{place} {key}", folder, key, given, defaults[key])
    for user, password in (("digest-user", "digest-password"), ("sasl-user", "sasl-password")):
        if bool(values.get(user)) != bool(values.get(password)):
            raise ConfigError(f"{place}: expected both {user!r} and {password!r}, or neither")
    if ":" in values.get("digest-user", ""):
        raise ConfigError(f"{place} digest-user: it has a ':'; expected none, because the password follows a ':'")
    if "tls-certificate" not in values and ("tls-key" in values or "tls-key-password" in values):
        raise ConfigError(f"{place}: a key without a 'tls-certificate'; expected both")
    if values.get("sasl-user"):
        _check_sasl(place)
    if any(each.id == AUTH_IDS for key in _ACLS for each in values.get(key, ())) and not any(
        values.get(key) for key in ("digest-user", "sasl-user", "tls-certificate")
    ):
        raise ConfigError(f"{place}: an ACL for the creator, without credentials; expected a user or a certificate")
    if "acl" not in values and (others := [key for key in _ACLS if key in values]):
        raise ConfigError(f"{place}: {others[0]!r} without 'acl'; expected both")
    if any(key.startswith("tls-") for key in values):
        if values.get("tls") is False:
            raise ConfigError(f"{place}: 'tls = false' and other keys about TLS; expected only one of both")
        values["tls"] = True
    security = ZooKeeperSecurity(**{key.replace("-", "_"): value for key, value in values.items()})
    for key in _ACLS:
        if key in values and not any(_is_for(each, security) for each in values[key]):
            raise ConfigError(
                f"{place} {key}: no entry gives all rights to this client, so it could not use the znodes that it"
                f" creates; expected 'creator-all', or an entry with cdrwa for its user"
            )
    try:
        security.tls_context()
    except ConfigError as error:
        raise ConfigError(f"{place} {error}") from error
    return security


def _is_for(entry: ACL, security: ZooKeeperSecurity) -> bool:
    """
    Return whether an entry of an ACL gives all rights to this client.

    The client does not know its address, and not the subject of its certificate, so entries with these count.
    """
    known = (AUTH_IDS, ANYONE_ID_UNSAFE, *security.identities)
    is_own = entry.id in known or entry.id.scheme == "ip" or (entry.id.scheme == "x509" and security.tls_certificate)
    return bool(is_own) and entry.perms == Permissions.ALL


def _value(place: str, folder: Path, key: str, given: object, default: object) -> object:
    """Return the value of a key, checked. A password may be in a variable of the environment."""
    if key == "servers":
        return parse_hosts(given, ZOOKEEPER_PORT, place)  # type: ignore[arg-type]  # It checks the type.
    if key in _ACLS:
        return _acl(place, given)
    if isinstance(default, Secret):
        if isinstance(given, Mapping) and given.keys() == {"env"}:
            if not os.environ.get(str(given["env"])):
                raise ConfigError(f"{place}: the environment has no variable {given['env']!r:.100}")
            return Secret(os.environ[str(given["env"])])
        if not isinstance(given, str):
            raise ConfigError(f'{place}: expected a text, or {{ env = "NAME" }} for a variable of the environment')
        return Secret(given)
    if type(given) is not type(default):
        expected = "true or false" if isinstance(default, bool) else "a text"
        raise ConfigError(f"{place}: {given!r:.100} given; expected {expected}")
    if key in ("tls-ca", "tls-certificate", "tls-key"):
        return str(folder / str(given))
    return given


_ACLS = ("acl", "acl-consumers", "acl-offsets")
_RIGHTS = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}
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


_ACL_EXAMPLE = '["creator-all", "sasl:tools:cdrwa", "world:anyone:r"]'


def _check_sasl(place: str) -> None:
    try:
        import puresasl  # noqa: F401
    except ImportError:
        raise ConfigError(f"{place}: SASL needs the package pure-sasl; install kiel-groups[sasl]") from None


def is_open(path: Path) -> bool:
    """
    Return whether other users can read a file with a secret.

    systemd and container engines decide who can read the files that they provide, so these files never count as open.
    """
    folders = ("/run/secrets", os.environ.get("CREDENTIALS_DIRECTORY"))
    is_managed = any(path.absolute().is_relative_to(folder) for folder in folders if folder)
    return bool(path.stat().st_mode & _OTHERS) and not is_managed
