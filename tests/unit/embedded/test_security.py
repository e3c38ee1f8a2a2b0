"""The certificates and the file of a secured cluster: who can read them, and when they are made."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from kiel_groups.broker_security import BrokerSecurity
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.security import ClusterSecurity
from kiel_groups.errors import ConfigError, ServerError
from kiel_groups.security_file import ServerSecurity, read_security
from kiel_groups.zookeeper.security import ZooKeeperSecurity

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("uses_zookeeper", "kind"), [(True, ZooKeeperSecurity), (False, BrokerSecurity)])
def test_the_file_for_clients_is_legal_and_only_the_user_can_read_the_secrets(
    tmp_path: Path, uses_zookeeper: bool, kind: type[ServerSecurity]
) -> None:
    """The comments of the file are legal lines of it. A later start has the same password and authority."""
    folder = tmp_path / "data" / "security"
    security = ClusterSecurity(uses_zookeeper=uses_zookeeper)
    security.create(folder)
    warnings: list[str] = []
    (table,) = read_security(security.file, kind, warnings.append).values()
    assert (table.tls_ca, warnings) == (str(folder / "ca.pem"), [])
    with_user = "\n".join(line.removeprefix("# ") for line in security.file.read_text().splitlines() if " = " in line)
    assert tomllib.loads(with_user)["sasl-password"] == security.password
    assert folder.stat().st_mode & 0o077 == 0
    of_zookeeper = ["jaas.conf"] if uses_zookeeper else []
    for name in ("client.pem", "server.pem", "ca.key", "password", "security.toml", *of_zookeeper):
        assert (folder / name).stat().st_mode & 0o777 == 0o600, name
    authority = (folder / "ca.pem").read_bytes()
    again = ClusterSecurity(uses_zookeeper=uses_zookeeper)
    again.create(folder)
    assert (again.password, (folder / "ca.pem").read_bytes()) == (security.password, authority)
    other = ClusterSecurity(uses_zookeeper=uses_zookeeper)
    other.create(tmp_path / "other")
    assert other.password != security.password
    other.remove()
    assert not (tmp_path / "other").exists()


def test_without_openssl_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a later start would take for complete is left."""
    security = ClusterSecurity(uses_zookeeper=True)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        with pytest.raises(ServerError, match=r"'openssl' was not found; .* apt install openssl"):
            security.create(tmp_path / "security")
    security.create(tmp_path / "security")
    assert security.file.exists()


def test_what_cannot_be_secured_is_refused() -> None:
    """ZooKeeper 3.4.6 has no TLS. A cluster that is not secured has no certificates."""
    with pytest.raises(ConfigError, match=r"secure: ZooKeeper 3\.4\.6 knows no TLS; expected 3\.9\.5"):
        Cluster(secure=True, zookeeper="3.4.6")
    with pytest.raises(ConfigError, match="the cluster is not secured"):
        _ = Cluster().security
