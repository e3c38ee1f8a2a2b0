"""Loops over the records of blocking consumers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from kiel_groups.clients.calls.loop_exit import dropped_by_loop_exit
from kiel_groups.errors import ClosedError, KielGroupsError
from kiel_groups.model import Record
from kiel_groups.sync.blocking_client import Blocking

__all__ = ["BlockingRecords"]


class BlockingRecords(Iterator[Record]):
    """One loop over the records. How the program leaves the loop decides whether the last record is finished."""

    def __init__(self, consumer: Blocking[Any]) -> None:
        self._consumer = consumer
        self._records = consumer._read_on_loop(consumer._client.__aiter__)

    def __next__(self) -> Record:
        consumer, records = self._consumer, self._records
        try:
            record: Record = consumer._wait(records.__anext__)
            return record
        except StopAsyncIteration:
            raise StopIteration from None
        except ClosedError:
            if not consumer._thread.stopped:
                raise
            raise StopIteration from None
        except KielGroupsError:
            raise
        except BaseException:
            # A Ctrl-C may arrive together with a record. If the program continues, it must get that record.
            consumer._thread.post(records.delivery.put_back)
            raise

    def __del__(self) -> None:
        # If ``__init__`` failed, there is no loop to leave.
        if hasattr(self, "_records"):
            self._consumer._thread.post(partial(self._records.end_loop, finished=dropped_by_loop_exit()))
