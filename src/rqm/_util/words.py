"""How numbers of things are said."""


def many(count: float, one: str, several: str | None = None) -> str:
    """So many of something: one bit, several bits.

    >>> many(1, "bit"), many(1000, "client"), many(0, "round"), many(2, "party", "parties")
    ('1 bit', '1,000 clients', '0 rounds', '2 parties')
    >>> many(0.25, "bit"), many(1.0, "bit")
    ('0.25 bits', '1 bit')
    """
    number = f"{count:,.4g}" if isinstance(count, float) else f"{count:,}"
    return f"{number} {one if count == 1 else several or one + 's'}"
