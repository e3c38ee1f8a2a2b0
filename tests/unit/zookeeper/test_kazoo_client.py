"""
The subclass of kazoo's client raises Ctrl-C during a request, and answers requests on a dead connection with the error.
"""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path

import pytest
from kazoo.exceptions import AuthFailedError, ConnectionClosedError, ConnectionDropped, ConnectionLoss
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.zookeeper.kazoo_client import InterruptibleClient
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.security import security_of

pytestmark = pytest.mark.unit


class Socket:
    """The socket that wakes kazoo's thread for a request. Its first calls raise ``errors``."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.woken = 0

    def send(self, _wake: bytes) -> None:
        if self.errors:
            raise self.errors.pop()
        self.woken += 1


def connected_client(wake: Socket | None) -> InterruptibleClient:
    """Return a client with a session, in the state "connected"."""
    client = Runtime().client(ZooKeeperConfig.parse("127.0.0.1:1"))
    assert isinstance(client, InterruptibleClient)
    client._state = KeeperState.CONNECTED
    client._connection._write_sock = wake
    return client


def test_a_ctrl_c_during_a_request_is_raised() -> None:
    """
    Ctrl-C during a request is raised. kazoo's own client would treat it as a closed connection, and the program would
    continue without its session.
    """
    wake = Socket(KeyboardInterrupt())
    interrupted = connected_client(wake)
    with pytest.raises(KeyboardInterrupt):
        interrupted.get_async("/")
    assert wake.woken == len(interrupted._queue) == 1, "the request is queued, and the next one is not blocked"


@pytest.mark.parametrize("wake", [Socket(BrokenPipeError()), None])
def test_a_request_on_a_dead_connection_is_answered_with_the_error(wake: Socket | None) -> None:
    """A request on a dead connection is answered with the error. The call itself raises nothing."""
    answer = connected_client(wake).get_async("/")
    assert isinstance(answer.exception, ConnectionClosedError)


def test_a_request_after_the_close_is_answered_with_the_error() -> None:
    """A request after the close is answered with the same error as by kazoo's own client."""
    closed = connected_client(Socket(AssertionError("a closed client wakes no thread")))
    closed._state = KeeperState.CLOSED
    assert isinstance(closed.get_async("/").exception, ConnectionClosedError)


@pytest.mark.parametrize("answer", [ConnectionDropped(), None], ids=["closed", "refused"])
def test_a_connection_that_breaks_during_sasl_is_not_yet_a_refusal(answer: ConnectionDropped | None) -> None:
    """
    Servers before 3.6 close the connection of a client with a wrong password, as a server that dies does. A client with
    the right password must find the next server. After three such connections in a row, or an error of the server's,
    the credentials are refused.
    """
    client = Runtime().client(ZooKeeperConfig.parse("127.0.0.1:1"))
    error = AuthFailedError()
    error.__cause__ = answer

    def authenticate(host: str, timeout_s: float) -> None:
        raise error

    def tried(**works: bool) -> type[BaseException] | None:
        client._authenticate = (lambda host, timeout_s: None) if works else authenticate
        try:
            client._connection._authenticate_with_sasl("z", 1.0)
        except (AuthFailedError, ConnectionDropped) as raised:
            return type(raised)
        return None

    if answer is None:
        assert tried() is AuthFailedError
        return
    assert [tried(), tried(), tried(works=True)] == [ConnectionDropped, ConnectionDropped, None]
    assert [tried() for _ in range(3)] == [ConnectionDropped, ConnectionDropped, AuthFailedError]


def test_a_running_client_follows_acls_but_no_other_credentials(tmp_path: Path) -> None:
    """
    Znodes that it creates have the ACL that the file asks for now. An ACL for other credentials, or a file that cannot
    be read, changes nothing: the client could not use its own znodes.
    """
    path = tmp_path / "security.toml"
    table = '[zookeeper]\ndigest-user = "%s"\ndigest-password = "x"\n'
    path.write_text(table % "u", encoding="utf-8")
    client = Runtime().client(ZooKeeperConfig.parse("127.0.0.1:1", security=path))
    client.secure(security_of(ZooKeeperConfig.parse("127.0.0.1:1", security=path)))
    assert client.security.acl_of("/kiel-groups/g") is None
    path.write_text(f'{table % "u"}acl = "creator-all"\n', encoding="utf-8")
    changed = client.changed_acls()
    assert changed is not None
    assert changed.acl_of("/kiel-groups/g") == CREATOR_ALL_ACL
    client.secure(changed)
    assert client.changed_acls() is None
    for text in (f'{table % "v"}acl = ["sasl:v:cdrwa", "auth::cdrwa"]\n', "[zookeeper"):
        path.write_text(text, encoding="utf-8")
        assert client.changed_acls() is None


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _response(xid: int, error: int = 0, body: bytes = b"") -> bytes:
    return _framed(struct.pack(">iqi", xid, 1, error) + body)


#: What a hostile server sends in place of the response to the request with this number.
UNREADABLE = {
    "another number": lambda xid: _response(xid + 7),
    "no body": lambda xid: _response(xid),
    "a length beyond the end": lambda xid: _response(xid, 0, b"\x7f\xff\xff\xff" + bytes(20)),
    "half a header": lambda xid: _framed(b"ab"),
    "an unknown code": lambda xid: _response(xid, -32_000),
    "no text": lambda xid: _response(xid, 0, struct.pack(">ii", 1, 2) + b"\xff\xfe"),
}


def _received(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(length, socket.MSG_WAITALL)


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_response_that_cannot_be_read_breaks_the_connection(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """
    The outcome of the request is unknown, and the client connects again. Otherwise, kazoo's thread would end with a
    traceback, and the request would have an error of the parser, or no answer ever.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            opened = _framed(struct.pack(">iiqi", 0, 10_000, 5, 16) + bytes(17))
            for is_false in (True, False):
                connection = server.accept()[0]
                with connection:
                    _received(connection)
                    connection.sendall(opened)
                    (xid,) = struct.unpack_from(">i", _received(connection))
                    if is_false:
                        connection.sendall(UNREADABLE[what](xid))
                        connection.recv(1)
                        continue
                    connection.sendall(_response(xid, 0, struct.pack(">ii", 1, 1) + b"a"))
                    (xid,) = struct.unpack_from(">i", _received(connection))
                    connection.sendall(_response(xid))

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        client = Runtime().client(ZooKeeperConfig.parse(f"127.0.0.1:{server.getsockname()[1]}"))
        try:
            client.start(timeout=10)
            with pytest.raises(ConnectionLoss):
                client.get_children_async("/").get(timeout=10)
            # The next request may be lost with the connection, too.
            assert client.retry(client.get_children, "/") == ["a"]
        finally:
            client.stop()
            client.close()
            serving.join(10)
    (record,) = [each for each in caplog.records if each.name == "kiel_groups.zookeeper.kazoo_client"]
    assert "cannot be read" in record.message
