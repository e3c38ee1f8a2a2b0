"""A broker of 3.9.1 with a listener for each kind of TLS and SASL, and users that a test can change."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kiel_groups.embedded import Cluster
from kiel_groups.embedded.kafka import KafkaBroker, KRaftBroker
from kiel_groups.embedded.processes import ReservedPort
from kiel_groups.embedded.security import Authority

__all__ = ["PASSWORD", "USER", "SecuredBrokers"]

USER, PASSWORD = "reader", "pass-word-7731"

#: The listeners besides the one in plain text, with their protocols. ``EXPIRED`` and ``ELSEWHERE`` have an expired
#: certificate and one for another host. Sessions of ``BRIEF`` end after three seconds.
LISTENERS = {
    "SSL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "BRIEF": "SASL_PLAINTEXT",
}
_MODULES = "org.apache.kafka.common.security"
_PLAIN = f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
_SCRAM = f"{_MODULES}.scram.ScramLoginModule required;"


class _Broker(KRaftBroker):
    ports: dict[str, int]
    certificates: Path

    def _command(self) -> list[str]:
        folder = self.certificates
        addresses = {"PLAINTEXT": self.port, "CONTROLLER": self._port_number(1), **self.ports}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **LISTENERS}
        self._overrides = {
            **self._overrides,
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in addresses.items()),
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": folder / "server.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": folder / "ca.pem",
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.expired.ssl.keystore.location": folder / "expired.pem",
            "listener.name.elsewhere.ssl.keystore.location": folder / "elsewhere.pem",
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": _PLAIN,
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": _SCRAM,
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": _SCRAM,
            "listener.name.brief.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.brief.scram-sha-512.sasl.jaas.config": _SCRAM,
            "listener.name.brief.connections.max.reauth.ms": 3_000,
        }
        return super()._command()


class SecuredBrokers(Cluster):
    """
    A broker with these listeners. The user is ``USER``, with the password ``PASSWORD``.

    Args:
        folder: A folder for certificates: ``ca.pem``, and ``client.pem`` for the listener ``SSL``.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(kafka="3.9.1")
        self.certificates = folder
        self.authority = Authority(folder)
        for name in ("server", "client"):
            self.authority.issue(name)
        self.authority.issue("expired", days=-1)
        self.authority.issue("elsewhere", host="DNS:kafka.example")
        self._reserved = ExitStack()
        self._ports: dict[str, int] = {}

    def _broker(self, number: int) -> KafkaBroker:
        for name in LISTENERS:
            port = ReservedPort()
            self._reserved.callback(port.release)
            self._ports[name] = port.number
        broker = _Broker(self._cluster_id, number, version="3.9.1", overrides=self._overrides_of(number))
        broker.ports, broker.certificates = self._ports, self.certificates
        return broker

    def _start(self) -> None:
        super()._start()
        self.set_user()

    def _close(self) -> None:
        super()._close()
        self._reserved.close()

    def at(self, listener: str) -> str:
        """Return the address of a listener."""
        return self.brokers[0] if listener == "PLAINTEXT" else f"127.0.0.1:{self._ports[listener]}"

    def set_user(self, password: str = PASSWORD) -> None:
        """Create the user of SCRAM, or change the password."""
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            # A request changes one credential of a user.
            self._alter(UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), password.encode()))

    def remove_user(self) -> None:
        """Remove the user of SCRAM-SHA-512."""
        self._alter(UserScramCredentialDeletion(USER, ScramMechanism.SCRAM_SHA_512))

    def _alter(self, change: UserScramCredentialAlteration) -> None:
        admin = AdminClient({"bootstrap.servers": self.at("PLAINTEXT")})
        for changed in admin.alter_user_scram_credentials([change]).values():
            changed.result(30)
