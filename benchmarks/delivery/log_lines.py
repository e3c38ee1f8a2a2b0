"""Values like those of a log: JSON objects of an exact size, whose content varies but compresses."""

from __future__ import annotations

import random

__all__ = ["log_lines"]

_LETTERS = "eeeetttaaoooiinnsshhrrdlcumwfgypbvk"
_PHRASES = 400


def log_lines(count: int, size: int, seed: int) -> list[bytes]:
    """Return ``count`` JSON objects of ``size`` bytes each, always the same ones for a seed."""
    chance = random.Random(seed)
    words = ["".join(chance.choices(_LETTERS, k=chance.randrange(2, 10))) for _ in range(_PHRASES)]
    phrases = [" ".join(chance.choices(words, k=4)) for _ in range(_PHRASES)]
    return [_line(number, size, phrases, chance) for number in range(count)]


def _line(number: int, size: int, phrases: list[str], chance: random.Random) -> bytes:
    """Return an object whose text fills it. As in a log, some phrases are frequent, and there are numbers between."""
    start = (
        f'{{"at":{1_448_100_000_000 + 37 * number},"user":{chance.randrange(100_000)},'
        f'"page":"/a/{chance.randrange(500)}","ms":{chance.randrange(1_000)},"text":"'
    )
    room = size - len(start) - len('"}')
    text = ""
    while len(text) < room:
        text += f"{phrases[int(_PHRASES * chance.random() ** 2)]} {chance.randrange(10_000)} "
    return f'{start}{text[:room]}"}}'.encode()
