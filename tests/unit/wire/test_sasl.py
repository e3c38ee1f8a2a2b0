"""SASL: the frames of both handshakes, and what brokers refuse."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.wire.sasl import SaslError, authentication
from tests.helpers.reference_codec import array, blob, int16, int32, string

pytestmark = pytest.mark.unit

#: The answer to ApiVersions of a broker that knows both handshakes, and of one that knows the first. Answers begin with
#: the correlation ids of their requests: 0, 1, and so on.
BOTH, FIRST = (int32(0) + int16(0) + array(int16(17) + int16(0) + int16(most)) for most in (1, 0))
OFFERED = array(string("PLAIN"), string("SCRAM-SHA-256"))


def authenticating(mechanism: str = "PLAIN") -> Generator[bytes, bytes, None]:
    """Return the steps that wait for the answer to ApiVersions."""
    steps = authentication("user", "word-5512", mechanism, "c", "nonce")
    assert next(steps)[4:8] == int16(18) + int16(0)
    return steps


def started(versions: bytes, mechanism: str = "PLAIN") -> tuple[Generator[bytes, bytes, None], bytes]:
    """Return the steps after the broker has named its versions, and the frame of the handshake."""
    steps = authenticating(mechanism)
    return steps, steps.send(versions)


def framed(payload: bytes) -> bytes:
    return int32(len(payload)) + payload


def header(key: int, version: int, number: int) -> bytes:
    return int16(key) + int16(version) + int32(number) + string("c")


def test_messages_are_requests_from_1_0_on() -> None:
    """The broker's error has a text then."""
    steps, handshake = started(BOTH)
    assert handshake == framed(header(17, 1, 1) + string("PLAIN"))
    message = steps.send(int32(1) + int16(0) + OFFERED)
    assert message == framed(header(36, 0, 2) + blob(b"\0user\0word-5512"))
    with pytest.raises(StopIteration):
        steps.send(int32(2) + int16(0) + int16(-1) + blob(b""))


def test_messages_have_no_header_before_1_0() -> None:
    """The broker's answer to PLAIN is empty."""
    steps, handshake = started(FIRST)
    assert handshake == framed(header(17, 0, 1) + string("PLAIN"))
    assert steps.send(int32(1) + int16(0) + OFFERED) == framed(b"\0user\0word-5512")
    with pytest.raises(StopIteration):
        steps.send(b"")


def refused_by(steps: Generator[bytes, bytes, None], answer: bytes | OSError) -> str:
    with pytest.raises(SaslError) as raised:
        _ = steps.send(answer) if isinstance(answer, bytes) else steps.throw(answer)
    assert "word-5512" not in str(raised.value)
    return str(raised.value)


def test_what_a_broker_refuses_is_named() -> None:
    """Each text says what to do, and none has the password."""
    wrong_mechanism = int32(1) + int16(33) + OFFERED
    assert (
        refused_by(started(BOTH, "SCRAM-SHA-512")[0], wrong_mechanism)
        == "it does not offer the SASL mechanism SCRAM-SHA-512; it offers PLAIN, SCRAM-SHA-256"
    )
    no_sasl = int32(1) + int16(34) + array()
    assert refused_by(started(BOTH)[0], no_sasl).startswith("it expects no SASL at this port; leave out user and")
    assert refused_by(started(BOTH)[0], int32(1) + int16(35) + array()) == "it refuses SASL: UNSUPPORTED_VERSION (35)"
    for error, words in ((ConnectionResetError(), "closes the connection"), (TimeoutError(), "does not answer")):
        text = refused_by(authenticating(), error)
        assert text.startswith(f"it {words} before SASL begins; is this port for SASL, is TLS needed there or not, and")
        assert "a broker of 0.10 or later" in text
    for versions, answer, text in (
        (BOTH, int32(2) + int16(58) + string("Invalid username") + blob(b""), ": Invalid username"),
        (BOTH, int32(2) + int16(58) + string("a\n\x1b[2J" + "b" * 999) + blob(b""), ": a  [2J" + "b" * 294),
        (BOTH, int32(2) + int16(58) + int16(-1) + blob(b""), ": SASL_AUTHENTICATION_FAILED (58)"),
        (FIRST, ConnectionResetError(), ", or is stopping: it closed the connection"),
    ):
        steps, _ = started(versions)
        steps.send(int32(1) + int16(0) + OFFERED)
        assert refused_by(steps, answer) == f"it refuses the user or the password (PLAIN){text}"


def test_a_broker_that_does_not_know_the_password_is_refused() -> None:
    """The errors of SCRAM are errors of the connection."""
    steps, _ = started(FIRST, "SCRAM-SHA-256")
    assert steps.send(int32(1) + int16(0) + OFFERED) == framed(b"n,,n=user,r=nonce")
    steps.send(b"r=nonce1,s=QQ==,i=4096")
    assert "does not prove that it knows the password" in refused_by(steps, b"v=QUFB")


def test_an_answer_to_another_request_is_no_answer() -> None:
    """Such a server confuses its answers, so the next one may belong to another request, too."""
    steps, _ = started(BOTH)
    with pytest.raises(ProtocolError, match="an answer to another request: 0"):
        steps.send(int32(0) + int16(0) + OFFERED)
