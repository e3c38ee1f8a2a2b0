"""Values of one topic between fetched and finished, and who has them in hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tornado import gen

from kiel_groups.clients.calls.callers import ConsumeCall, consume_calls_here, new_consume_call
from kiel_groups.clients.calls.consume_future import start_consume_call
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.delivery import in_flight, record_delivery
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.member.subscription import StartPosition
from kiel_groups.model import Record, TopicPartition
from tests.unit.clients.delivery.test_record_delivery import P0, P1, Bench, settled

pytestmark = pytest.mark.unit

U0 = TopicPartition("u", 0)


def who_gets() -> ConsumeCall:
    """Whoever calls, and is given what the call returns."""
    taker = ConsumeCall()
    taker.got = True
    return taker


ME, OTHER = who_gets(), who_gets()


def take(bench: Bench, topic: str = "t", most_bytes: int = 1_000, taker: ConsumeCall = ME) -> list[Any]:
    return bench.out.take_topic(topic, most_bytes, taker)


async def test_values_are_finished_when_the_topic_is_asked_for_again() -> None:
    """All of them, of all partitions; those of another topic stay in hand."""
    bench = Bench()
    bench.claim(U0)
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(U0, 10)
    bench.fetcher.add(P1, 10)
    assert take(bench) == [10, 11, 10]
    assert take(bench, "u") == [10]
    assert bench.finished == {}
    assert bench.state().position == 12
    assert bench.out.finish_topics(["t"])
    assert bench.finished == {P0: 12, P1: 11}
    assert not bench.out.finish_topics(["t"])
    bench.out.finish_topics()
    assert bench.finished == {P0: 12, P1: 11, U0: 11}


async def test_no_more_than_about_so_many_bytes_at_once() -> None:
    """The batch that reaches the bound is the last one; the next call gets the rest."""
    bench = Bench()
    for offset in (10, 11, 12):
        bench.fetcher.add(P0, offset)
    assert take(bench, most_bytes=2) == [10, 11]
    assert take(bench, most_bytes=2) == [12]


async def test_unreadable_values_are_finished_with_the_others() -> None:
    """Or at once, where there are none: then nobody has anything in hand."""
    bench = Bench(json.loads)
    bench.fetcher.batches.append(FetchedBatch(P0, [Record("t", 0, 10, None, b"{")], 11, 1, 1))
    assert take(bench) == []
    assert bench.finished == {P0: 11}
    assert bench.out.stop([P0]) == frozenset()
    await bench.out.assigned([P0])
    records = [Record("t", 0, 11, None, b"1"), Record("t", 0, 12, None, None)]
    bench.fetcher.batches.append(FetchedBatch(P0, records, 13, 1, 1))
    assert take(bench) == [1]
    assert bench.finished == {P0: 11}
    bench.out.finish_topics()
    assert bench.finished == {P0: 13}
    assert bench.metrics.counter("deserializer_failures") == 2


async def test_an_error_comes_alone() -> None:
    """What could be read of other partitions is not lost for it."""
    bench = Bench()
    bench.fetcher.add(P1, 10)
    bench.fetcher.batches.append(ProtocolError("broken"))
    assert take(bench) == [10]
    with pytest.raises(ProtocolError, match="broken"):
        take(bench)


async def test_a_shut_gate_gives_nothing() -> None:
    """And nothing is lost for it."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.gate.suspended = True
    assert take(bench) == []
    bench.gate.suspended = False
    assert take(bench) == [10]


async def test_a_drain_waits_for_the_values_in_hand() -> None:
    """Of its partitions only."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    take(bench)
    assert bench.out.stop([P0, P1]) == {P0}
    draining = asyncio.ensure_future(bench.out.drained([P0]))
    await asyncio.wait_for(bench.out.drained([P1]), 5)
    await settled()
    assert not draining.done()
    bench.out.finish_topics(["t"])
    await asyncio.wait_for(draining, 5)


@pytest.mark.parametrize("event", ["lost", "moved"])
async def test_what_is_not_ours_any_more_does_not_count(event: str) -> None:
    """A loss, or an operator's offset: the values in hand change nothing, those of other partitions do."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10)
    take(bench)
    if event == "lost":
        bench.out.lost([P0])
        bench.subscription.unassign([P0])
        bench.subscription.assign_from_subscribed({P0: StartPosition(10, 2, 2)})
    else:
        bench.out.moved(P0, 10)
    assert bench.out.stop([P0]) == {P0}, "somebody is still busy with it"
    bench.out.finish_topics()
    assert bench.finished == {P1: 11}


