"""Allocators that other packages offer as entry points."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from importlib.metadata import EntryPoint

import pytest

from kiel_groups.allocators import allocator_of, installed_allocators, named_allocator, registry, sticky
from kiel_groups.allocators.assignors import assignors_of
from kiel_groups.cli.parameters.function_loading import load_allocator, load_assignors
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.group_settings import DynamicConfig

pytestmark = pytest.mark.unit

OFFERED = {
    "nearest": f"{__name__}:nearest",
    "sticky": f"{__name__}:nearest",
    "gone": "no_such_module:f",
    "shape": f"{__name__}:Shape",
    "number": f"{__name__}:NUMBER",
}
NUMBER = 3


class Shape:
    """A class, which is no allocator."""


def nearest(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
    return {}


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have an installed package that offers allocators."""
    points = [EntryPoint(name, value, registry.ENTRY_POINTS) for name, value in OFFERED.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == registry.ENTRY_POINTS else ())
    installed_allocators.cache_clear()
    yield
    installed_allocators.cache_clear()


def test_an_installed_allocator_is_chosen_by_its_name() -> None:
    """The name works as an argument, as an option, in a group's config, and as the assignor of a group of brokers."""
    assert allocator_of("nearest", "x") is named_allocator("nearest", "x") is load_allocator("nearest", "x")
    assert allocator_of("nearest", "x").__module__.endswith("test_entry_points")
    assert DynamicConfig.parse(b'{"allocator":"nearest"}', "/c").allocator == "nearest"
    assert [assignor.name for assignor in assignors_of(("nearest", "range"))] == ["kiel-nearest", "range"]
    assert load_assignors("nearest,range", "x") == ["nearest", "range"]


def test_a_built_in_name_wins() -> None:
    """An entry point cannot replace a built-in allocator."""
    assert named_allocator("sticky", "x") is allocator_of("sticky", "x") is sticky
    assert [assignor.name for assignor in assignors_of("sticky")] == ["kiel-sticky"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone", "'gone', which an installed package offers as 'no_such_module:f', cannot be imported: ModuleNotFound"),
        ("shape", "is a class; expected a function"),
        ("number", "is a value of type int; expected a function"),
        ("nearst", "there is no allocator 'nearst'; expected one of round_robin, sticky, weighted, lag_aware,"),
        ("nearst", "rack_aware, range, gone, nearest, number, shape; did you mean 'nearest'?"),
    ],
)
def test_what_cannot_be_used_is_refused(name: str, words: str) -> None:
    """The error names the allocator, its place, and what is wrong; a leader refuses a config with its name."""
    with pytest.raises(ConfigError, match=r"^x: ") as caught:
        load_allocator(name, "x")
    assert words in str(caught.value)
    with pytest.raises(ProtocolError) as refused:
        DynamicConfig.parse(f'{{"allocator":"{name}"}}'.encode(), "/c")
    assert str(refused.value).startswith("/c: allocator: ")
