"""Round robin, the arguments of plain allocator functions, and refused results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from kiel_groups.allocators import AllocationOutcome, GroupSpec, allocator_name, round_robin, run_allocator, validate
from kiel_groups.allocators.round_robin import round_robin_by_topic
from kiel_groups.errors import AllocatorError
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def partition_names(outcome: AllocationOutcome) -> dict[str, list[str]]:
    return {member: sorted(map(str, given)) for member, given in outcome.allocation.items()}


def test_round_robin_assigns_in_alphabetical_order() -> None:
    """Round robin sorts partitions by their names, so t:10 comes before t:2."""
    assert round_robin(["a", "b"], ["t:1", "t:10", "t:2"]) == {"a": {"t": [1, 2]}, "b": {"t": [10]}}


def test_round_robin_with_more_members_than_partitions() -> None:
    """Round robin returns an empty entry for a member without partitions."""
    assert round_robin(["a", "b", "c"], ["t:0"]) == {"a": {"t": [0]}, "b": {}, "c": {}}


def test_round_robin_with_colons_in_names() -> None:
    """Round robin accepts member ids with colons, and splits a partition's name at its last colon."""
    assert round_robin(["host:1:x"], ["t:0"]) == {"host:1:x": {"t": [0]}}


@pytest.mark.parametrize(("members", "given"), [([], ["t:0"]), ([], []), (["a"], [])])
def test_round_robin_without_members_or_partitions(members: list[str], given: list[str]) -> None:
    """Round robin accepts an empty list of members or of partitions."""
    assert round_robin(members, given) == {member: {} for member in members}


def test_round_robin_balances_the_total_of_each_member() -> None:
    """Round robin gives fewer partitions of a shared topic to a member that is another topic's only subscriber."""
    owned = round_robin_by_topic(
        {"shared": ["a", "b", "c"], "only-a": ["a"]},
        [*partitions("shared", 6), *partitions("only-a", 3)],
    )
    assert {member: sum(map(len, topics.values())) for member, topics in owned.items()} == {"a": 3, "b": 3, "c": 3}
    assert owned["a"] == {"only-a": [0, 1, 2]}


def test_plain_function_gets_sorted_text() -> None:
    """A plain function gets the members and the partitions as text, each in alphabetical order."""
    calls = []

    def mine(members: list[str], given: list[str]) -> Mapping[str, Mapping[str, list[int]]]:
        calls.append((list(members), list(given)))
        return {"a": {"t": list(range(11))}}

    outcome = run_allocator(mine, GroupSpec.of({"b": ["t"], "a": ["t"]}, partitions("t", 11)))
    assert calls == [(["a", "b"], ["t:0", "t:1", "t:10", *(f"t:{n}" for n in range(2, 10))])]
    assert outcome.allocation == {"a": frozenset(partitions("t", 11)), "b": frozenset()}


def test_plain_function_may_change_its_arguments() -> None:
    """A plain function may change its arguments, because they are copies."""

    def greedy(members: list[str], given: list[str]) -> Mapping[str, Mapping[str, list[int]]]:
        member = members.pop()
        return {member: {"t": [int(given.pop().rpartition(":")[2]) for _ in range(len(given))]}}

    assert partition_names(run_allocator(greedy, GroupSpec.of({"a": ["t"], "b": ["t"]}, partitions("t", 2)))) == {
        "a": [],
        "b": ["t:0", "t:1"],
    }


def test_plain_function_may_return_defaultdicts_sets_and_tuples() -> None:
    """A plain function may return defaultdicts, sets, tuples and empty entries."""

    def natural(members: list[str], given: list[str]) -> Any:
        owned: Any = defaultdict(lambda: defaultdict(set))
        for text in given:
            topic, _, number = text.rpartition(":")
            owned[members[0]][topic].add(int(number))
        assert not owned[members[1]]["never"]
        owned[members[1]]["u"] = (0,)
        owned[members[0]]["u"].clear()
        return owned

    outcome = run_allocator(
        natural, GroupSpec.of({"a": ["t", "u"], "b": ["t", "u"]}, partitions("t", 2) + partitions("u", 1))
    )
    assert partition_names(outcome) == {"a": ["t:0", "t:1"], "b": ["u:0"]}