async def test_two_callers_of_one_topic() -> None:
    """Both have values in hand, and neither ends what the other has; nothing for one finishes nothing of the other."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    assert take(bench, taker=ME) == [10]
    bench.fetcher.add(P1, 10)
    assert take(bench, taker=OTHER) == [10]
    assert take(bench, taker=OTHER) == []
    bench.out.finish_topics(["t"], ())
    assert bench.finished == {}
    bench.out.finish_topics(takers=[ME])
    assert bench.finished == {P0: 11}
    assert bench.out.stop([P0, P1]) == {P1}
    bench.out.finish_topics(takers=[OTHER])
    assert bench.finished == {P0: 11, P1: 11}


async def test_a_partition_is_finished_up_to_what_somebody_is_busy_with() -> None:
    """Whoever got later values of it may be done long before; theirs count when the earlier ones do."""
    bench = Bench()
    slow, quick = who_gets(), who_gets()
    for offset, taker in ((10, slow), (11, quick), (12, quick)):
        bench.fetcher.add(P0, offset)
        take(bench, taker=taker)
    bench.out.finish_topics(["t"], [quick])
    assert bench.finished == {}
    bench.fetcher.add(P0, 13)
    later = who_gets()
    take(bench, taker=later)
    bench.out.finish_topics(["t"], ())
    assert bench.finished == {}
    assert bench.out.stop([P0]) == {P0}
    slow.passed = True
    bench.out.finish_topics(["t"], ())
    assert bench.finished == {P0: 13}, "all but what came last"
    assert bench.out.stop([P0]) == {P0}
    later.passed = True
    bench.out.finish_topics(["t"], ())
    assert bench.finished == {P0: 14}
    assert bench.out.stop([P0]) == frozenset()


async def test_what_nobody_got_comes_again_while_earlier_values_are_in_hand() -> None:
    """Somebody who is busy holds up the commit, not the values."""
    bench = Bench()
    slow, abandoned = who_gets(), ConsumeCall()
    for offset, taker in ((10, slow), (11, abandoned)):
        bench.fetcher.add(P0, offset)
        take(bench, taker=taker)
    abandoned.passed = True
    assert not bench.out.redeliver_unclaimed("t")
    assert bench.fetcher.positions == {P0: 11}
    assert bench.finished == {}
    slow.passed = True
    bench.out.finish_topics(["t"], ())
    assert bench.finished == {P0: 11}


async def test_what_is_not_ours_any_more_holds_up_nothing() -> None:
    """Who is busy with values of a lost partition does not keep others from finishing it once it is ours again."""
    bench = Bench()
    slow = who_gets()
    bench.fetcher.add(P0, 10)
    take(bench, taker=slow)
    bench.out.lost([P0])
    bench.subscription.unassign([P0])
    bench.subscription.assign_from_subscribed({P0: StartPosition(10, 2, 2)})
    bench.fetcher.add(P0, 10)
    take(bench)
    bench.out.finish_topics(["t"], [ME])
    assert bench.finished == {P0: 11}
    assert bench.out.stop([P0]) == {P0}, "somebody is still busy with it"


async def test_a_coroutine_that_is_gone_is_done() -> None:
    """Be it a task or a helper in Tornado's way: nobody could ask again for it. What it started does not matter."""
    consumer = object()

    async def asks() -> ConsumeCall:
        taker = new_consume_call(consumer, "t")
        taker.got = await asyncio.wait_for(start_consume_call(values_soon(), ConsumeCall(), "a call"), 5) == [1]
        assert not taker.over
        return taker

    @gen.coroutine
    def theirs() -> Any:
        return (yield asks())

    async def stays(ended: asyncio.Event) -> ConsumeCall:
        taker = new_consume_call(consumer, "t")
        spawn(ended.wait(), "outlives whoever asked")
        return taker

    ended = asyncio.Event()
    for call in (theirs, lambda: asyncio.ensure_future(asks()), lambda: asyncio.ensure_future(stays(ended))):
        taker = await call()
        await settled()
        assert taker.over, call
    here = new_consume_call(consumer, "t")
    await settled()
    assert not here.over
    ended.set()


