"""SCRAM: the exchanges of the RFC, and servers that do not prove that they know the password."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.wire.scram import MOST_ITERATIONS, scram_messages

pytestmark = pytest.mark.unit

NONCE = "rOprNGfwEbeRWgbNEkqO"
#: The exchange of RFC 7677 for SHA-256, and that of draft-melnikov-scram-sha-512 for SHA-512: the nonce that the server
#: adds, the salt, the client's proof and the server's signature.
EXCHANGES = {
    "SCRAM-SHA-256": (
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "W22ZaJ0SNY7soEsUEjb6gQ==",
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
    "SCRAM-SHA-512": (
        "02431b08-2f89-4bad-a4e6-80c0564ec865",
        "Yin2FuHTt/M0kJWb0t9OI32n2VmOGi3m+JfjOvuDF88=",
        "Hc5yec3NmCD7t+kFRw4/3yD6/F3SQHc7AVYschRja+Bc3sbdjlA0eH1OjJc0DD4ghn1tnXN5/Wr6qm9xmaHt4A==",
        "BQuhnKHqYDwQWS5jAw4sZed+C9KFUALsbrq81bB0mh+bcUUbbMPNNmBIupnS2AmyyDnG5CTBQtkjJ9kyY4kzmw==",
    ),
}
GOOD = f"r={NONCE}x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


@pytest.mark.parametrize("mechanism", EXCHANGES)
def test_the_exchange_of_the_rfc(mechanism: str) -> None:
    """Each message is the one of the RFC, and the right signature ends the exchange."""
    added, salt, proof, signature = EXCHANGES[mechanism]
    messages = scram_messages(mechanism, "user", "pencil", NONCE)
    assert next(messages) == f"n,,n=user,r={NONCE}".encode()
    answer = messages.send(f"r={NONCE}{added},s={salt},i=4096".encode())
    assert answer == f"c=biws,r={NONCE}{added},p={proof}".encode()
    with pytest.raises(StopIteration):
        messages.send(f"v={signature}".encode())


def test_a_user_may_have_any_character() -> None:
    """The two characters that the syntax uses are escaped."""
    assert next(scram_messages("SCRAM-SHA-256", "a,b=ü", "p", "n")) == "n,,n=a=2Cb=3Dü,r=n".encode()


@pytest.mark.parametrize(
    ("first", "error"),
    [
        ("e=unknown-user", "SCRAM error: unknown-user"),
        ("r=other,s=QQ==,i=4096", "without the client's nonce"),
        (f"r={NONCE},s=QQ==,i=4096", "without the client's nonce"),
        (f"r={NONCE}x,s=QQ==,i=4095", "'4095' iterations; expected 4096 to"),
        (f"r={NONCE}x,s=QQ==,i={MOST_ITERATIONS + 1}", "iterations; expected 4096 to"),
        (f"r={NONCE}x,s=QQ==,i={4096:020}0", "iterations; expected 4096 to"),
        (f"r={NONCE}x,s=QQ==,i=many", "'many' iterations"),
        (f"r={NONCE}x,s=%,i=4096", "'s' is not base64"),
        (f"r={NONCE}x,i=4096", "'s' is not base64"),
        (f"m=x,{GOOD}", "a mandatory extension, which this client does not know"),
        ("", "no SCRAM message"),
        ("\udcff", "no SCRAM message"),
    ],
)
def test_a_first_message_that_is_wrong_is_refused(first: str, error: str) -> None:
    """A server that asks for few iterations could find the password; one that asks for many would block the client."""
    messages = scram_messages("SCRAM-SHA-256", "user", "pencil", NONCE)
    next(messages)
    with pytest.raises(ProtocolError, match=error):
        messages.send(first.encode(errors="surrogateescape"))


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ("e=invalid-proof", "SCRAM error: invalid-proof"),
        ("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "does not prove that it knows the password"),
        ("x=6rri", "'v' is not base64"),
    ],
)
def test_a_server_that_does_not_know_the_password_is_refused(last: str, error: str) -> None:
    """Somebody who pretends to be the broker must not get the client's requests."""
    messages = scram_messages("SCRAM-SHA-256", "user", "pencil", NONCE)
    next(messages)
    messages.send(GOOD.encode())
    with pytest.raises(ProtocolError, match=error):
        messages.send(last.encode())
