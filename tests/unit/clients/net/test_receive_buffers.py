"""The memory of large answers is used again, and never while something refers to it."""

from __future__ import annotations

import asyncio
import gc
import platform
import subprocess
import sys
from unittest.mock import patch

import pytest

from kiel_groups.clients.net import connection as receive_buffers
from kiel_groups.clients.net.connection import LEAST_REUSED_BYTES, MOST_REUSED_BYTES, Connection, ReceiveBuffers
from kiel_groups.metrics import Metrics
from kiel_groups.wire.fetch import FetchPosition, FetchRequest
from tests.helpers.fake_broker import FakeBroker, message_set
from tests.helpers.fetch_bench import T0, T1, fetch_bench, values
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

SIZE = LEAST_REUSED_BYTES


def kept(buffers: ReceiveBuffers) -> list[int]:
    """Return the sizes of the buffers that are kept."""
    return [len(buffer) for buffer in buffers._buffers]


async def test_memory_is_used_again_once_nothing_refers_to_it() -> None:
    """A part of a view is enough to keep the memory. A smaller answer gets a part of a larger buffer."""
    buffers = ReceiveBuffers()
    first = buffers.take(SIZE)
    first[:5] = b"first"
    part = first[1:3]
    first.release()
    second = buffers.take(SIZE)
    assert part == b"ir"
    assert second.obj is not part.obj
    whole = second.obj
    second.release()
    third = buffers.take(SIZE)
    assert third.obj is whole
    assert kept(buffers) == [SIZE, SIZE]
    buffers.close()


async def test_small_and_very_large_answers_have_memory_of_their_own() -> None:
    """Small answers cost little, and very large ones would keep much memory."""
    buffers = ReceiveBuffers()
    for size in (0, 1, LEAST_REUSED_BYTES - 1, MOST_REUSED_BYTES + 1):
        view = buffers.take(size)
        assert len(view) == size
        view[-1:] = b"x" if size else b""
        assert kept(buffers) == []
    buffers.close()


async def test_growing_answers_replace_the_buffers() -> None:
    """Buffers that are too small are not kept beside larger ones, and there are at most four."""
    buffers = ReceiveBuffers()
    for size in (SIZE, 2 * SIZE, 4 * SIZE):
        assert len(buffers.take(size)) == size
        assert kept(buffers) == [size]
    assert len(buffers.take(SIZE)) == SIZE
    assert kept(buffers) == [4 * SIZE]
    in_use = [buffers.take(SIZE) for _ in range(6)]
    assert len({id(view.obj) for view in in_use}) == 6
    assert len(kept(buffers)) == 4
    buffers.close()


async def test_idle_buffers_are_freed() -> None:
    """A client that has caught up keeps no memory for bulk answers. Each use starts the time anew."""
    with patch.object(receive_buffers, "_IDLE_S", 0.02):
        buffers = ReceiveBuffers()
        for _ in range(2):
            buffers.take(SIZE)
            assert kept(buffers) == [SIZE]
            await eventually(lambda: not kept(buffers), "the buffers are freed")
            assert buffers._timer is None
        buffers.take(SIZE)
        buffers.close()
        assert kept(buffers) == []
        assert buffers._timer is None


async def test_the_next_answer_leaves_the_last_one_unchanged() -> None:
    """An answer that is referred to keeps its bytes; one that is not gives its memory to a later answer."""
    async with FakeBroker({"t": 2}) as broker:
        broker.append(T0, message_set(b"0" * SIZE))
        broker.append(T1, message_set(b"1" * SIZE))
        buffers = ReceiveBuffers()
        connection = Connection(broker.address, broker.config(), Metrics(), buffers)
        answers = []
        for partition in (T0, T1, T0, T1):
            request = FetchRequest(0, 1, {partition: FetchPosition(0, 2 * SIZE)})
            answer = await connection.request(request)
            assert answer is not None
            answers.append(bytes(answer[partition].message_set[-SIZE:]))
            if len(answers) == 1:
                first = answer
            del answer
            gc.collect(0)
        assert answers == [b"0" * SIZE, b"1" * SIZE] * 2
        assert bytes(first[T0].message_set[-SIZE:]) == b"0" * SIZE
        assert len(kept(buffers)) == 2
        connection.close()
        buffers.close()


async def test_batches_have_memory_of_their_own() -> None:
    """Batches that are buffered, or were delivered, do not change with later answers into the same memory."""
    async with fetch_bench(max_bytes=2 * SIZE) as bench:
        sent = [bytes([65 + n]) * SIZE for n in range(6)]
        for value in sent:
            bench.broker.append(T0, message_set(value))
        bench.fetcher.assign({T0: 0})
        batches = []
        while sum(map(len, batches)) < len(sent):
            batches.append(await bench.next_batch())
        await asyncio.sleep(0)
        assert [value for batch in batches for value in values(batch)] == sent
        assert len(kept(bench.cluster._pool._buffers)) <= 4


IN_HEAP = f"""
import asyncio
from pathlib import Path
from kiel_groups.clients.net.connection import ReceiveBuffers

async def main():
    ReceiveBuffers().take({SIZE})
    large = b"x" * {MOST_REUSED_BYTES // 2}
    heap, = (line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
    first, end = (int(address, 16) for address in heap.split()[0].split("-"))
    print(first <= id(large) < end)

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries manage their heaps differently")
def test_the_heap_keeps_the_memory_of_records() -> None:
    """
    glibc does not return the memory of records to the system, from which the next ones would get it page by page. It
    follows one rule for that and for what it maps outside of its heap, so the test looks where some MiB are.
    """
    found = subprocess.run([sys.executable, "-c", IN_HEAP], capture_output=True, text=True, check=True)
    assert found.stdout == "True\n"
