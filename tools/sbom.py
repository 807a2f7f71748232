"""``python -m tools.sbom FILE``: what the package and its extras bring along, as a CycloneDX bill of materials.

It is read off what is installed here: names, versions, licences as their packages state them, and who needs whom.
"""

import argparse
import json
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

EXTRAS = ("report", "train", "data", "flower")
"""What users install; tools of developers are not shipped."""


def canonical(name: str) -> str:
    """A package's name as registries write it.

    >>> canonical("Typing_Extensions")
    'typing-extensions'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(found: Distribution, extras: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a distribution needs here, each with the extras of it that are meant."""
    from packaging.requirements import Requirement  # noqa: PLC0415 (comes with pytest, not with the package)

    for line in found.requires or []:
        one = Requirement(line)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield canonical(one.name), tuple(sorted(one.extras))


def closure(root: str, extras: tuple[str, ...]) -> dict[str, list[str]]:
    """Everything that a package needs, directly or not, and what each of them needs."""
    found: dict[str, list[str]] = {}
    todo = [(root, extras)]
    while todo:
        name, wanted = todo.pop()
        if name in found:
            continue
        try:
            inner = list(needs(distribution(name), wanted))
        except PackageNotFoundError:  # optional, and not for this machine
            continue
        found[name] = sorted({one for one, _ in inner})
        todo += inner
    there = found.keys()
    return {name: [one for one in inner if one in there] for name, inner in sorted(found.items())}


def licence(found: Distribution) -> str:
    """What a package says that its licence is."""
    about = found.metadata
    stated = str((about.get_all("License-Expression") or about.get_all("License") or [""])[0])
    classified = [
        one.rpartition(" :: ")[2] for one in about.get_all("Classifier") or [] if one.startswith("License ::")
    ]
    short = stated.strip().splitlines()[0] if stated.strip() and len(stated) < 200 else ""
    return short or ", ".join(classified) or "not stated"


def bill(root: str = "rqm", extras: tuple[str, ...] = EXTRAS) -> dict[str, Any]:
    """The bill of materials, the same for the same versions."""
    tree = closure(root, extras)

    def component(name: str) -> dict[str, Any]:
        found = distribution(name)
        return {
            "type": "library",
            "bom-ref": name,
            "name": name,
            "version": found.version,
            "purl": f"pkg:pypi/{name}@{found.version}",
            "licenses": [{"license": {"name": licence(found)}}],
        }

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(root)},
        "components": [component(name) for name in tree if name != root],
        "dependencies": [{"ref": name, "dependsOn": inner} for name, inner in tree.items()],
    }


def main(arguments: list[str] | None = None) -> None:
    """Write the bill."""
    parser = argparse.ArgumentParser(prog="python -m tools.sbom")
    parser.add_argument("file", type=Path)
    path = parser.parse_args(arguments).file
    made = bill()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n")
    unknown = [one["name"] for one in made["components"] if one["licenses"][0]["license"]["name"] == "not stated"]
    print(
        f"{path}: {len(made['components'])} packages"
        + (f"; no licence stated: {', '.join(unknown)}" if unknown else "")
    )


if __name__ == "__main__":
    main()
