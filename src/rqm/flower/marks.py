"""Marks that outlive a killed process: which stage of a round a client has answered, so that it answers none twice.

Flower sends a reply before it saves what the client knows. A process that dies in between would be asked again with
the old state: a second vector under the same masks, or a second story about who is lost. So a mark is on the disk
before an answer is made. Marks are a few bytes each, in the folder ``spent`` of the user's state; those of runs that
are over may be deleted.
"""

import os

from rqm._util.files import lock, state_folder, sync_folder
from rqm.secagg import ProtocolError

FOLDER = "spent"


def spend(fingerprint: str, stage: int) -> None:
    """Mark that the client with these keys answers this stage; ProtocolError if it has answered it, or a later one."""
    folder = state_folder() / FOLDER
    if not folder.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
    path = folder / fingerprint
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        lock(file, wait=True)
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file)):
            raise ProtocolError("the mark of what this client has answered was taken away")
        done = os.pread(file, 256, 0)
        if any(one >= stage for one in done):
            raise ProtocolError("this client has answered that stage already, and answers nothing twice")
        if os.pwrite(file, bytes([stage]), len(done)) != 1:
            raise OSError(f"{path}: the disk is full")
        os.fsync(file)
    finally:
        os.close(file)
    if not done:  # whoever has made the file may have died before its name was on the disk
        sync_folder(folder)
