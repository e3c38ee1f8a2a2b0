"""Read the file with credentials and TLS settings, choose the table for some of them, and explain errors of TLS."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from kiel_groups.config import HostPort, Secret, parse_hosts
from kiel_groups.errors import ConfigError
from kiel_groups.toml_files import check_keys, read_toml

log = logging.getLogger(__name__)

#: The names that a table of the file may have: the kinds of servers.
KINDS = ("zookeeper", "kafka")

#: The permissions of other users than the owner. A file with a secret must not have them.
_OTHERS = 0o077

#: The files with secrets for which a warning was given.
_reported: set[Path] = set()


#: The default of a password.
NO_SECRET = Secret()


class _TlsSocket(ssl.SSLSocket):
    """A TLS socket whose ``shutdown`` does not end the encryption: another thread could then send plain text."""

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self, how)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSecurity:
    """
    The credentials and the TLS settings for some servers, from one table of the file. By default, there are none.

    Each field is a key of the table, with dashes in place of underscores. ``servers`` are the servers that the table is
    for. Without ``servers``, the table is for all servers of its kind that no other table names. SASL needs a user and
    a password. Each key about TLS also turns TLS on. ``tls`` alone trusts the system's authorities, and ``tls_ca``
    names a file with the only authorities to trust. ``tls_certificate`` and ``tls_key`` name the files of the client's
    own certificate. The key may be in the file of the certificate. ``tls_check_host`` says whether the certificate of a
    server must have the server's name.

    A field whose metadata has ``parse`` gets its value from that function, which is called with the place of the key
    and the given value.
    """

    #: The name of its tables, and the port of a server without a port.
    KIND: ClassVar[str]
    PORT: ClassVar[int]

    servers: tuple[HostPort, ...] = ()
    sasl_user: str = ""
    sasl_password: Secret = NO_SECRET
    tls: bool = False
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_key_password: Secret = NO_SECRET
    tls_check_host: bool = True

    def check(self, place: str) -> None:
        """
        Check what a kind of servers requires beyond the kinds of the values. ``place`` names the table in errors.

        Raises:
            ConfigError: Values do not fit together.
        """

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


S = TypeVar("S", bound=ServerSecurity)


def parsed(parse: Callable[[str, object], tuple[Any, ...]]) -> Any:
    """Declare a field that is empty by default, and whose value in the file ``parse`` turns into a tuple."""
    return field(default=(), metadata={"parse": parse})


def table_for(path: str | None, kind: type[S], servers: Collection[HostPort]) -> S:
    """
    Return the credentials and the TLS settings for these servers, from the file at ``path``.

    Without a file, or if the file has no table of this kind, there are none.

    Raises:
        ConfigError: The file cannot be read, or has a mistake; or a table names some of the servers, but not all; or
            there are tables of this kind, and none is for the servers. A connection without credentials would then be a
            surprise. Or the table's certificates cannot be used.
    """
    if path is None or not (tables := read_security(Path(path), kind)):
        return kind()
    name, table = _named_table(path, tables, kind, set(servers))
    try:
        # Certificates of other tables are not read: broken ones must not stop the clients of this cluster.
        table.tls_context()
    except ConfigError as error:
        raise ConfigError(f"{path}: {name} {error}") from error
    return table


def _named_table(path: str, tables: Mapping[str, S], kind: type[S], asked: set[HostPort]) -> tuple[str, S]:
    """Return the table for these servers, and its name. Raise the errors of ``table_for`` about ``servers``."""
    for name, table in tables.items():
        if table.servers and not asked.isdisjoint(table.servers):
            if not asked <= set(table.servers):
                others = ", ".join(sorted(map(str, asked.difference(table.servers))))
                raise ConfigError(f"{path}: {name} is not for {others}; add to its 'servers'")
            return name, table
    if (default := next(((name, table) for name, table in tables.items() if not table.servers), None)) is None:
        shown = ", ".join(sorted(map(str, asked)))
        raise ConfigError(f"{path}: no [{kind.KIND}] table is for {shown}; expected one, or a table without 'servers'")
    return default


def read_security(path: Path, kind: type[S], warn: Callable[[str], object] = log.warning) -> dict[str, S]:
    """
    Read all tables of one kind in a file, by their names in errors. The paths of other files in it are relative to its
    folder. Certificates and keys are not read.

    Args:
        path: The file.
        kind: The class for the tables. Tables of other kinds are not checked.
        warn: Called with a warning, once in each process, for a file with a secret that other users can read.

    Raises:
        ConfigError: The file cannot be read, or has a mistake.
    """
    content = read_toml(path, str(path))
    if not content and path.is_file():
        # A program that is writing the file may have truncated it. Without tables, all servers would count as open.
        raise ConfigError(f"{path} has no table; expected [zookeeper] or [kafka]")
    for name in content:
        if name not in KINDS:
            raise ConfigError(f"{path}: there is no kind {name!r:.100}; expected [zookeeper] and [kafka]")
    found: dict[str, S] = {}
    for name, table in _tables(path, kind.KIND, content.get(kind.KIND, [])).items():
        place = f"{path}: {name}"
        found[name] = security = _security(place, path.parent, table, kind)
        for other in tuple(found)[:-1]:
            if not security.servers and not found[other].servers:
                raise ConfigError(f"{place}: neither this table nor {other} has 'servers'; expected at most one such")
            if both := set(security.servers).intersection(found[other].servers):
                raise ConfigError(f"{place}: {min(both)} is in {other}, too; expected each server once")
    secrets = [Path(each.tls_key or each.tls_certificate) for each in found.values() if each.tls_certificate]
    if any(isinstance(value, str) and "password" in key for key, value in _texts(content)):
        secrets.append(path)
    for each in secrets:
        try:
            is_news = each.absolute() not in _reported and is_open(each)
        except OSError as error:  # The file is just being replaced.
            if each != path:
                continue  # It matters only to clients that use its table.
            raise ConfigError(f"{each} cannot be read: {error.strerror}") from error
        if is_news:
            _reported.add(each.absolute())
            warn(f"other users can read the secret in {each}; 'chmod 600' denies it")
    return found


def _tables(path: Path, kind: str, given: object) -> dict[str, Mapping[str, Any]]:
    """Return the tables of a kind by their names in errors: one as ``[kind]``, or several as ``[[kind]] 1``."""
    listed = {f"[{kind}]": given} if isinstance(given, Mapping) else given
    if isinstance(given, list):
        listed = {f"[[{kind}]] {number}": each for number, each in enumerate(given, start=1)}
    if not isinstance(listed, dict) or not all(isinstance(each, Mapping) for each in listed.values()):
        raise ConfigError(f"{path}: {kind} is no table; expected [{kind}], or several as [[{kind}]]")
    return listed


def _texts(content: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the keys and the values in all tables of a file, of whichever kind."""
    tables = [each for given in content.values() for each in (given if isinstance(given, list) else [given])]
    return [pair for table in tables if isinstance(table, Mapping) for pair in table.items()]