async def test_put_down_values_are_not_finished() -> None:
    """Nobody is busy with them any more, so nothing waits either."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    take(bench)
    waiting = asyncio.ensure_future(bench.out.topics_finished())
    bench.out.drop_values([OTHER])
    await settled()
    assert not waiting.done()
    bench.out.drop_values([ME])
    await asyncio.wait_for(waiting, 5)
    assert bench.finished == {}


async def test_loops_and_topics_exclude_each_other() -> None:
    """Nobody could tell what is finished."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    take(bench)
    with pytest.raises(ConfigError, match="not both"):
        bench.out.enter()
    bench.out.finish_topics()
    bench.out.enter()
    with pytest.raises(ConfigError, match="not both"):
        take(bench)


async def test_a_coroutine_knows_what_it_took() -> None:
    """Of each topic the last; others do not know it, be they tasks or coroutines of Tornado."""
    consumer, another = object(), object()
    first = new_consume_call(consumer, "t")
    second, third = new_consume_call(consumer, "t"), new_consume_call(consumer, "u")
    new_consume_call(another, "t")
    assert consume_calls_here(consumer) == {second, third}
    assert first not in consume_calls_here(consumer)

    @gen.coroutine
    def theirs() -> Any:
        mine = new_consume_call(consumer, "t")
        yield gen.sleep(0)
        assert mine in consume_calls_here(consumer)
        return mine

    async def task() -> object:
        return new_consume_call(consumer, "t")

    for taken in (await theirs(), await asyncio.ensure_future(task())):
        assert taken not in consume_calls_here(consumer)


async def test_who_was_started_by_a_coroutine_has_nothing_once_that_asks_again() -> None:
    """Such as who processes the values, and commits: until then it has what its starter took."""
    consumer = object()
    first = new_consume_call(consumer, "t")
    seen: list[frozenset[ConsumeCall]] = []
    asked_again = asyncio.Event()

    async def processes() -> None:
        seen.append(consume_calls_here(consumer))
        await asked_again.wait()
        seen.append(consume_calls_here(consumer))

    processing = asyncio.ensure_future(processes())
    await settled()
    new_consume_call(consumer, "t")
    asked_again.set()
    await asyncio.wait_for(processing, 5)
    assert seen == [{first}, frozenset()]


