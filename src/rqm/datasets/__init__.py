"""Data sets by name: looked for in a folder that is given, in ``$RQM_DATA``, and in the user's cache."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rqm.datasets.readers import read_npz
from rqm.federated.clients import FederatedData


@final
@dataclass(frozen=True)
class Source:
    """A set that users bring: its file, how clients are told apart in it, and where it comes from."""

    file: str
    ids: str
    classes: int
    origin: str


SOURCES = {
    "mnist-writers": Source(
        "mnist-writers.npz",
        "writers",
        10,
        "MNIST with the true NIST writer of each digit (QMNIST, Yadav and Bottou 2019): arrays images (uint8, 28×28), "
        "labels, writers and is_test",
    ),
    "emnist-byclass-test": Source(
        "emnist-byclass-test.npz",
        "pseudo_writers",
        62,
        "the test part of EMNIST ByClass (Cohen et al. 2017) dealt out to synthetic clients: arrays images (uint8, "
        "28×28), labels, pseudo_writers and is_test",
    ),
}


def folders(given: Path | None = None) -> list[Path]:
    """Where data are looked for, in this order."""
    places = [given] if given else []
    if os.environ.get("RQM_DATA"):
        places.append(Path(os.environ["RQM_DATA"]))
    return [*places, cache()]


def cache() -> Path:
    """The user's cache of data sets."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rqm"


def load(name: str, folder: Path | None = None) -> FederatedData:
    """Load a data set by its name; ``glyphs`` is generated and needs no file."""
    if name == "glyphs":
        from rqm.datasets.glyphs import glyphs  # noqa: PLC0415 (draws with matplotlib)

        return glyphs()
    if name not in SOURCES:
        raise ValueError(f"data = {name}: must be among glyphs, {', '.join(SOURCES)}")
    source = SOURCES[name]
    for place in folders(folder):
        if (place / source.file).exists():
            return read_npz(place / source.file, name, source.ids, source.classes)
    looked = ", ".join(str(place) for place in folders(folder))
    raise FileNotFoundError(
        f"data = {name}: {source.file} is not in {looked}. It holds {source.origin}. Name its folder with --data DIR "
        "or $RQM_DATA."
    )
