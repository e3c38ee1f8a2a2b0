"""Mutants of a full buffer: what a caller that waits gets beside it, and what no caller may have put into it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_REQUESTS = "clients/fetch/fetch_requests.py"
_BUFFER = "clients/fetch/fetch_buffer.py"
_ANSWERS = "clients/fetch/fetch_answers.py"
_STARVING = "clients/fetch/starving_callers.py"

_REQUEST_TESTS = "tests/unit/clients/fetch/test_fetch_requests.py"
_BULK_TESTS = "tests/unit/clients/fetch/test_fetch_bulk.py"
_WRAPPER_TESTS = "tests/unit/clients/fetch/test_large_wrappers.py"
_STARVING_TESTS = "tests/unit/clients/fetch/test_starving_callers.py"

MUTANTS = (
    Mutant(
        "a caller starves beside a buffer full of what it does not ask for",
        _BUFFER,
        "            self._starving.add(selection)\n",
        "",
        _BULK_TESTS,
    ),
    Mutant(
        "only the last caller gets what it waits for beside a full buffer",
        _BUFFER,
        "            self._starving.add(selection)\n",
        "            self._starving = StarvingCallers([selection])\n",
        _WRAPPER_TESTS,
    ),
    Mutant(
        "what one caller finds beside a full buffer ends the wait of all others",
        _BUFFER,
        "        if not errors and isinstance(state.buffered[0], Exception):\n",
        "        self._starving = StarvingCallers()\n"
        "        if not errors and isinstance(state.buffered[0], Exception):\n",
        _BULK_TESTS,
    ),
    Mutant(
        "a caller that waits starves because many others have asked and gone",
        _STARVING,
        "each.partitions is None or each.partitions in waiting",
        "each.partitions is None",
        _STARVING_TESTS,
    ),
    Mutant(
        "what callers that are gone have asked for is kept for ever",
        _BUFFER,
        "            if self._starving.is_over:\n",
        "            if False:\n",
        _STARVING_TESTS,
    ),
    Mutant(
        "a caller starves after the one to which it left a partition is cancelled",
        _STARVING,
        "            selection = Selection(selection.topic, selection.partitions)\n",
        "            pass\n",
        _STARVING_TESTS,
    ),
    Mutant(
        "a caller that waits gets the smallest bite although there is room for more",
        _REQUESTS,
        "max(self.bite.least, int(left / state.expansion))",
        "self.bite.least",
        _REQUEST_TESTS,
    ),
    Mutant(
        "a caller that waits has a large message of each partition unpacked into a full buffer",
        _BUFFER,
        "            self.ready.add(state)\n            self._feed(state)\n",
        "            self.ready.add(state)\n",
        _WRAPPER_TESTS,
    ),
    Mutant(
        "a caller that waits has large messages of other partitions unpacked into a full buffer",
        _REQUESTS,
        "self.starving.has(state.topic_partition)",
        "bool(self.starving)",
        _WRAPPER_TESTS,
    ),
    Mutant(
        "a small bite takes the room for which a large one waits, while a caller waits",
        _REQUESTS,
        "                    is_turn = False\n",
        "",
        _REQUEST_TESTS,
    ),
    Mutant(
        "a large message is unpacked into a full buffer",
        _ANSWERS,
        "(not self._buffer.is_full or self._buffer.room().is_awaited(state))",
        "True",
        _WRAPPER_TESTS,
    ),
)
