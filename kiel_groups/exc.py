"""Errors under the names that programs written for kiel import; ``kiel_groups.errors`` defines all errors."""

from __future__ import annotations

from kiel_groups.errors import BrokerConnectionError, KielGroupsError, NoBrokersError, NoOffsetsError

__all__ = [
    "KielError",
    "NoBrokersError",
    "NoOffsetsError",
    "BrokerConnectionError",
    "ConnectionError",
    "UnhandledResponseError",
]

#: kiel's name for the base class of all errors.
KielError = KielGroupsError

#: kiel's name for a failed connection to a broker; a module that imports the name shadows the built-in error.
ConnectionError = BrokerConnectionError  # noqa: A001 -- the name is what programs import


class UnhandledResponseError(KielError):
    """
    The error of the library kiel for a response without a handler. This package never raises the error.

    Programs written for kiel may catch the error. In this package, each request decodes its own response.
    """

    def __init__(self, api: str) -> None:
        super().__init__(f"No handler method for {api!r} api")
        self.api = api
