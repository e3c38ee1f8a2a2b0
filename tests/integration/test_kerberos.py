"""Members and commands at a ZooKeeper with Kerberos, whose KDC the test starts. Skipped where there is none."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiel_groups import GroupedConsumer
from kiel_groups.config import SECURITY_VARIABLE
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.processes import ReservedPort, accepts
from kiel_groups.embedded.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from kiel_groups.errors import CredentialsError
from tests.helpers.cluster_data import produce
from tests.helpers.commands import kiel_groups
from tests.helpers.members import Member
from tests.helpers.waiting import eventually, eventually_blocking

pytest.importorskip("kerberos")

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
_TOOLS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "kdestroy")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not all(shutil.which(tool, path=_PATH) for tool in _TOOLS), reason="there is no KDC"),
]

_CLIENT = """
[libdefaults]
default_realm = TEST
dns_lookup_kdc = false
rdns = false
dns_canonicalize_hostname = false
udp_preference_limit = 1
[realms]
TEST = {{
  kdc = 127.0.0.1:{port}
}}
"""
_SERVER = """
[kdcdefaults]
kdc_listen = 127.0.0.1:{port}
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
TEST = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
}}
"""
_JAAS = """
Server {{
    com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true useTicketCache=false
        keyTab="{folder}/zookeeper.keytab" principal="zookeeper/localhost@TEST";
}};
"""


class _Server(ZooKeeperServer):
    def _command(self) -> list[str]:
        provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
        self._overrides = {**self._overrides, "authProvider.1": provider}
        jaas, krb5 = os.environ["TEST_JAAS"], os.environ["KRB5_CONFIG"]
        java, *rest = super()._command()
        return [java, f"-Djava.security.auth.login.config={jaas}", f"-Djava.security.krb5.conf={krb5}", *rest]


class _Ensemble(ZooKeeperEnsemble):
    SERVER = _Server


class _Cluster(Cluster):
    ENSEMBLE = _Ensemble


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cluster]:
    """Start a KDC with the principals of the server and of a user, and a ZooKeeper that accepts tickets."""
    folder = tmp_path_factory.mktemp("kerberos")
    # The KDC listens beside the socket that reserves its port.
    reserved = ReservedPort()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", _PATH)
        patched.setenv("TEST_JAAS", str(folder / "jaas.conf"))
        for variable, name, text in (
            ("KRB5_CONFIG", "krb5.conf", _CLIENT),
            ("KRB5_KDC_PROFILE", "kdc.conf", _SERVER),
            ("TEST_JAAS", "jaas.conf", _JAAS),
        ):
            (folder / name).write_text(text.format(port=reserved.number, folder=folder), encoding="utf-8")
            patched.setenv(variable, str(folder / name))
        patched.setenv("KRB5CCNAME", f"FILE:{folder}/tickets")
        run("kdb5_util", "create", "-s", "-P", "master", "-r", "TEST")
        for principal, name in (("zookeeper/localhost", "zookeeper"), ("member", "member")):
            run("kadmin.local", "-q", f"addprinc -randkey {principal}")
            run("kadmin.local", "-q", f"ktadd -k {folder}/{name}.keytab {principal}")
        with subprocess.Popen(["krb5kdc", "-n"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as kdc:
            patched.setenv("TEST_KEYTAB", str(folder / "member.keytab"))
            eventually_blocking(lambda: accepts(reserved.number), "the KDC listens")
            try:
                with _Cluster() as started:
                    yield started
            finally:
                kdc.terminate()
                reserved.release()


async def test_a_member_and_a_command_with_tickets(
    cluster: _Cluster, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a ticket, they work, and the znodes have the ACL of its user. Without one, the error says so at once."""
    topic, group = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 5)
    file = tmp_path / "security.toml"
    file.write_text('[zookeeper]\nsasl-mechanism = "GSSAPI"\nacl = "creator-all"\n', encoding="utf-8")
    monkeypatch.setenv(SECURITY_VARIABLE, str(file))
    hosts = cluster.zk_hosts.replace("127.0.0.1", "localhost")
    run("kinit", "-k", "-t", os.environ["TEST_KEYTAB"], "member")
    member = await Member(cluster, group, [topic], zk_hosts=hosts).start()
    await eventually(lambda: len(member.records) == 5, "all records are delivered")
    shown = await asyncio.to_thread(kiel_groups, "acl", "show", group, "--zookeeper", hosts)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "sasl:...:cdrwa" in shown.stdout
    assert "the same" in shown.stdout
    await member.stop()
    run("kdestroy")
    with pytest.raises(CredentialsError, match=r"SASL failed: .*No Kerberos credentials available"):
        await GroupedConsumer(cluster.brokers, group, hosts).connect()
    refused = await asyncio.to_thread(kiel_groups, "describe", group, "--zookeeper", hosts)
    assert refused.returncode == 1
    assert "No Kerberos credentials available" in refused.stderr