async def test_values_that_nobody_got_come_again() -> None:
    """Who asked has asked anew meanwhile, and never saw them: they are not finished, nor is what came after them."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    abandoned = ConsumeCall()
    take(bench, taker=abandoned)
    bench.fetcher.add(P0, 12)
    take(bench)
    abandoned.passed = True
    bench.out.finish_topics(["t"])
    assert bench.finished == {}
    assert bench.fetcher.positions == {P0: 10, P1: 10}
    assert bench.state().position == 10
    assert bench.metrics.counter("values_unclaimed") == 2
    assert bench.out.stop([P0, P1]) == frozenset(), "nobody is busy with them"


async def test_a_drain_waits_for_who_is_busy_with_values_after_those_that_nobody_got() -> None:
    """They come again, so they count as unfinished; the coroutine that processes them is not done for that."""
    bench = Bench()
    abandoned, slow = ConsumeCall(), who_gets()
    bench.fetcher.add(P0, 10)
    take(bench, taker=abandoned)
    bench.fetcher.add(P0, 11)
    take(bench, taker=slow)
    abandoned.passed = True
    assert not bench.out.redeliver_unclaimed("t")
    assert bench.fetcher.positions == {P0: 10}
    assert bench.out.stop([P0]) == {P0}
    draining = asyncio.ensure_future(bench.out.drained([P0]))
    await settled()
    assert not draining.done()
    slow.passed = True
    bench.out.finish_topics(["t"], ())
    await asyncio.wait_for(draining, 5)
    assert bench.finished == {}, "what was before it comes again"


async def test_a_drain_waits_for_who_gets_values_after_those_that_nobody_got() -> None:
    """Also where their caller has not fetched them yet at the moment at which the earlier ones are given up."""
    bench = Bench()
    abandoned, late = ConsumeCall(), ConsumeCall()
    bench.fetcher.add(P0, 10)
    take(bench, taker=abandoned)
    bench.fetcher.add(P0, 11)
    take(bench, taker=late)
    abandoned.passed = True
    assert bench.out.redeliver_unclaimed("t")
    late.got = True
    assert not bench.out.redeliver_unclaimed("t")
    assert bench.out.stop([P0]) == {P0}
    late.passed = True
    bench.out.finish_topics(["t"], ())
    assert bench.out.stop([P0]) == frozenset()
    assert bench.finished == {}


def give_up_within(monkeypatch: pytest.MonkeyPatch, unclaimed_s: float) -> None:
    """Have a drain give up values soon that no caller has got."""
    monkeypatch.setattr(record_delivery, "UNCLAIMED_S", unclaimed_s)
    monkeypatch.setattr(in_flight, "UNCLAIMED_S", unclaimed_s)


async def test_a_drain_gives_up_values_that_nobody_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Their caller had given up, and no coroutine asks for the topic again. What was got stays in flight, also if the
    coroutine that got it has ended: another one may be processing it.
    """
    give_up_within(monkeypatch, 0.01)
    bench = Bench()
    helper, abandoned = who_gets(), ConsumeCall()
    bench.fetcher.add(P0, 10)
    take(bench, taker=helper)
    bench.fetcher.add(P1, 10)
    take(bench, taker=abandoned)
    helper.known()
    assert helper.over
    bench.out.stop([P0, P1])
    busy = asyncio.ensure_future(bench.out.drained([P0]))
    await asyncio.wait_for(bench.out.drained([P1]), 5)
    assert not busy.done()
    assert bench.finished == {}
    bench.out.finish_topics(["t"], ())
    await asyncio.wait_for(busy, 5)
    assert bench.finished == {P0: 11}


async def test_a_drain_ends_with_what_was_declared_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later values are finished, as after ``commit_offsets()``, and the earlier ones are given up."""
    give_up_within(monkeypatch, 0.01)
    bench = Bench()
    finished = who_gets()
    bench.fetcher.add(P0, 10)
    take(bench, taker=ConsumeCall())
    bench.fetcher.add(P0, 11)
    take(bench, taker=finished)
    bench.out.finish_topics(None, {finished})
    assert bench.out.stop([P0]) == {P0}
    await asyncio.wait_for(bench.out.drained([P0]), 5)
    assert bench.finished == {}


async def test_values_that_a_drain_gave_up_are_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """``gather`` looks at a call when the others have ended: the next owner has these values by then."""
    give_up_within(monkeypatch, 0.01)
    bench = Bench()
    taker = ConsumeCall()
    bench.fetcher.add(P0, 10)
    take(bench, taker=taker)
    call = start_consume_call(values_soon(), taker, "a call")
    awaited = start_consume_call(values_soon(), taker, "another")
    bench.out.stop([P0])
    await asyncio.wait_for(bench.out.drained([P0]), 5)
    await asyncio.wait({call, awaited})
    assert (call.result(), await awaited) == ([], [])


async def test_a_drain_leaves_values_that_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that gets them within a second is processing them: the drain waits for it."""
    monkeypatch.setattr(record_delivery, "UNCLAIMED_S", 0.01)
    monkeypatch.setattr(in_flight, "UNCLAIMED_S", 3_600.0)
    bench = Bench()
    late = ConsumeCall()
    bench.fetcher.add(P0, 10)
    take(bench, taker=late)
    bench.out.stop([P0])
    draining = asyncio.ensure_future(bench.out.drained([P0]))
    await asyncio.sleep(0.05)
    late.got = True
    assert not draining.done()
    late.passed = True
    bench.out.finish_topics(["t"], ())
    await asyncio.wait_for(draining, 5)
    assert bench.finished == {P0: 11}