def test_plain_function_is_called_once_for_each_set_of_subscribers() -> None:
    """
    A plain function does not know subscriptions, so it is called once for each set of subscribers, with the topics that
    exactly these members subscribe to.
    """
    calls = []

    def counted(members: list[str], given: list[str]) -> Mapping[str, Mapping[str, list[int]]]:
        calls.append((tuple(members), tuple(given)))
        return round_robin(members, given)

    members = {"a": ["t", "u", "v"], "b": ["t", "u"], "c": ["v"]}
    outcome = run_allocator(
        counted, GroupSpec.of(members, partitions("t", 2) + partitions("u", 1) + partitions("v", 1))
    )
    assert sorted(calls) == [(("a", "b"), ("t:0", "t:1", "u:0")), (("a", "c"), ("v:0",))]
    assert partition_names(outcome) == {"a": ["t:0", "u:0", "v:0"], "b": ["t:1"], "c": []}


def test_default_balances_over_mixed_subscriptions() -> None:
    """The allocator None means round robin, which balances all topics together."""
    members = {"a": ["t", "u"], "b": ["u"]}
    outcome = run_allocator(None, GroupSpec.of(members, partitions("t", 2) + partitions("u", 2)))
    assert partition_names(outcome) == {"a": ["t:0", "t:1"], "b": ["u:0", "u:1"]}
    assert outcome == run_allocator(round_robin, GroupSpec.of(members, partitions("t", 2) + partitions("u", 2)))


@pytest.mark.parametrize("allocator", [None, lambda members, given: round_robin(members, given)])
def test_partitions_without_subscribers_are_unassigned(allocator: Any) -> None:
    """
    Partitions without a subscriber are returned as unassigned, with the reason. A subscription to a missing topic is no
    error.
    """
    outcome = run_allocator(allocator, GroupSpec.of({"a": ["t", "ghost"]}, partitions("t", 1) + partitions("other", 2)))
    assert partition_names(outcome) == {"a": ["t:0"]}
    assert outcome.unassigned == dict.fromkeys(partitions("other", 2), "no member subscribes")


def test_without_members_or_partitions_the_function_is_not_called() -> None:
    """
    Without members or without partitions, the function is not called. Without members, all partitions are unassigned.
    """

    def never(members: list[str], given: list[str]) -> Any:
        raise AssertionError

    outcome = run_allocator(never, GroupSpec.of({}, partitions("t", 2)))
    assert (outcome.allocation, set(outcome.unassigned)) == ({}, set(partitions("t", 2)))
    assert run_allocator(never, GroupSpec.of({"a": ["t"]}, [])) == AllocationOutcome({"a": frozenset()}, {})


def test_function_that_raises_is_named_and_chained() -> None:
    """
    An exception of the function becomes an AllocatorError of one line with the function, the exception and its text.
    The exception is the error's cause.
    """

    def broken(members: list[str], given: list[str]) -> Any:
        raise KeyError("two\nlines")

    with pytest.raises(AllocatorError) as caught:
        run_allocator(broken, GroupSpec.of({"a": ["t"]}, partitions("t", 1)))
    assert str(caught.value) == "allocator broken: it raised KeyError: 'two\\nlines'"
    assert isinstance(caught.value.__cause__, KeyError)


def test_function_with_the_wrong_signature_is_an_allocator_error() -> None:
    """A function with other parameters fails with an AllocatorError that has the text of the TypeError."""

    def one_argument(members: list[str]) -> Any:
        return {}

    with pytest.raises(AllocatorError, match="allocator one_argument: it raised TypeError: "):
        run_allocator(one_argument, GroupSpec.of({"a": ["t"]}, partitions("t", 1)))  # type: ignore[arg-type]


def test_allocators_are_named() -> None:
    """An allocator is named after its function, after the class of a callable object, or after the default."""

    class Clever:
        def __call__(self, members: list[str], given: list[str]) -> Any:
            return {}

    assert [allocator_name(one) for one in (None, round_robin, Clever())] == ["round_robin", "round_robin", "Clever"]


GIVEN = partitions("t", 2) + partitions("u", 1) + partitions("unwanted", 1)
ELIGIBLE = {"t": ["a", "b"], "u": ["b"]}

