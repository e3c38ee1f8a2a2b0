"""What every codec answers when a packed set stands for more than it may."""

from __future__ import annotations

from kiel_groups.errors import MessageTooLargeError

__all__ = ["too_large"]


def too_large(limit: int) -> MessageTooLargeError:
    """The error for what unpacks to more than ``limit`` bytes; the caller puts topic, partition and offset before."""
    return MessageTooLargeError(f"unpacks to more than {limit} bytes; raise max_decompressed_bytes to read it")
