"""Track the requests of one session: answers arrive on the event loop, and none arrives after the session's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from kazoo.exceptions import AuthFailedError, ConnectionClosedError, SessionExpiredError

from kiel_groups.errors import SessionLostError

__all__ = ["PendingRequests", "Request"]

_SESSION_OVER = (SessionExpiredError, ConnectionClosedError, AuthFailedError)

#: Starts one asynchronous kazoo request and returns kazoo's result object.
Request: TypeAlias = Callable[[], Any]


class PendingRequests:
    """
    The requests of one session that are not answered yet.

    Requests that are sent together are answered together: a thousand reads wake the event loop once.

    Args:
        call_loop: Calls a function with arguments on the event loop; may be called from any thread.
    """

    def __init__(self, call_loop: Callable[..., None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._call_loop = call_loop
        self._end_reason: str | None = None
        #: In the order of sending, so that unanswered requests fail in that order when the session ends.
        self._unanswered: dict[asyncio.Future[list[Any]], None] = {}

    def send(self, requests: Sequence[Request]) -> asyncio.Future[list[Any]]:
        """
        Start kazoo requests.

        The requests reach the server in the order in which they are given. Requests of an earlier call come first.

        Returns:
            The future to pass to ``answers``.

        Raises:
            SessionLostError: The session is over.
        """
        if self._end_reason is not None:
            raise SessionLostError(f"the ZooKeeper session is over: {self._end_reason}")
        sent: asyncio.Future[list[Any]] = self._loop.create_future()
        self._unanswered[sent] = None
        # Answers arrive on kazoo's threads. If the last two arrive at once, both may find the set complete.
        answers: dict[int, Any] = {}
        count = len(requests)

        def answered(number: int, result: Any) -> None:
            answers[number] = result.value if result.exception is None else result.exception
            if len(answers) == count:
                self._call_loop(_settle, sent, answers)

        for number, request in enumerate(requests):
            request().rawlink(partial(answered, number))
        return sent

    async def answers(self, sent: asyncio.Future[list[Any]]) -> list[Any]:
        """
        Wait for the answers to the requests of one ``send``.

        Returns:
            ZooKeeper's answer, or the error, for each request.

        Raises:
            SessionLostError: The session is over.
        """
        try:
            answers = await sent
        finally:
            self._unanswered.pop(sent, None)
        for answer in answers:
            if isinstance(answer, _SESSION_OVER):
                raise SessionLostError(f"the ZooKeeper session is over: {answer!r}") from answer
        return answers

    def end(self, reason: str) -> None:
        """Fail all unanswered requests, and every later ``send``, because the session is over."""
        self._end_reason = reason
        for sent in list(self._unanswered):
            if not sent.done():
                sent.set_exception(SessionLostError(f"the ZooKeeper session is over: {reason}"))


def _settle(sent: asyncio.Future[list[Any]], answers: dict[int, Any]) -> None:
    if not sent.done():
        sent.set_result([answers[number] for number in range(len(answers))])
