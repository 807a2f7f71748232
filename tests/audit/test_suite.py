"""Audits as jobs, and the command for machines that have only torch."""

import json

import pytest

from rqm.audit import suite

BOUND = {"claimed": 1.0, "measured": 0.5, "contradicted": False}


def test_the_command_runs_an_audit_and_names_what_is_wrong(tmp_path, capsys):
    out = tmp_path / "new" / "canaries.json"
    options = ["--variant", "noise-free", "--set", "rounds=1", "--set", "clients=10", "--out", str(out)]
    assert suite.main(["training", *options, "--canaries", "10", "--claimed", "2.5"]) == 0
    audit = json.loads(out.read_text())["noise-free"]
    assert (audit["canaries"], audit["claimed"]) == (10, "inf")  # without noise there is no claim
    assert "noise-free" in capsys.readouterr().err
    for wrong, message in (
        (["--variant", "x"], "variant = x: must be among"),
        (["--variant", "noise-free", "--canaries", "3"], "canaries = 3"),
        (["--nonsense", "3"], "nonsense"),
    ):
        assert suite.main(["training", *wrong, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_inversion_results_hold_scores_and_pictures(tmp_path):
    out = tmp_path / "inversion.json"
    options = {"pictures": 1, "clients": 2, "iterations": 2}
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    assert suite.main(["inversion", *flags, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["options"] == options
    assert result["kinds"].keys() == result["pictures"].keys() - {"the picture"}
    assert all(len(row) == 1 for row in result["pictures"].values())


def test_results_as_tables():
    text = suite.markdown(
        {
            "sampler": {"RQM": {"p_value": 0.123456, "passed": True}},
            "privacy": [{"mechanism": "RQM", "clients": 3, "delta": 0.01} | BOUND],
            "paper": BOUND | {"contradicted": True},
            "training": {"noise-free": BOUND | {"claimed": "inf", "guesses": 10, "correct": 9}},
            "inversion": {"kinds": {"plain gradient": {"similarity": 0.5, "identified": 1.0}}},
            "membership": {"1 bit": dict.fromkeys(("found", "found_low", "found_high", "area", "accuracy"), 0.25)},
            "mutants": [{"name": "no masks", "mistake": "m", "caught": True, "audit": "a", "evidence": "e"}],
        }
    )
    assert "| RQM | 0.1235 | True |" in text
    assert "| noise-free | 10 | 9 | inf | 0.5 | False |" in text
    assert "| no masks | m | True | a | e |" in text
    assert text.count("\n| --- |") == 7