def _security(place: str, folder: Path, table: Mapping[str, Any], kind: type[S]) -> S:
    """Return the settings of one table. ``place`` names the file and the table in errors."""
    known = {each.name.replace("_", "-"): each for each in fields(kind)}
    check_keys(table, known, place)
    values: dict[str, Any] = {}
    for key, given in table.items():
        where = f"{place} {key}"
        if key == "servers":
            values[key] = parse_hosts(given, kind.PORT, where)
        elif (parse := known[key].metadata.get("parse")) is not None:
            values[key] = parse(where, given)
        else:
            assert known[key].default is not MISSING
            values[key] = _value(where, folder, key, given, known[key].default)
    for user in (key for key in known if key.endswith("-user")):
        password = user.replace("-user", "-password")
        if bool(values.get(user)) != bool(values.get(password)):
            raise ConfigError(f"{place}: expected both {user!r} and {password!r}, or neither")
    if "tls-certificate" not in values and ("tls-key" in values or "tls-key-password" in values):
        raise ConfigError(f"{place}: a key without a 'tls-certificate'; expected both")
    if any(key.startswith("tls-") for key in values):
        if values.get("tls") is False:
            raise ConfigError(f"{place}: 'tls = false' and other keys about TLS; expected only one of both")
        values["tls"] = True
    security = kind(**{key.replace("-", "_"): value for key, value in values.items()})
    security.check(place)
    return security


def _value(place: str, folder: Path, key: str, given: object, default: object) -> object:
    """Return the value of a key, checked. A password may be in a variable of the environment."""
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


def is_open(path: Path) -> bool:
    """
    Return whether other users can read a file with a secret.

    systemd and container engines decide who can read the files that they provide, so these files never count as open.
    """
    folders = ("/run/secrets", os.environ.get("CREDENTIALS_DIRECTORY"))
    is_managed = any(path.absolute().is_relative_to(folder) for folder in folders if folder)
    return bool(path.stat().st_mode & _OTHERS) and not is_managed


def tls_problem(error: ssl.SSLError) -> str:
    """Return a text for users about the failure of a TLS handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or error.reason in _PLAIN_ANSWERS:
        return NO_TLS
    # A server refuses a client by an alert, such as SSLV3_ALERT_BAD_CERTIFICATE.
    reason, is_alert, alert = str(error.reason or error).partition("ALERT_")
    if reason == "UNEXPECTED_MESSAGE":
        # Kafka 0.9 and Java send this to a client without a certificate.
        is_alert, alert = reason, reason
    if not is_alert:
        return f"TLS failed: {reason}"
    return f"it refuses this client: {alert.replace('_', ' ').lower()}; is 'tls-certificate' set, and valid there?"


#: The text for a server that ends a handshake, or does not understand it.
NO_TLS = "it does not speak TLS at this port, or closes connections without a reason"

#: The errors of a handshake with a server that answers in plain text.
_PLAIN_ANSWERS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "UNEXPECTED_EOF_WHILE_READING",
)
