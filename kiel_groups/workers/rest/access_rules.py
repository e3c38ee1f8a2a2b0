"""
Decide which requests the REST interface of a worker accepts.

A token, if there is one, must come with each request. Web pages must not use the interface: a browser on the machine
of a worker reaches loopback, too, and a connector may run any code. So requests of pages are refused by their header
``Origin``. The owner of a page may also let its host name resolve to loopback; such requests are refused by ``Host``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from hmac import compare_digest
from http import HTTPStatus
from urllib.parse import urlsplit

from kiel_groups.workers.rest.rest_errors import RestError
from kiel_groups.workers.rest.rest_settings import RestSettings, is_address, is_loopback

__all__ = ["AccessRules"]


class AccessRules:
    """
    The rules of one worker.

    Args:
        settings: The worker's REST interface.
    """

    def __init__(self, settings: RestSettings) -> None:
        self._token = settings.token.encode()
        # A page does not have the token; and proxies in front of a worker with a token may have names of their own.
        self._refuses_pages = not settings.token
        self._hosts = {"localhost", settings.host.lower(), settings.host_to_advertise.lower()}

    def check(self, headers: Mapping[str, str]) -> None:
        """
        Check the headers of a request.

        Raises:
            RestError: The request is refused.
        """
        if self._token and not compare_digest(_given_token(headers.get("Authorization", "")), self._token):
            raise RestError(
                HTTPStatus.UNAUTHORIZED,
                "the token is missing or wrong; expected it in the header 'Authorization: Bearer TOKEN'",
                {"WWW-Authenticate": "Bearer"},
            )
        if not self._refuses_pages:
            return
        given = headers.get("Host", "")
        host = _host_of(f"//{given}")
        # Every browser sends it; a health check by HTTP/1.0 may not.
        if given and not (is_address(host) or host in self._hosts):
            raise RestError(
                HTTPStatus.FORBIDDEN, f"the header 'Host' has {host!r:.100}; expected the address of this worker"
            )
        origin = headers.get("Origin")
        if origin is not None and not (is_loopback(_host_of(origin)) or _host_of(origin) in self._hosts):
            raise RestError(
                HTTPStatus.FORBIDDEN, f"the header 'Origin' has {origin!r:.100}: pages of other sites are refused"
            )


def _host_of(url: str) -> str:
    """Return the host in a URL, or "" if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _given_token(header: str) -> bytes:
    """Return the token of a bearer, or the password of basic credentials: clients of Kafka Connect know only these."""
    scheme, _, credentials = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip().encode()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""
