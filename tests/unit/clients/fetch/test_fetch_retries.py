"""The fetcher after errors: a scripted broker refuses, breaks connections, or does not answer."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.errors import MessageTooLargeError, OffsetOutOfRangeError
from tests.helpers.fake_broker import FETCH, METADATA, FakeBroker, Fault, Request, message_set
from tests.helpers.fetch_bench import T0, T1, T2, fetch_bench, values

pytestmark = pytest.mark.unit


async def test_out_of_range_asks_for_a_new_position() -> None:
    """The reset callback gets the lost position, and its answer is where fetching goes on."""
    async with fetch_bench(reset_to=3) as bench:
        bench.broker.append(T0, message_set(*(b"%d" % n for n in range(5))))
        bench.fetcher.assign({T0: 99})
        assert values(await bench.next_batch()) == [b"3", b"4"]
        assert bench.resets == [(T0, 99)]
        assert bench.metrics.counter("offset_resets") == 1


@pytest.mark.parametrize("refusal", [OffsetOutOfRangeError("no reset allowed", code=1), ZeroDivisionError("a bug")])
async def test_a_reset_that_fails_is_raised(refusal: Exception) -> None:
    """A policy of none, and a callback with a bug, reach whoever polls."""
    async with fetch_bench(reset_to=refusal) as bench:
        bench.fetcher.assign({T0: 99})
        assert await bench.next_error() is refusal


@pytest.mark.parametrize("code", [4, 10, 11, 17, 29, 99])
async def test_a_code_that_looks_final_is_told_and_asked_about_again(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition does not stand still for good over one answer: logged, counted, and fetched again."""
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"0"))
        bench.broker.fail_next(FETCH, T0, code, code)
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0"]
        assert bench.metrics.counter("fetch_failures") == 2
        told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(told) == 2
        assert "fetching t:0 at offset 0" in told[0]
        assert f"({code})" in told[0]


async def test_a_broker_that_refuses_for_good_is_asked_ever_more_seldom() -> None:
    """Nothing is raised, and nothing spins."""
    async with fetch_bench() as bench:
        bench.broker.fail_next(FETCH, T0, *[29] * 1_000)
        bench.fetcher.assign({T0: 0})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await bench.next_batch()
        # 2, 4, 8, 16, 20, 20 … ms, less jitter
        assert 5 <= bench.broker.count(FETCH) <= 0.3 / 0.014 + 8


async def test_an_error_that_stays_is_raised_with_pauses() -> None:
    """A program that logs errors and goes on does not spin: they double, from 2 to 20 ms here."""
    async with fetch_bench(max_bytes=4_096, max_message_bytes=10_000) as bench:
        bench.broker.append(T0, message_set(b"L" * 20_000))
        bench.fetcher.assign({T0: 0})
        raised, ends_s = 0, asyncio.get_running_loop().time() + 0.3
        while asyncio.get_running_loop().time() < ends_s:
            assert isinstance(await bench.next_error(), MessageTooLargeError)
            raised += 1
        assert 5 <= raised <= 0.3 / 0.014 + 8


async def test_retriable_errors_heal() -> None:
    """Not leader, leader not available, unknown for a while: the metadata is asked again, and the records come."""
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"0"))
        bench.broker.fail_next(FETCH, T0, 6, 5, 3, -1)
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0"]
        assert bench.broker.count(METADATA) == 5
        assert bench.metrics.counter("fetch_retries") == 4


async def test_fetching_follows_a_leader_that_moves() -> None:
    """When another broker leads, the partition is fetched from there, from the same position on."""
    async with FakeBroker({"t": 3}, node_id=1) as other, fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"0"))
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0"]
        other.append(T0, message_set(b"0", b"1"))
        for broker in (bench.broker, other):
            broker.peers = [bench.broker, other]
            broker.leaders = {T0: 1, T1: 0, T2: 0}
        bench.broker.append(T0, message_set(b"wakes the long poll up, and is not to be seen"))
        assert values(await bench.next_batch()) == [b"1"]


async def test_a_broken_connection_heals() -> None:
    """Connections that break under a long poll are opened anew, and nothing is lost or repeated."""
    async with fetch_bench(max_wait_ms=30_000) as bench:
        bench.broker.append(T0, message_set(b"0"))
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0"]
        await bench.broker.wait_for_requests(FETCH, 2)
        bench.broker.drop_connections()
        bench.broker.append(T0, message_set(b"1"))
        assert values(await bench.next_batch()) == [b"1"]


async def test_a_broker_that_does_not_answer_is_given_up() -> None:
    """A silent broker costs its timeout; the next try on a new connection succeeds."""
    silent = True

    def script(request: Request) -> Fault | None:
        return Fault.SILENT if silent and request.api_key == FETCH else None

    async with fetch_bench(FakeBroker({"t": 3}, script=script), max_wait_ms=10) as bench:
        object.__setattr__(bench.cluster.config, "request_timeout_ms", 50)
        bench.broker.append(T0, message_set(b"0"))
        bench.fetcher.assign({T0: 0})
        await bench.broker.wait_for_requests(FETCH, 2)
        silent = False
        assert values(await bench.next_batch()) == [b"0"]


async def test_retries_back_off() -> None:
    """A partition that stays without a leader is not asked for in a tight loop."""
    async with fetch_bench() as bench:
        bench.broker.leaders = {T0: -1}
        await bench.cluster.refresh(["t"], "test")
        before = bench.broker.count(METADATA)
        bench.fetcher.assign({T0: 0, T1: 0})
        bench.broker.append(T1, message_set(b"1"))
        assert values(await bench.next_batch()) == [b"1"], "the others keep flowing"
        await asyncio.sleep(0.2)
        assert 4 <= bench.broker.count(METADATA) - before <= 30
        bench.broker.leaders = {}
        bench.broker.append(T0, message_set(b"0"))
        assert values(await bench.next_batch()) == [b"0"]
