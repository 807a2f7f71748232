"""Names of the classes of data sets, for reports."""

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def class_names(data: str, classes: int) -> list[str]:
    """The names of a data set's classes: characters if it holds handwriting, else numbers.

    Args:
        data: Name of the data set.
        classes: Number of its classes.

    >>> class_names("glyphs", 62)[10:12], class_names("own", 3)
    (['A', 'B'], ['0', '1', '2'])
    """
    has_characters = (data == "glyphs" or "mnist" in data) and classes in (10, 62)
    return list(CHARACTERS[:classes]) if has_characters else [str(label) for label in range(classes)]
