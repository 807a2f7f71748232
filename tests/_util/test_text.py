"""How numbers of things are said."""

from rqm._util.text import many
from tests.commands import rqm


def test_one_is_one_of_them():
    assert [many(n, "bit") for n in (0, 1, 2, 1000)] == ["0 bits", "1 bit", "2 bits", "1,000 bits"]
    assert [many(x, "bit") for x in (0.25, 1.0, 12345.0)] == ["0.25 bits", "1 bit", "1.234e+04 bits"]


def test_commands_say_one_bit_and_one_report():
    output = rqm("privacy", "--mechanism", "rounding", "--levels", "2", "--margin", "20").stdout
    assert "clip² a client, 1 bit " in output
    assert rqm("privacy", "--mechanism", "rappor").stdout.startswith("1 report of one value")