async def test_values_before_those_that_nobody_got_are_finished() -> None:
    """Each partition is finished up to the first value that nobody got."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    take(bench)
    bench.fetcher.add(P0, 12)
    abandoned = ConsumeCall()
    take(bench, taker=abandoned)
    abandoned.passed = True
    bench.out.finish_topics()
    assert bench.finished == {P0: 12, P1: 11}
    assert bench.fetcher.positions == {P0: 12}


async def test_values_that_are_on_their_way_stay_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another coroutine, which may be about to get them; after a second it is not."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    other = ConsumeCall()
    take(bench, taker=other)
    bench.fetcher.add(P0, 11)
    take(bench)
    bench.out.finish_topics(["t"])
    assert bench.finished == {}
    assert bench.out.stop([P0]) == {P0}
    other.got = True
    bench.out.finish_topics(["t"])
    assert bench.finished == {P0: 12}
    await bench.out.assigned([P0])
    late = ConsumeCall()
    bench.fetcher.add(P0, 12)
    take(bench, taker=late)
    monkeypatch.setattr(in_flight, "UNCLAIMED_S", -1.0)
    bench.out.finish_topics(["t"])
    assert bench.finished == {P0: 12}
    assert bench.fetcher.positions == {P0: 12}
    assert bench.state().position == 12
    assert bench.metrics.counter("values_unclaimed") == 1


async def test_what_is_not_ours_any_more_does_not_come_again() -> None:
    """A partition that was lost, or is to be handed over, is somebody else's to hand out."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10)
    abandoned = ConsumeCall()
    take(bench, taker=abandoned)
    abandoned.passed = True
    bench.out.lost([P0])
    bench.out.stop([P1])
    bench.out.finish_topics(["t"])
    assert bench.fetcher.positions == {}
    assert bench.finished == {}


async def values_soon() -> list[Any]:
    await asyncio.sleep(0.01)
    return [1]


async def test_who_awaits_a_call_gets_its_values() -> None:
    """By await, in a coroutine of Tornado, through gather, or by a look at the result."""

    @gen.coroutine
    def yields(call: Any) -> Any:
        return (yield call)

    async def looks(call: Any) -> Any:
        await asyncio.wait({call})
        return call.result()

    async def awaits(call: Any) -> Any:
        return await call

    for way in (awaits, yields, looks, asyncio.gather, lambda call: asyncio.wait_for(call, 5)):
        taker = ConsumeCall()
        found = await way(start_consume_call(values_soon(), taker, "a call"))  # type: ignore[no-untyped-call]
        assert found in ([1], [[1]])
        assert taker.got, way


async def test_who_gave_up_does_not_get_the_values() -> None:
    """By gen.with_timeout, which looks at the outcome and drops it; by never looking at all."""
    loop = asyncio.get_running_loop()
    given_up, unseen = ConsumeCall(), ConsumeCall()
    call = start_consume_call(values_soon(), given_up, "a call")
    with pytest.raises(TimeoutError):
        await gen.with_timeout(loop.time() + 0.001, call)
    other = start_consume_call(values_soon(), unseen, "a call")
    await asyncio.wait({call, other})
    await settled()
    assert (given_up.got, unseen.got) == (False, False)


async def test_who_is_cancelled_as_the_values_come_does_not_get_them() -> None:
    """In the very turn of the loop in which they are there."""
    taker = ConsumeCall()
    call = start_consume_call(values_soon(), taker, "a call")

    async def awaits() -> Any:
        return await call

    waiting = asyncio.ensure_future(awaits())
    call.add_done_callback(lambda _: waiting.cancel())
    await settled()
    # The callback above was added first, so it runs before the one that wakes the waiting task.
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert call.done()
    assert not taker.got


async def test_a_coroutine_that_asks_again_waits_for_its_former_call_no_more() -> None:
    """Of the same topic; another coroutine's calls are its own."""
    consumer = object()

    async def another() -> ConsumeCall:
        return new_consume_call(consumer, "t")

    asking_too = asyncio.ensure_future(another())
    first = new_consume_call(consumer, "t")
    new_consume_call(consumer, "u")
    others = await asking_too
    assert (first.passed, others.passed) == (False, False)
    new_consume_call(consumer, "t")
    assert (first.passed, others.passed) == (True, False)
