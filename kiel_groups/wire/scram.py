"""
The client's half of SCRAM (RFC 5802), with the hash functions that Kafka offers, and without channel binding.

Kafka prepares neither users nor passwords by SASLprep: their UTF-8 bytes are used as they are.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Generator
from typing import Final

from kiel_groups.errors import ProtocolError

#: The hash function of each mechanism.
HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

#: RFC 5802 and Kafka ask for at least so many iterations. A larger number than the most would be an attack: it takes
#: longer than a connection may, and a hash cannot be interrupted.
LEAST_ITERATIONS, MOST_ITERATIONS = 4_096, 1_000_000

#: The GS2 header: no channel binding, and no user to act for.
_HEADER = "n,,"


def scram_messages(mechanism: str, user: str, password: str, nonce: str) -> Generator[bytes, bytes, None]:
    """
    Yield the client's messages, and receive the server's answer to each of them.

    Args:
        mechanism: A key of ``HASHES``.
        user: The name of the user.
        password: The password.
        nonce: Printable ASCII characters without commas. They must be unpredictable.

    Raises:
        ProtocolError: The server refuses the user or the password, does not prove that it knows the password, or sends
            something else than SCRAM asks for.
    """
    function = HASHES[mechanism]
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    first = yield f"{_HEADER}{bare}".encode()
    fields = _fields(first)
    server_nonce, salt, iterations = _challenge(fields, nonce)
    salted = hashlib.pbkdf2_hmac(function, password.encode(), salt, iterations)
    unproved = f"c={b64encode(_HEADER.encode()).decode()},r={server_nonce}"
    signed = f"{bare},{first.decode()},{unproved}".encode()
    client_key = hmac.digest(salted, b"Client Key", function)
    signature = hmac.digest(hashlib.new(function, client_key).digest(), signed, function)
    proof = bytes(ours ^ theirs for ours, theirs in zip(client_key, signature, strict=True))
    last = _fields((yield f"{unproved},p={b64encode(proof).decode()}".encode()))
    if "e" in last:
        raise ProtocolError(f"SCRAM error: {last['e']:.100}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", function), signed, function)
    if not hmac.compare_digest(expected, _decoded(last.get("v", ""), "v")):
        raise ProtocolError("a wrong signature: the server does not prove that it knows the password")


def _challenge(fields: dict[str, str], nonce: str) -> tuple[str, bytes, int]:
    """Return the nonce, the salt and the iterations of the server's first message, checked."""
    if "e" in fields:
        raise ProtocolError(f"SCRAM error: {fields['e']:.100}")
    server_nonce, given = fields.get("r", ""), fields.get("i", "")
    if not server_nonce.startswith(nonce) or server_nonce == nonce:
        raise ProtocolError("a SCRAM message without the client's nonce")
    iterations = int(given) if given.isdecimal() and len(given) < 20 else 0
    if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise ProtocolError(
            f"a SCRAM message with {given!r:.20} iterations; expected {LEAST_ITERATIONS} to {MOST_ITERATIONS}"
        )
    return server_nonce, _decoded(fields.get("s", ""), "s"), iterations


def _fields(message: bytes) -> dict[str, str]:
    """Return the values of a message by their names, which have one letter each."""
    try:
        parts = [each.partition("=") for each in message.decode().split(",")]
    except UnicodeDecodeError:
        parts = []
    if not parts or not all(len(name) == 1 and equals for name, equals, _ in parts):
        raise ProtocolError("bytes that are no SCRAM message")
    fields = {name: value for name, _, value in parts}
    if "m" in fields:
        # RFC 5802 reserves this name: who does not know the extension must not continue.
        raise ProtocolError("a SCRAM message with a mandatory extension, which this client does not know")
    return fields


def _decoded(value: str, name: str) -> bytes:
    try:
        found = b64decode(value, validate=True)
    except ValueError:
        found = b""
    if not found:
        raise ProtocolError(f"a SCRAM message whose {name!r} is not base64")
    return found
