"""Mutations: of bytes, and of values that know what JSON is."""

import json
from copy import deepcopy
from math import inf, nan
from random import Random
from typing import Any

DEEP = "@deep@"
"""Stands for lists nested 100,000 deep, which no JSON library would write."""
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        -5,
        2,
        255,
        2**31,
        -(2**31),
        2**53 + 1,
        2**63,
        2**64,
        2**64 + 1,
        10**400,
        -(10**400),
    ),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-9, 1e12, 1e300, 1e308, -1e308, 5e-324, 2.2e-308, nan, inf, -inf),
    *("", "x", "0", "1e5", "nan", "\0", "é", "\ud800", "../..", "/", "a" * 5000),
    *([], {}, [[]], [None], [1, 2], [0.5] * 300, {"a": 1}, {"": None}, DEEP),
)


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    out: list[Any] = []
    for _ in range(depth):
        out = [out]
    return out


NESTED = nested(100_000)


def damaged(data: bytes, rng: Random, other: bytes = b"") -> bytes:
    """The same bytes after a few accidents; ``other`` may be spliced in."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        start = rng.randrange(len(out) + 1)
        size = min(len(out) - start, rng.choice((1, 1, 2, 4, 8, 64, 1000)))
        kind = rng.randrange(8)
        if kind <= 1 and start < len(out):
            out[start] ^= 1 << rng.randrange(8)
        elif kind == 2:
            out[start : start + size] = bytes([rng.choice((0, 1, 127, 128, 255))]) * size
        elif kind == 3:
            del out[start : start + size]
        elif kind == 4:
            del out[start:]
        elif kind == 5:
            out[start:start] = out[start : start + size] * rng.choice((1, 2, 50))
        elif kind == 6 and other:
            there = rng.randrange(len(other))
            out[start : start + size] = other[there : there + rng.choice((size, 100))]
        else:
            out[start:start] = rng.randbytes(size)
    return bytes(out)


def changed(value: Any, rng: Random) -> Any:
    """The same value with something in it replaced, missing, extra, or of another type."""
    whole = [deepcopy(value)]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place, key = _somewhere(whole, rng)
        kind = rng.randrange(8)
        if kind == 0 and place is not whole:
            del place[key]
        elif kind == 1 and isinstance(place[key], dict):
            place[key][rng.choice(("extra", "", "mechanism", "file", "\ud800"))] = deepcopy(rng.choice(ODD))
        elif kind == 2 and isinstance(place[key], list):
            place[key] *= rng.choice((0, 2, 30))
        elif kind == 3 and isinstance(place[key], (int, float)):
            place[key] *= rng.choice((-1, 0, 2, 10**300, 1.0 if abs(place[key]) < 2**64 else 1))
        elif kind == 4 and isinstance(place[key], (int, float)):
            place[key] += rng.choice((1, -1, 0.5 if abs(place[key]) < 2**64 else 1))
        elif kind == 5:
            place[key] = rng.choice(([place[key]], {"a": place[key]}, str(place[key])[:100]))
        else:
            place[key] = deepcopy(rng.choice(ODD))
    return whole[0]


def _somewhere(whole: list[Any], rng: Random) -> tuple[Any, Any]:
    """A container inside, and a key of it."""
    place, key = whole, 0
    while isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.85:
        place = place[key]
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    return place, key


def text_of(value: Any) -> bytes:
    """A value as JSON, whose deep parts really are."""
    text = json.dumps(value)
    return text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000, 2).encode()


def value_of(value: Any) -> Any:
    """A value as Python has it, whose deep parts really are."""
    if isinstance(value, dict):
        return {key: value_of(one) for key, one in value.items()}
    if isinstance(value, list):
        return [value_of(one) for one in value]
    return NESTED if isinstance(value, str) and value == DEEP else value
