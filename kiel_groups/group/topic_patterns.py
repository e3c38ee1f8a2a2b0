"""
Select the topics that regular expressions match, for subscriptions by pattern.

Patterns have the syntax of Python's ``re``, and match from the beginning of a topic's name, as in kafka-python. A match
may take for ever, so this module evaluates no pattern: ``KnownMatches`` asks, and ``pattern_process`` answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from kiel_groups.errors import ConfigError
from kiel_groups.model import INTERNAL_TOPICS
from kiel_groups.wording import counted

#: The most characters of a pattern.
LONGEST_PATTERN = 1_000

#: The most bytes that the patterns of a group and the names of their topics may take. The group state, one znode, has
#: them.
MOST_BYTES = 256 << 10

#: Why topics or patterns are left out, for operators.
TOO_MANY = f"the patterns of a group and the names of their topics may take {MOST_BYTES >> 10} KiB"

#: The most comparisons of one call of the process that compares. More of them would take too much memory.
MOST_COMPARISONS = 200_000

#: What a matched topic takes in that znode besides its name (quotes and a comma), and a pattern besides its text.
_NAME_EXTRA, _PATTERN_EXTRA = 3, 400

_FLAGS = ((re.ASCII, "a"), (re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"), (re.VERBOSE, "x"))


def compiled_pattern(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """
    Check a pattern, and return it as a compiled regular expression whose text includes all of its flags.

    Raises:
        ConfigError: The argument is empty, too long, or not a regular expression for text.
    """
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str) or not text:
        raise ConfigError(f"pattern: {pattern!r} given; expected a regular expression, as text or compiled")
    try:
        if isinstance(pattern, re.Pattern):
            letters = "".join(letter for flag, letter in _FLAGS if pattern.flags & flag)
            text = text if not letters or text.startswith(f"(?{letters})") else f"(?{letters}){text}"
        if len(text) > LONGEST_PATTERN:
            raise ConfigError(f"pattern: {len(text):,} characters given; expected at most {LONGEST_PATTERN:,}")
        if not is_storable(text):
            raise ConfigError(f"pattern: {pattern!a} given; expected a regular expression of whole characters")
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"pattern: {pattern!r} is not a regular expression: {error}") from None


def is_storable(pattern: str) -> bool:
    """Return whether a pattern can be stored in a znode: it has a legal length, and no half of a character."""
    return 0 < len(pattern) <= LONGEST_PATTERN and pattern.encode(errors="ignore").decode() == pattern


class PatternMatch(NamedTuple):
    """
    The topics that a pattern matches, in ascending order.

    ``problem`` says for operators why topics are missing, or is "".
    """

    topics: tuple[str, ...] = ()
    problem: str = ""


#: The topics to compare with each pattern.
Questions: TypeAlias = Mapping[str, list[str]]
#: Whether the topics of a question match, in order, or the reason why the pattern is refused. Topics without an answer
#: are asked again.
Answers: TypeAlias = Mapping[str, list[bool] | str]


class KnownMatches:
    """
    Remembers which topics match which patterns, so that each topic is compared with each pattern once.

    A pattern that is refused matches nothing until it leaves the patterns in use: the same comparison would fail again.
    """

    def __init__(self) -> None:
        #: The compared topics of each pattern, and whether they match.
        self._compared: dict[str, dict[str, bool]] = {}
        self._refused: dict[str, str] = {}
        self._existing: frozenset[str] = frozenset()

    def questions(self, patterns: Iterable[str], topics: Iterable[str]) -> Questions:
        """
        Return the comparisons that are missing for these patterns and these existing topics. Forget all others.

        At most ``MOST_COMPARISONS`` are returned. Patterns that were compared before come first, so that a new pattern
        that takes long does not delay them.
        """
        used = frozenset(patterns)
        self._existing = existing = frozenset(topics) - INTERNAL_TOPICS
        self._refused = {pattern: why for pattern, why in self._refused.items() if pattern in used}
        self._compared = {
            pattern: {topic: found for topic, found in self._compared.get(pattern, {}).items() if topic in existing}
            for pattern in sorted(used, key=lambda pattern: (pattern not in self._compared, pattern))
        }
        asked: dict[str, list[str]] = {}
        most = MOST_COMPARISONS
        for pattern, known in self._compared.items():
            if pattern not in self._refused and (missing := sorted(existing - known.keys())[:most]):
                asked[pattern] = missing
                most -= len(missing)
        return asked

    def answered(self, questions: Questions, answers: Answers) -> None:
        """Take the answers to questions."""
        for pattern, answer in answers.items():
            if isinstance(answer, str):
                self._refused[pattern] = answer
            else:
                self._compared[pattern] |= zip(questions[pattern], answer, strict=False)

    def matches(self, left: str = "", before: Mapping[str, PatternMatch] | None = None) -> dict[str, PatternMatch]:
        """
        Return the matches of the patterns of the last ``questions``, by pattern.

        Topics and patterns beyond ``MOST_BYTES`` are left out, the last ones in order, so that successive calls leave
        out the same ones.

        Args:
            left: Why questions were not answered, for the patterns that lack an answer.
            before: The matches of the last plan. The topics that are not compared yet match as they did there, so that
                a new leader that cannot compare takes no partitions away.
        """
        before = before or {}
        found: dict[str, PatternMatch] = {}
        bytes_left = MOST_BYTES
        for pattern in sorted(self._compared):
            bytes_left -= len(json.dumps(pattern)) + _PATTERN_EXTRA
            if bytes_left < 0:
                break
            if pattern in self._refused:
                found[pattern] = PatternMatch((), self._refused[pattern])
                continue
            compared = self._compared[pattern]
            kept = self._existing.intersection(before.get(pattern, PatternMatch()).topics).difference(compared)
            topics = sorted(kept.union(topic for topic, is_match in compared.items() if is_match))
            fitting = []
            for topic in topics:
                bytes_left -= len(topic) + _NAME_EXTRA
                if bytes_left < 0:
                    break
                fitting.append(topic)
            problem = left if self._existing - compared.keys() else ""
            if len(fitting) < len(topics):
                problem = f"{counted(len(topics) - len(fitting), 'topic')} left out: {TOO_MANY}"
            found[pattern] = PatternMatch(tuple(fitting), problem)
        return found
