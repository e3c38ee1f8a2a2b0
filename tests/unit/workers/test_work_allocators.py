"""The allocators of work by name."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.workers.allocation import retain_work, rotate_work, work_allocator

pytestmark = pytest.mark.unit


def test_an_allocator_has_a_name() -> None:
    """Each allocator is found by its name; the sticky one needs to know the owners."""
    assert work_allocator("round_robin") == (rotate_work, False)
    assert work_allocator("sticky") == (retain_work, True)


def test_an_unknown_name_is_refused() -> None:
    """An unknown name raises an error that names the setting, all allocators, and the one that was probably meant."""
    with pytest.raises(ConfigError) as raised:
        work_allocator("stiky", "--allocator")
    assert str(raised.value) == (
        "--allocator: there is no allocator of work 'stiky'; expected one of round_robin, sticky; did you mean"
        " 'sticky'?"
    )
