"""The errors by the names that programs written for kiel import; ``kiel_groups.errors`` has all of them."""

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

#: kiel's name for everything that is raised on purpose.
KielError = KielGroupsError

#: kiel's name for a connection to a broker that went bad; it hides the built-in one from whoever imports it.
ConnectionError = BrokerConnectionError  # noqa: A001 -- the name is what programs import


class UnhandledResponseError(KielError):
    """
    For programs that catch it. kiel raises it where a client lacks the handler of an answer; here answers belong to
    their requests, and nothing raises it.
    """

    def __init__(self, api: str) -> None:
        super().__init__(f"no handler for answers of kind {api!r}")
        self.api = api
