"""Make the error of all codecs for a message set that unpacks to too many bytes."""

from __future__ import annotations

from kiel_groups.errors import MessageTooLargeError

__all__ = ["too_large"]


def too_large(limit: int) -> MessageTooLargeError:
    """Return the error for more than ``limit`` unpacked bytes. The caller prefixes topic, partition and offset."""
    return MessageTooLargeError(f"unpacks to more than {limit} bytes; raise max_decompressed_bytes to read it")
