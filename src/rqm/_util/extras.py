"""Libraries that only some parts need, and how they are installed."""

EXTRAS = {
    "train": ("torch",),
    "report": ("matplotlib",),
    "data": ("h5py", "pyarrow", "pillow"),
    "flower": ("flwr",),
    "docs": ("mkdocs-material",),
}
"""For each extra of the package, what it brings."""
_IMPORTED = {"PIL": "pillow"}


def how_to_install(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same error, with the command that installs what is missing."""
    name = (error.name or "").split(".")[0]
    for extra, packages in EXTRAS.items():
        if _IMPORTED.get(name, name) in packages:
            return ModuleNotFoundError(f"{name} is not installed: pip install 'rqm[{extra}]'", name=error.name)
    return error
