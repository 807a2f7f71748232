"""What the classes of the data sets are called."""

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def names_of(data: str, classes: int) -> list[str]:
    """The names of a data set's classes: characters where they are known, else numbers.

    >>> names_of("glyphs", 62)[10:12], names_of("mine", 3)
    (['A', 'B'], ['0', '1', '2'])
    """
    known = data == "glyphs" or "mnist" in data
    return list(CHARACTERS[:classes]) if known and classes in (10, 62) else [str(label) for label in range(classes)]
