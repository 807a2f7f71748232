"""Pictures of handwriting, 28 by 28, as text."""

import base64
from typing import Any

import numpy as np


def packed(picture: Any) -> str:
    """A picture of bytes, or of floats in [0, 1], as text."""
    array = np.asarray(picture)
    if array.dtype != np.uint8:
        array = np.rint(255 * np.clip(array, 0, 1)).astype(np.uint8)
    return base64.b64encode(array.tobytes()).decode()


def unpacked(text: str) -> Any:
    """What ``packed`` wrote."""
    return np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(28, 28)
