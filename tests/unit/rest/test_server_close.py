"""The end of a REST server while it answers a request."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kiel_groups.rest.calls import Answer, RestCall, Route
from kiel_groups.rest.server import RestServer
from kiel_groups.rest.settings import RestSettings
from tests.helpers.rest_requests import address_of

pytestmark = pytest.mark.unit


def test_a_request_that_the_end_of_the_loop_cancels_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Tornado answers a cancelled request, too, and gives no error to the method that writes the answer."""
    caplog.set_level(logging.ERROR)

    async def run() -> None:
        began = asyncio.Event()

        async def never(call: RestCall) -> Answer:
            began.set()
            await asyncio.Event().wait()
            return Answer()

        server = RestServer(RestSettings(port=0))
        server.start([Route("/a", {"GET": never})])
        _, writer = await asyncio.open_connection(*address_of(server.url))
        writer.write(b"GET /a HTTP/1.0\r\n\r\n")
        await began.wait()
        await server.close()

    asyncio.run(run())
    assert caplog.records == []
