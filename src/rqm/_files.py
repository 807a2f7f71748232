"""Files that are either the old or the new ones, whatever happens while they are written."""

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step: after a crash or on a full disk it is what it was before."""
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file, atomically."""
    write_atomically(path, (json.dumps(values, indent=1) + "\n").encode())
