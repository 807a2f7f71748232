"""How much a file of data may unpack to: known from its header, and refused before anything is unpacked.

A few megabytes can be packed so that they fill all memory. Real sets are far from that: the pictures of EMNIST ByClass
take 640 MB, those of TensorFlow Federated 2.1 GB as floats, and handwriting is packed five to ten times smaller.
"""

from pathlib import Path

LARGEST = 4 * 2**30
"""Bytes that a file may unpack to, whatever its size."""
RATIO = 100
"""How many times its own size it may unpack to, …"""
SMALL = 64 * 2**20
"""… unless that is less than this."""


class TooLarge(ValueError):  # noqa: N818 (names what the file is)
    """A file that unpacks to more than is allowed."""


def check_unpacked(path: Path, size: int, what: str = "unpacks to") -> None:
    """Refuse a file that takes so many bytes in memory."""
    held = path.stat().st_size
    allowed = min(LARGEST, max(SMALL, RATIO * held))
    if size > allowed:
        raise TooLarge(
            f"{path}: has {held:,} bytes and {what} {size:,} bytes: must be at most {allowed:,} ({RATIO} times its "
            f"size, at least {SMALL >> 20} MiB and at most {LARGEST >> 30} GiB)"
        )
