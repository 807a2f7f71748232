"""Counts and pictures as text."""

import base64
from typing import Any

import numpy as np


def many(count: float, singular: str) -> str:
    """A number with its noun.

    Args:
        count: The number. Floats are shown with four digits.
        singular: The noun for exactly one; any other number adds an s.

    Returns:
        The text, with commas between thousands.

    >>> many(1, "bit"), many(1000, "client"), many(0, "round")
    ('1 bit', '1,000 clients', '0 rounds')
    >>> many(0.25, "bit"), many(1.0, "bit")
    ('0.25 bits', '1 bit')
    """
    number = f"{count:,.4g}" if isinstance(count, float) else f"{count:,}"
    return f"{number} {singular}{'' if count == 1 else 's'}"


def picture_to_text(picture: Any) -> str:
    """A picture of 28 by 28 bytes, or floats in [0, 1], in base 64."""
    array = np.asarray(picture)
    if array.dtype != np.uint8:
        array = np.rint(255 * np.clip(array, 0, 1)).astype(np.uint8)
    return base64.b64encode(array.tobytes()).decode()


def text_to_picture(text: str) -> Any:
    """Undo `picture_to_text`."""
    return np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(28, 28)
