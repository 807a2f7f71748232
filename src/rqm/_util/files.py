"""Files that are either the old or the new ones, whatever happens while they are written."""

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes, *, new: bool = False) -> None:
    """Replace a file in one step: after a crash or on a full disk it is what it was before.

    A ``new`` one must not be there yet, not even by another process: FileExistsError, and that one stays.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part" if new else f"{path.name}.part")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(temporary, path)
            temporary.unlink()
        else:
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, values: Any, *, new: bool = False) -> None:
    """Write a JSON file, atomically."""
    write_atomically(path, (json.dumps(values, indent=1) + "\n").encode(), new=new)
