"""
Create the certificates, the user, the settings of servers and the file for clients of a secured cluster.

ZooKeeper servers keep their plain port, which brokers of 0.8 need, also with digest and SASL, and offer TLS at another
port. Brokers in KRaft mode offer nothing but SASL_SSL to clients. All secrets are in one folder, which only the user
can read, and in the configuration of these brokers.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from pathlib import Path

from kiel_groups.embedded.java_servers import LOOPBACK, SASL_SSL
from kiel_groups.errors import ServerError

#: The user of SASL.
USER = "member"

_DAYS = 3650
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")
_JAAS = 'Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required user_{user}="{password}";\n}};\n'
_FOR_CLIENTS = "# How clients identify themselves to this cluster; docs/security.rst explains the keys.\n"
_ZOOKEEPER_TABLE = """\
[zookeeper]
tls-ca = "ca.pem"
tls-certificate = "client.pem"
acl = "creator-all"
# ZooKeeper knows this user of SASL, too. For digest, every user will do.
# sasl-user = "{user}"
# sasl-password = "{password}"
"""
_KAFKA_TABLE = """\
[kafka]
tls-ca = "ca.pem"
sasl-mechanism = "SCRAM-SHA-256"  # The brokers know the user for PLAIN, too.
sasl-user = "{user}"
sasl-password = "{password}"
"""


class ClusterSecurity:
    """
    The secrets of a secured cluster.

    Args:
        uses_zookeeper: True for servers of ZooKeeper, False for brokers in KRaft mode.
    """

    def __init__(self, *, uses_zookeeper: bool) -> None:
        self._uses_zookeeper = uses_zookeeper
        self._folder: Path | None = None
        self.password = ""
        """The password of ``USER``."""

    @property
    def folder(self) -> Path:
        """The folder of all files. Raise ServerError before the first start."""
        if self._folder is None:
            raise ServerError("a secured cluster has no certificates before its first start")
        return self._folder

    @property
    def file(self) -> Path:
        """The file for clients, as ``docs/security.rst`` describes it."""
        return self.folder / "security.toml"

    def create(self, folder: Path) -> None:
        """
        Create all files in a folder. A folder that has them already, from an earlier start, stays as it is.

        Raises:
            ServerError: ``openssl`` is not installed, or fails.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._folder, password = folder, folder / "password"
        # This file is written last.
        if not password.exists():
            self.password = secrets.token_urlsafe(18)
            authority = Authority(folder)
            for name in ("server", "client"):
                authority.issue(name)
            table = _ZOOKEEPER_TABLE if self._uses_zookeeper else _KAFKA_TABLE
            user = {"user": USER, "password": self.password}
            write_secret(self.file, _FOR_CLIENTS + table.format(**user))
            if self._uses_zookeeper:
                write_secret(folder / "jaas.conf", _JAAS.format(**user))
            write_secret(password, self.password)
        self.password = password.read_text(encoding="utf-8")

    def remove(self) -> None:
        """Remove the folder, if there is one."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def zookeeper_settings(self, port: int) -> dict[str, object]:
        """Return the ``zoo.cfg`` settings of a server that also offers SASL, and TLS at this port."""
        return {
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": port,
            "secureClientPortAddress": LOOPBACK,
            "ssl.keyStore.location": self.folder / "server.pem",
            "ssl.trustStore.location": self.folder / "ca.pem",
        }

    @property
    def zookeeper_properties(self) -> dict[str, object]:
        """The properties of Java that a ZooKeeper server needs for SASL."""
        return {"java.security.auth.login.config": self.folder / "jaas.conf"}

    def broker_settings(self) -> dict[str, object]:
        """Return the ``server.properties`` settings of a broker in KRaft mode with the listener ``SASL_SSL``."""
        listener, security = f"listener.name.{SASL_SSL.lower()}", "org.apache.kafka.common.security"
        user = f'username="{USER}" password="{self.password}" user_{USER}="{self.password}"'
        return {
            "inter.broker.listener.name": SASL_SSL,
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            f"{listener}.plain.sasl.jaas.config": f"{security}.plain.PlainLoginModule required {user};",
            f"{listener}.scram-sha-256.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.folder / "server.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.folder / "ca.pem",
        }

    @property
    def scram_user(self) -> str:
        """The user of SCRAM, as the tool that formats the data of a broker gets it."""
        return f"SCRAM-SHA-256=[name={USER},password={self.password}]"


def write_secret(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text, encoding="utf-8")


class Authority:
    """
    A certificate authority in a folder: ``ca.pem``, and the certificates that it issues.

    Args:
        folder: The folder of all files. An authority that it has already issues further certificates.

    Raises:
        ServerError: ``openssl`` is not installed, or fails.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "ca.pem"
        if self.path.exists():
            return
        days = ("-days", str(_DAYS), "-addext", "keyUsage=critical,keyCertSign")
        self._openssl("req", "-x509", *_NEW_KEY, "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", *days)

    def issue(self, name: str, *, host: str = "IP:127.0.0.1,DNS:localhost", days: int = _DAYS) -> Path:
        """Return the path of a file with a new key and its certificate. With days=-1, the certificate has expired."""
        path = self._folder / f"{name}.pem"
        # Python 3.13 asks for these identifiers.
        identifiers = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        (self._folder / "extensions").write_text(f"subjectAltName={host}\n{identifiers}", encoding="utf-8")
        self._openssl("req", *_NEW_KEY, path.name, "-out", "request", "-subj", f"/CN={name}")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
        self._openssl("x509", "-req", "-in", "request", *signer, "-days", str(days), "-out", "certificate")
        certificate = (self._folder / "certificate").read_text(encoding="ascii")
        write_secret(path, path.read_text(encoding="ascii") + certificate)
        return path

    def _openssl(self, *arguments: str) -> None:
        try:
            # The path of the user decides which openssl runs, and no argument comes from outside.
            command = ["openssl", *arguments]
            subprocess.run(command, cwd=self._folder, check=True, capture_output=True, text=True)  # nosec B603
        except FileNotFoundError as error:
            raise ServerError(
                "'openssl' was not found; it makes the certificates of secured servers (Debian: apt install openssl)"
            ) from error
        except subprocess.CalledProcessError as error:
            raise ServerError(f"'openssl {arguments[0]}' failed: {error.stderr.strip()}") from error
