"""A cluster whose ZooKeeper also offers SASL, and TLS with client certificates. Its brokers use the plain port."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kiel_groups.embedded import Cluster
from kiel_groups.embedded.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = ["SASL_PASSWORD", "Authority", "SecuredCluster"]

SASL_PASSWORD = "sasl-word-8461"

_JAAS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required user_member="%s";
};
"""


class Authority:
    """A certificate authority in a folder: ``ca.pem``, and the certificates that it issues."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "ca.pem"
        usage = ("-addext", "keyUsage=critical,keyCertSign")
        self._openssl(
            "req", "-x509", *_NEW_KEY, "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority", *usage
        )

    def issue(self, name: str, *, host: str = "IP:127.0.0.1", days: int = 2) -> Path:
        """Return the path of a file with a new key and its certificate. With days=-1, the certificate has expired."""
        path = self._folder / f"{name}.pem"
        # Python 3.13 asks for these identifiers.
        identifiers = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        (self._folder / "extensions").write_text(f"subjectAltName={host}\n{identifiers}", encoding="utf-8")
        self._openssl("req", *_NEW_KEY, path.name, "-out", "request", "-subj", f"/CN={name}")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
        self._openssl("x509", "-req", "-in", "request", *signer, "-days", str(days), "-out", "certificate")
        path.write_bytes(path.read_bytes() + (self._folder / "certificate").read_bytes())
        path.chmod(0o600)
        return path

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")


class _SecuredServer(ZooKeeperServer):
    _FURTHER_PORTS = 1

    def _command(self) -> list[str]:
        authority = Authority(self.folder)
        self._overrides = {
            **self._overrides,
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": self._port_number(1),
            "secureClientPortAddress": "127.0.0.1",
            "ssl.keyStore.location": authority.issue("server"),
            "ssl.trustStore.location": authority.path,
        }
        authority.issue("client")
        authority.issue("expired", days=-1)
        jaas = self.folder / "jaas.conf"
        jaas.write_text(_JAAS % SASL_PASSWORD, encoding="utf-8")
        java, *rest = super()._command()
        return [java, f"-Djava.security.auth.login.config={jaas}", *rest]


class _SecuredEnsemble(ZooKeeperEnsemble):
    SERVER = _SecuredServer


class SecuredCluster(Cluster):
    """A cluster with such a ZooKeeper. The user of SASL is ``member``, with the password ``SASL_PASSWORD``."""

    ENSEMBLE = _SecuredEnsemble

    @property
    def tls_hosts(self) -> str:
        """ZooKeeper's connection string at the port for TLS. The certificate of the server is for 127.0.0.1."""
        return f"127.0.0.1:{self.zookeeper._port_number(1)}"

    @property
    def certificates(self) -> Path:
        """The folder with ``ca.pem``, ``client.pem`` and ``expired.pem``."""
        return self.zookeeper.folder
