"""The file with the credentials and the TLS settings of each ZooKeeper, and the errors of TLS connections."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from kazoo.exceptions import InvalidACLError, SessionClosedRequireSaslError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl_credential

from kiel_groups import security_file
from kiel_groups.config import SECURITY_VARIABLE, ZooKeeperConfig
from kiel_groups.embedded.security import Authority
from kiel_groups.errors import ConfigError, CredentialsError, NoZooKeeperError
from kiel_groups.group.znodes.transactions import Create
from kiel_groups.metrics import Metrics
from kiel_groups.ops.zookeeper_client import zookeeper
from kiel_groups.security_file import read_security
from kiel_groups.zookeeper.kazoo_client import ImmediateHandler, no_answer
from kiel_groups.zookeeper.pending_requests import PendingRequests
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.security import ZooKeeperSecurity, acl_text, security_of
from kiel_groups.zookeeper.session import Session

pytestmark = pytest.mark.unit

PASSWORD = "pass-word-2907"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Provide a function that writes the file, and returns its path."""

    def written(text: str) -> Path:
        path = tmp_path / "security.toml"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path

    return written


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_a_table_is_chosen_by_its_servers(write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A table with ``servers`` is for these servers, in any order. A table without them is for all others. A certificate
    that cannot be read is an error only for the servers of its table.
    """
    path = write(
        '[[zookeeper]]\nservers = ["z1", "z2:2281"]\nsasl-user = "e"\nsasl-password = "x"\n'
        '[[zookeeper]]\ndigest-user = "o"\ndigest-password = {env = "WORD"}\n'
        '[[zookeeper]]\nservers = "z9"\ntls-certificate = "gone.pem"\n'
    )
    monkeypatch.setenv("WORD", PASSWORD)
    monkeypatch.setenv(SECURITY_VARIABLE, str(path))
    east = security_of(ZooKeeperConfig.parse("z2:2281,z1/kafka"))
    assert east.sasl_options == {"mechanism": "DIGEST-MD5", "username": "e", "password": "x"}
    others = security_of(ZooKeeperConfig.parse("z2"))
    assert others.auth_data == {("digest", f"o:{PASSWORD}")}
    with pytest.raises(ConfigError, match=r"\[\[zookeeper\]\] 1 is not for z3:2181; add to its 'servers'"):
        security_of(ZooKeeperConfig.parse("z1,z3"))
    with pytest.raises(ConfigError, match=r"\[\[zookeeper\]\] 3 tls-certificate: .*/gone\.pem cannot be used: No such"):
        security_of(ZooKeeperConfig.parse("z9"))
    assert security_of(ZooKeeperConfig(hosts="z1:2181")) == ZooKeeperSecurity()


def test_without_a_table_for_its_servers_a_client_does_not_connect(write: Callable[[str], Path]) -> None:
    """A wrong name or port in the file must not make a connection in plain text. A table without keys is for those."""
    east = '[[zookeeper]]\nservers = "z1:2281"\ntls = true\n'
    path = write(east)
    with pytest.raises(
        ConfigError, match=r"no \[zookeeper\] table is for z1:2181; expected one, or a table without 'servers'"
    ):
        security_of(ZooKeeperConfig.parse("z1", security=path))
    path = write(f'{east}[[zookeeper]]\nservers = "z1"\n')
    assert not security_of(ZooKeeperConfig.parse("z1", security=path)).tls


def test_a_file_for_brokers_says_nothing_about_zookeeper(write: Callable[[str], Path]) -> None:
    """Servers of a kind that the file does not have are open."""
    path = write("[kafka]\ntls = true\n")
    assert security_of(ZooKeeperConfig.parse("z1", security=path)) == ZooKeeperSecurity()


def test_the_acl_depends_on_the_path(write: Callable[[str], Path]) -> None:
    """What tools of Kafka read is readable, unless the file says otherwise. Offsets may have an ACL of their own."""
    credentials = (
        f'[zookeeper]\ndigest-user = "u"\ndigest-password = "{PASSWORD}"\nacl = ["creator-all", "sasl:tools:dr"]\n'
    )
    security = read_security(write(credentials), ZooKeeperSecurity)["[zookeeper]"]
    texts = {
        path: acl_text(security.acl_of(path) or [], security)
        for path in ("/kiel-groups/g/members/m", "/consumers/g/owners/t/0", "/consumers/g/offsets/t", "/brokers/ids/1")
    }
    digest = make_digest_acl_credential("u", PASSWORD)
    own = f"digest:{digest}:cdrwa sasl:tools:dr"
    assert list(texts.values()) == [own, f"{own} world:anyone:r", f"{own} world:anyone:r", ""]
    assert security.acl_of("/kiel-groups") is security.acl_of("/consumers") is None
    others = f'acl-consumers = "digest:{digest}:cdrwa"\nacl-offsets = ["world:anyone:cdrwa"]\n'
    security = read_security(write(credentials + others), ZooKeeperSecurity)["[zookeeper]"]
    assert security.acl_of("/consumers/g/offsets/t/0") == OPEN_ACL_UNSAFE
    assert security.acl_of("/consumers/g/ids") == [make_acl("digest", digest, all=True)]


def test_an_argument_names_the_file_before_the_environment(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The configuration has the absolute path of the file, and nothing of its contents."""
    path = write(f'[zookeeper]\ndigest-user = "u"\ndigest-password = "{PASSWORD}"\n')
    monkeypatch.setenv(SECURITY_VARIABLE, "other.toml")
    monkeypatch.chdir(tmp_path)
    config = ZooKeeperConfig.parse("z", security="security.toml")
    assert config.security == str(path)
    assert ZooKeeperConfig.parse("z").security == str(tmp_path / "other.toml")
    with pytest.raises(ConfigError, match="security: 5 given; expected the path of a file"):
        ZooKeeperConfig.parse("z", security=5)  # type: ignore[arg-type]


def test_no_repr_shows_a_password(write: Callable[[str], Path]) -> None:
    """kazoo logs its requests at level DEBUG, and an application may show its objects."""
    path = write(
        f'[zookeeper]\ndigest-user = "u"\ndigest-password = "{PASSWORD}"\n'
        f'sasl-user = "v"\nsasl-password = "{PASSWORD}"\n'
    )
    security = read_security(path, ZooKeeperSecurity)["[zookeeper]"]
    client = Runtime().client(ZooKeeperConfig.parse("z", security=path))
    client.secure(security)
    shown = repr((security, client.auth_data, client._connection.sasl_options))
    assert PASSWORD not in shown
    assert shown.count("[hidden]") == 5  # the password of the key, too


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[zoo", "is not TOML"),
        ("# written in a moment\n", "has no table; expected [zookeeper] or [kafka]"),
        ('zookeeper = "z"', "zookeeper is no table; expected [zookeeper], or several as [[zookeeper]]"),
        ("zookeeper = [5]", "zookeeper is no table; expected [zookeeper], or several as [[zookeeper]]"),
        ("[east]\nservers = 'z'", "there is no kind 'east'; expected [zookeeper] and [kafka]"),
        ("[z]\nsasl_usr = 'a'", "[z]: there is no 'sasl_usr'; did you mean 'sasl-user'?"),
        ("[z]\nx = 'a'", "[z]: there is no 'x'; known: servers, sasl-user,"),
        ("[z]\nsasl-user = 'a'", "[z]: expected both 'sasl-user' and 'sasl-password', or neither"),
        (
            "[z]\ndigest-password = 'a'",
            "[z]: expected both 'digest-user' and 'digest-password', or neither",
        ),
        ("[z]\ndigest-user = 'a:b'\ndigest-password = 'c'", "[z] digest-user: it has a ':'"),
        ("[z]\nsasl-user = 1", "[z] sasl-user: 1 given; expected a text"),
        ("[z]\ntls = 'yes'", "[z] tls: 'yes' given; expected true or false"),
        (
            f"[z]\nsasl-password = ['{PASSWORD}']",
            '[z] sasl-password: expected a text, or { env = "NAME" }',
        ),
        (
            "[z]\nsasl-password = {env = 'NO_SUCH'}",
            "[z] sasl-password: the environment has no variable 'NO_SUCH'",
        ),
        ("[z]\nservers = 5", "[z] servers: 5 given; expected a string or a list"),
        (
            "[z]\ntls-ca = 'no.pem'",
            "[z] tls-ca: {folder}/no.pem cannot be used: No such file or directory",
        ),
        (
            "[z]\ntls-certificate = 'security.toml'",
            "[z] tls-certificate: {folder}/security.toml cannot be used",
        ),
        ("[z]\ntls-key = 'k'", "[z]: a key without a 'tls-certificate'; expected both"),
        ("[z]\ntls = false\ntls-check-host = true", "[z]: 'tls = false' and other keys about TLS"),
        ("[z]\nacl = 5", "[z] acl: 5 given; expected 'creator-all', or a list such as"),
        (
            "[z]\nacl = 'creator'",
            "[z] acl: 'creator' given; expected entries of a scheme (auth, digest, ip",
        ),
        ("[z]\nacl = ['sasl::r']", "[z] acl: 'sasl::r' given"),
        ("[z]\nacl = ['world:all:r']", "[z] acl: 'world:all:r' given"),
        ("[z]\nacl = ['sasl:a:rx']", "[z] acl: 'sasl:a:rx' given"),
        (f"[z]\nacl = ['digest:u:{PASSWORD}:cdrwa']", "[z] acl: an entry of the scheme 'digest' without the digest"),
        ("[z]\nacl = 'creator-all'", "[z]: an ACL for the creator, without credentials"),
        (
            "[z]\ndigest-user = ''\ndigest-password = ''\nacl = 'creator-all'",
            "[z]: an ACL for the creator, without credentials",
        ),
        ("[z]\nacl = 'world:anyone:r'", "[z] acl: no entry gives all rights to this client"),
        ("[z]\nacl = 'x509:CN=a:cdrwa'", "[z] acl: no entry gives all rights to this client"),
        (
            "[z]\nacl = 'ip:127.0.0.1:cdrwa'\nacl-offsets = 'ip:127.0.0.1:rw'",
            "[z] acl-offsets: no entry gives all rights to this client",
        ),
        (
            "[z]\ntls-ca = 'a\\u0000'".replace("'", '"'),
            "[z] tls-ca: {folder}/a\0 cannot be used: embedded null byte",
        ),
        ("[z]\nacl-offsets = 'world:anyone:r'", "[z]: 'acl-offsets' without 'acl'; expected both"),
        (
            "[[z]]\n[[z]]\n",
            "[[z]] 2: neither this table nor [[z]] 1 has 'servers'; expected at most one such",
        ),
        (
            "[[z]]\nservers = 'a,b'\n[[z]]\nservers = 'b'",
            "[[z]] 2: b:2181 is in [[z]] 1, too; expected each server once",
        ),
    ],
)
def test_a_mistake_in_the_file_is_named(write: Callable[[str], Path], text: str, error: str) -> None:
    """The error names the file, the table and the key. It does not show a password."""
    text, error = (each.replace("[z]", "[zookeeper]") for each in (text, error))
    path = write(text)
    with pytest.raises(ConfigError) as raised:
        security_of(ZooKeeperConfig.parse("z", security=path))
    assert str(raised.value).startswith(str(path))
    assert error.replace("{folder}", str(path.parent)) in str(raised.value)
    assert PASSWORD not in str(raised.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """Without the file, a client must not connect without credentials in silence."""
    with pytest.raises(CredentialsError, match=r"no\.toml cannot be read: No such file or directory"):
        Runtime().client(ZooKeeperConfig.parse("z", security=tmp_path / "no.toml")).start_async()


def test_a_file_that_vanishes_while_it_is_read_is_an_error(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be just being replaced. A running session, which reads it again and again, must not end for that."""
    path = write('[zookeeper]\nsasl-user = "u"\nsasl-password = "x"\n')
    client = Runtime().client(ZooKeeperConfig.parse("z", security=path))

    def vanished(path: Path) -> bool:
        return bool((path.parent / "no.toml").stat())

    monkeypatch.setattr(security_file, "is_open", vanished)
    with pytest.raises(ConfigError, match=r"security\.toml cannot be read: No such file or directory"):
        read_security(path, ZooKeeperSecurity)
    assert client.changed_acls() is None


def test_a_password_that_others_can_read_is_a_warning(
    write: Callable[[str], Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning appears once in each process, also if the path is relative at times."""
    path = write('[zookeeper]\nsasl-user = "u"\nsasl-password = "x"\n')
    path.chmod(0o640)
    monkeypatch.chdir(path.parent)
    for each in (path, path, Path(path.name)):
        read_security(each, ZooKeeperSecurity)
    assert [record.getMessage() for record in caplog.records] == [
        f"other users can read the secret in {path}; 'chmod 600' denies it"
    ]


async def test_an_acl_that_zookeeper_does_not_know_is_named_as_such() -> None:
    """A server knows no scheme of the ACL, for example. The error says what to look at."""
    session = Session(ZooKeeperConfig(hosts="z:2181"), Metrics(), lambda _: None, Runtime())
    refused = session.client.handler.async_result()
    refused.set([InvalidACLError()])
    session.client.transaction = lambda: Mock(commit_async=lambda: refused)
    with pytest.raises(CredentialsError, match="to create a znode in /a: it does not accept the ACL that the file"):
        await session.transact([Create("/a/b")])


async def test_a_server_that_requires_sasl_is_named_as_such() -> None:
    """Such a server answers the first request of a client without SASL with an error of its own, and closes."""
    handler = ImmediateHandler()
    handler.start()
    refused = handler.async_result()
    refused.set_exception(SessionClosedRequireSaslError())
    requests = PendingRequests(asyncio.get_running_loop().call_soon_threadsafe)
    with pytest.raises(CredentialsError, match="ZooKeeper requires SASL; name a file with a user and a password"):
        await requests.answers(requests.send([lambda: refused]))


# TLS servers in this process.


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """
    Provide a function that starts a TLS server, and returns its address.

    Its arguments are the file with key and certificate, the file with the authority of clients (or None), and what the
    server sends after the handshake.
    """
    with ExitStack() as stack:

        def serve(certificate: Path, clients: Path | None = None, answer: bytes = b"") -> str:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            if clients is not None:
                context.load_verify_locations(clients)
                context.verify_mode = ssl.CERT_REQUIRED
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def run() -> None:
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    with suppress(OSError), context.wrap_socket(connection, server_side=True) as encrypted:
                        encrypted.sendall(answer)
                        encrypted.recv(1)

            threading.Thread(target=run, daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return f"127.0.0.1:{listener.getsockname()[1]}"

        yield serve


def test_the_reason_why_tls_fails_is_named(
    write: Callable[[str], Path], authority: Authority, serve: Callable[..., str], tmp_path: Path
) -> None:
    """Each text says what is wrong: the certificate of the server, that of the client, or the use of TLS at all."""
    other = Authority(tmp_path)
    good = serve(authority.issue("good"), answer=b"x")
    trusting = write(f'[zookeeper]\ntls-ca = "{authority.path}"\n')
    cases = {
        serve(other.issue("foreign")): "its certificate is refused: unable to get local issuer certificate",
        serve(authority.issue("old", days=-1)): "its certificate is refused: certificate has expired",
        serve(authority.issue("elsewhere", host="DNS:z1")): "is refused: IP address mismatch, certificate is not valid",
        serve(authority.issue("strict"), authority.path): "it refuses this client: certificate required; is 'tls-cert",
        good: "no ZooKeeper answered at",
    }
    for address, text in cases.items():
        assert text in no_answer(ZooKeeperConfig.parse(address, security=trusting), 1.0)
    assert "speaks TLS; name a file with the key 'tls'" in no_answer(ZooKeeperConfig(hosts=good), 1.0)
    with socket.create_server(("127.0.0.1", 0)) as plain:
        threading.Thread(target=lambda: plain.accept()[0].send(b"plain text"), daemon=True).start()
        address = f"127.0.0.1:{plain.getsockname()[1]}"
        assert "it does not speak TLS" in no_answer(ZooKeeperConfig.parse(address, security=trusting), 1.0)


def test_a_tool_raises_the_reason_and_logs_nothing(
    write: Callable[[str], Path],
    authority: Authority,
    serve: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A command prints one line for one problem."""
    monkeypatch.setenv(SECURITY_VARIABLE, str(write(f'[zookeeper]\ntls-ca = "{authority.path}"\n')))
    address = serve(authority.issue("late", days=-1))
    with pytest.raises(NoZooKeeperError, match="its certificate is refused: certificate has expired"):
        zookeeper(address, timeout_s=1.5).__enter__()
    assert {record.name for record in caplog.records} <= {"kiel_groups.ops.zookeeper_client.kazoo"}


def test_what_tls_has_decrypted_counts_as_readable(authority: Authority, serve: Callable[..., str]) -> None:
    """
    A server may send two answers in one record of TLS. After the first one is read, a poll of the socket shows nothing,
    but the second one is there.
    """
    host, port = serve(authority.issue("server"), answer=b"ab").split(":")
    handler = ImmediateHandler(5.0)
    handler.security = ZooKeeperSecurity(tls=True, tls_ca=str(authority.path))
    with handler.create_connection((host, int(port)), "127.0.0.1") as connection:
        assert connection.recv(1) == b"a"
        assert handler.select([connection], [], [], 0) == ([connection], [], [])
        assert connection.recv(1) == b"b"
        assert handler.select([connection], [], [], 0) == ([], [], [])


def test_a_shutdown_by_another_thread_keeps_the_encryption(authority: Authority, serve: Callable[..., str]) -> None:
    """The thread that uses the connection finds its end. It never sends plain text."""
    host, port = serve(authority.issue("server"), answer=b"a").split(":")
    handler = ImmediateHandler(5.0)
    handler.security = ZooKeeperSecurity(tls=True, tls_ca=str(authority.path))
    with handler.create_connection((host, int(port)), "127.0.0.1") as connection:
        connection.shutdown(socket.SHUT_RDWR)
        assert connection.version() is not None
        with pytest.raises(OSError, match=r"Broken pipe|EOF|closed"):
            connection.send(b"request")


def test_a_server_that_is_slow_to_perform_a_handshake_gets_more_time_at_first(
    authority: Authority, serve: Callable[..., str]
) -> None:
    """
    The limit is for servers that never answer. A server that many clients reach at once must not be one of them. After
    the first connection, a lease must not end because a dead server is tried twice.
    """
    good = serve(authority.issue("server")).split(":")
    handler = ImmediateHandler(0.05)
    handler.security = ZooKeeperSecurity(tls=True, tls_ca=str(authority.path))
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def handshake_s() -> float:
            begin_s = time.monotonic()
            with pytest.raises(TimeoutError):
                handler.create_connection(silent.getsockname(), "z1", 1.0)
            return time.monotonic() - begin_s

        assert sum(handshake_s() for _ in range(4)) >= 0.05 + 0.1 + 0.2 + 0.4
        handler.create_connection((good[0], int(good[1])), "127.0.0.1", 5.0).close()
        assert min(handshake_s() for _ in range(3)) < 0.4


def test_a_problem_of_tls_is_logged_once(
    authority: Authority, serve: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """kazoo tries again and again, and logs nothing that operators see."""
    host, port = serve(authority.issue("server")).split(":")
    handler = ImmediateHandler(5.0)
    handler.security = ZooKeeperSecurity(tls=True, tls_ca=str(authority.path))
    for _ in range(2):
        with pytest.raises(OSError, match="mismatch"):
            handler.create_connection((host, int(port)), "z1")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            "ZooKeeper at z1: its certificate is refused: Hostname mismatch, certificate is not valid for 'z1'; trying"
            " again",
        )
    ]