REFUSED: dict[str, tuple[object, str]] = {
    "None": (None, "it returned None; expected {member: {topic: [partition ids]}}"),
    "a list": ([("a", "t:0")], "it returned a value of type list; expected {member: {topic: [partition ids]}}"),
    "a list for a member": (
        {"a": ["t:0", "t:1"]},
        "'a' was given a value of type list; expected {member: {topic: [partition ids]}}",
    ),
    "None for a member": ({"a": None}, "'a' was given None; expected {member: {topic: [partition ids]}}"),
    "a number for a topic": (
        {"a": {"t": 0}},
        "'a' was given a value of type int for topic 't'; expected {member: {topic: [partition ids]}}",
    ),
    "text for a topic": (
        {"a": {"t": "01"}},
        "'a' was given a value of type str for topic 't'; expected {member: {topic: [partition ids]}}",
    ),
    "topic of bytes": ({"a": {b"t": [0]}}, "'a' was given topic b't', a value of type bytes; expected a string"),
    "unknown member": ({"z": {"t": [0]}}, "'z' is not among the 2 members: a, b"),
    "unknown topic": (
        {"a": {"x": [0]}},
        "'a' was given partitions of topic 'x', but there are none to hand out",
    ),
    "unknown partition": (
        {"a": {"t": [0, 2]}},
        "'a' was given t:2, which is not one of the 2 partitions of that topic",
    ),
    "negative partition": (
        {"a": {"t": [-1]}},
        "'a' was given t:-1, which is not one of the 2 partitions of that topic",
    ),
    "id as text": ({"a": {"t": ["0"]}}, "'a' was given '0' of topic 't'; partition ids are ints"),
    "id as bool": ({"a": {"t": [True]}}, "'a' was given True of topic 't'; partition ids are ints"),
    "id as float": ({"a": {"t": [1.0]}}, "'a' was given 1.0 of topic 't'; partition ids are ints"),
    "unhashable id": ({"a": {"t": [[]]}}, "'a' was given [] of topic 't'; partition ids are ints"),
    "not subscribed": (
        {"a": {"t": [0, 1], "u": [0]}},
        "'a' was given partitions of topic 'u', but does not subscribe to it",
    ),
    "no subscriber": (
        {"a": {"t": [0, 1], "unwanted": [0]}, "b": {"u": [0]}},
        "'a' was given partitions of topic 'unwanted', but does not subscribe to it",
    ),
    "twice": (
        {"a": {"t": [0, 1]}, "b": {"t": [1], "u": [0]}},
        "t:1 was handed out twice, to 'a' and to 'b'",
    ),
    "twice to one": ({"a": {"t": [1, 1]}}, "t:1 was handed out twice, to 'a' and to 'a'"),
    "left out": ({"a": {"t": [1]}}, "2 of 4 partitions were left out: t:0, u:0"),
    "all left out": ({}, "3 of 4 partitions were left out: t:0, t:1, u:0"),
}


@pytest.mark.parametrize(("result", "words"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_allocation_is_refused_in_one_line(result: object, words: str) -> None:
    """An invalid allocation is refused with one line that names the mistake."""
    with pytest.raises(AllocatorError) as caught:
        validate(result, ["a", "b"], GIVEN, ELIGIBLE)
    assert str(caught.value) == words


def test_valid_result_has_an_entry_for_every_member() -> None:
    """A member that the function omits gets no partitions. The function may omit partitions without a subscriber."""
    result = {"b": {"t": (0, 1), "u": {0}}}
    assert validate(result, ["a", "b"], GIVEN, ELIGIBLE) == {"a": frozenset(), "b": frozenset(GIVEN[:3])}


def test_long_lists_are_shortened() -> None:
    """An error about a thousand partitions is one line, with the names of the first five."""
    with pytest.raises(
        AllocatorError, match=r"^1000 of 1000 partitions were left out: t:0, t:1, t:10, t:100, t:101, …$"
    ):
        validate({}, ["a"], partitions("t", 1000), {"t": ["a"]})


def test_refusal_names_the_function() -> None:
    """The error about a refused allocation starts with the function's name."""

    def forgetful(members: list[str], given: list[str]) -> Any:
        return {}

    with pytest.raises(AllocatorError, match=r"^allocator forgetful: 1 of 1 partitions were left out: t:0$"):
        run_allocator(forgetful, GroupSpec.of({"a": ["t"]}, partitions("t", 1)))


def test_function_may_not_name_other_members() -> None:
    """The function may not assign partitions to members that subscribe only to other topics."""

    def overreaching(members: list[str], given: list[str]) -> Any:
        return {"b": {text.rpartition(":")[0]: [int(text.rpartition(":")[2])] for text in given}}

    with pytest.raises(AllocatorError, match="'b' is not among the 1 members: a"):
        run_allocator(overreaching, GroupSpec.of({"a": ["t"], "b": ["u"]}, partitions("t", 1) + partitions("u", 1)))
