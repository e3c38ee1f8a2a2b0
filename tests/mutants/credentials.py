"""A client trusts only the servers that its file names, and gives rights only to those that the file names."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant(
        "a certificate of another server is accepted",
        "security_file.py",
        "context.check_hostname = self.tls_check_host",
        "context.check_hostname = False",
        "tests/unit/zookeeper/test_security.py",
    ),
    Mutant(
        "the shutdown of a connection ends its encryption, so that a request may follow in plain text",
        "security_file.py",
        "socket.socket.shutdown(self, how)",
        "super().shutdown(how)",
        "tests/unit/zookeeper/test_security.py",
    ),
    Mutant(
        "an answer that TLS has decrypted waits for the next one",
        "zookeeper/kazoo_client.py",
        "s.fileno() in ready or s in decrypted",
        "s.fileno() in ready",
        "tests/unit/zookeeper/test_security.py",
    ),
    Mutant(
        "the credentials for one ZooKeeper are sent to another one",
        "security_file.py",
        "if table.servers and not asked.isdisjoint(table.servers):",
        "if table.servers:",
        "tests/unit/zookeeper/test_security.py",
    ),
    Mutant(
        "a server that no table is for gets a connection in plain text",
        "security_file.py",
        "if not table.servers), None)) is None:",
        "if not table.servers), (path, kind()))) is None:",
        "tests/unit/zookeeper/test_security.py",
    ),
    Mutant(
        "a server that dies during SASL counts as one that refuses the credentials",
        "zookeeper/kazoo_client.py",
        "if self._broken >= MOST_BROKEN:",
        "if self._broken >= 1:",
        "tests/unit/zookeeper/test_kazoo_client.py",
    ),
    Mutant(
        "a session follows an ACL for other credentials than its own, and cannot use its own znodes",
        "zookeeper/kazoo_client.py",
        "if security.identities == self.security.identities and",
        "if security.identities and",
        "tests/unit/zookeeper/test_kazoo_client.py",
    ),
    Mutant(
        "a member that lacks a right joins again before it has the right, and delivers the same records once more",
        "members/zookeeper/group_session.py",
        "await self.session.check_right(self._denied)",
        "pass",
        "tests/sim/test_group_session.py",
    ),
    Mutant(
        "a try of a right writes the znode",
        "zookeeper/rights.py",
        'return Put(error.path, b""), missing',
        'return (Put(error.path, b""),)',
        "tests/sim/test_missing_rights.py",
    ),
    Mutant(
        "everyone can change what the tools of Kafka read",
        "zookeeper/security.py",
        "ACL(Permissions.READ, ANYONE_ID_UNSAFE)",
        "ACL(Permissions.ALL, ANYONE_ID_UNSAFE)",
        "tests/unit/zookeeper/test_security.py",
    ),
    Mutant(
        "a broker that does not know the password is trusted",
        "wire/scram.py",
        "if not hmac.compare_digest(",
        "if hmac.compare_digest(",
        "tests/unit/wire/test_scram.py",
    ),
    Mutant(
        "the file with the credentials is used beside arguments that ask for plain text",
        "broker_security.py",
        "if not config.has_own_security:",
        "if config.file is not None or not config.has_own_security:",
        "tests/unit/test_broker_security.py",
    ),
)
