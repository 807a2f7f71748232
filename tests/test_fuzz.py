"""Half a minute's worth of ``make fuzz``, always the same; and a defect that is planted is found, and told."""

import logging
import re
from random import Random
from time import sleep

import pytest

from tools.fuzz.__main__ import main
from tools.fuzz.mutate import DEEP, changed, damaged, nested, text_of, value_of
from tools.fuzz.planted import Accident, Planted
from tools.fuzz.runner import MODULES, Tally, chunks, targets
from tools.fuzz.target import Target, attack

pytest.importorskip("flwr")
COUNTS = {"command line": 20, "Flower, server": 10}


@pytest.fixture(autouse=True)
def _logs_again():
    """Targets silence all logs of their process, which tests of logs may share."""
    yield
    logging.disable(logging.NOTSET)


ALL = [one for module in MODULES for one in targets(module) if one.part]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_bad_inputs_are_refused_with_an_error_of_the_library(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_STATE", str(tmp_path / "state"))
    target, refused = kind(tmp_path), 0
    for number in range(COUNTS.get(kind.name, 250)):
        was_refused, error = attack(target, 1, number)
        refused += was_refused
        assert error is None, f"python -m tools.fuzz --target '{kind.name}' --seed 1 --only {number}"
    assert refused or not kind.allowed  # damage is not taken for good


@pytest.mark.parametrize(("kind", "error"), [(Planted, IndexError), (Accident, TypeError)])
def test_a_planted_defect_is_found_by_the_same_number_every_time(kind, error, tmp_path):
    found = [number for number in range(300) if isinstance(attack(kind(tmp_path), 0, number)[1], error)]
    assert found
    assert found == [number for number in range(300) if isinstance(attack(kind(tmp_path), 0, number)[1], error)]
    assert all(attack(kind(tmp_path), 7, number)[1] is None for number in range(300)) is False  # and by other seeds


@pytest.mark.parametrize("wait", [0, 0.001])
def test_what_computes_or_waits_too_long_is_found(wait, tmp_path, monkeypatch):
    class Slow(Target):
        name = "slow"

        def attack(self, rng):
            while True:
                sleep(wait)

    monkeypatch.setattr("tools.fuzz.target.PATIENCE", 0.05)
    assert "takes longer than 0.05 s" in str(attack(Slow(tmp_path), 0, 0)[1])


def test_the_command_tells_how_to_repeat_a_finding_and_ends_with_one(capsys):
    assert main(["--target", "planted", "--count", "300"]) == 1
    said = capsys.readouterr().out
    assert "IndexError" in said
    number = re.search(r"--target 'planted' --seed 0 --only (\d+)\n", said)[1]
    assert main(["--target", "planted", "--only", number]) == 1
    assert main(["--target", "planted", "--count", "1", "--seed", "5"]) == 0


def test_a_process_that_dies_is_a_finding_and_the_others_go_on(capsys):
    assert main(["--target", "dying", "--count", "300"]) == 1
    assert capsys.readouterr().out.count("the process died (-9)") >= 2


def test_every_input_is_given_to_one_process():
    tallies = {("a", "x"): Tally(45_000), ("a", "y"): Tally(3)}
    given = [(key[1], number) for key, numbers in chunks(tallies) for number in numbers]
    assert len(given) == len(set(given)) == 45_003


def test_mutants_differ_and_are_deep_where_they_say_so():
    values = {"a": [1, 2.5, "x", None], "b": {"c": True}}
    mutants = [changed(values, Random(seed)) for seed in range(200)]
    assert values == {"a": [1, 2.5, "x", None], "b": {"c": True}}
    assert sum(text_of(one) != text_of(values) for one in mutants) > 180
    assert sum(damaged(b"some bytes", Random(seed)) != b"some bytes" for seed in range(200)) > 180
    assert text_of([DEEP]).startswith(b"[[[[[[")
    deep, depth = value_of({"a": DEEP})["a"], 0
    while deep:
        deep, depth = deep[0], depth + 1
    assert depth == 100_000
    assert nested(2) == [[[]]]
