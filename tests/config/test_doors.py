"""Doors by which a false ε once came in, or a run was lost: each is shut, and says so."""

import json
import threading

import pytest

import rqm
from rqm import Participation, Plan, StochasticRounding, ThreatModel, account
from rqm.accounting.accountant import Question
from rqm.config.account import account_ledger
from rqm.config.plan import PLAN as PLAN_FILE
from rqm.config.plan import Transforms
from rqm.config.sweep import Sweep
from rqm.ledger.budget_guard import Guard
from rqm.ledger.ledger import LEDGER, Ledger, LedgerError, read
from rqm.ledger.signing import signer
from rqm.simulation import run_folder, sweeps
from tests.commands import rqm as command
from tests.ledger.test_budget_guard import PLAN, pictures, train
from tests.plans import change_plan, make_plan

MECHANISM = StochasticRounding(clip=0.1, margin=20.0, levels=2)
MEAN = rqm.private_mean(mechanism=MECHANISM, dim=100, clients=20, rounds=30, delta=1e-5)


def charged(folder, mean=MEAN, **options):
    folder.mkdir(exist_ok=True)
    with Guard(mean, folder, **options) as guard:
        for turn in range(mean.participation.rounds):
            guard.charge(turn)
    return folder


def test_a_second_run_in_the_folder_takes_nothing_from_the_first(tmp_path, monkeypatch):
    """It looks while the folder is empty, and begins when the first has begun."""
    looked, begun, folder = threading.Event(), threading.Event(), tmp_path / "run"
    is_new = run_folder._is_new

    def slow(place, resume):
        found = is_new(place, resume)
        if threading.current_thread().name == "second":
            looked.set()
            begun.wait(60)
        return found

    monkeypatch.setattr(run_folder, "_is_new", slow)
    refused = []

    def second():
        try:
            train(PLAN, folder)
        except Exception as error:
            refused.append(error)

    other = threading.Thread(target=second, name="second")
    other.start()
    assert looked.wait(60)

    def watch(record):
        if record.round == 1:
            begun.set()
            other.join(60)

    summary = train(PLAN, folder, watch)
    assert [type(error) for error in refused] == [FileExistsError]
    assert account_ledger(folder)[0].epsilon == summary["epsilon"]
    assert Plan.of_run(folder).can_continue(PLAN)


def test_a_run_whose_ledger_is_gone_is_never_told_as_free(tmp_path):
    folder = tmp_path / "run"
    train(PLAN, folder)
    (folder / run_folder.SUMMARY).unlink()
    kept = (folder / LEDGER).read_bytes()
    (folder / LEDGER).unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"its ledger \(ledger.jsonl\) is gone"):
            train(PLAN, folder, resume=True)
        with pytest.raises(LedgerError, match=r"its ledger \(ledger.jsonl\) is missing"):
            account_ledger(folder)
    assert not (folder / LEDGER).exists()
    (folder / LEDGER).write_bytes(b"\n".join(kept.splitlines()[:3]) + b"\n")
    with pytest.raises(LedgerError, match="an older copy"):
        account_ledger(folder)


def test_a_sweep_tells_results_only_of_the_plans_that_made_them(tmp_path):
    text = (
        'data = "mnist-writers"\nmodel = "linear"\nclients = 4\nrounds = 2\ndevice = "cpu"\n'
        'transforms = {{l2_clip = 0.5, rotate = true}}\n[[variants]]\nname = "one"\n'
        'mechanism = {{mechanism = "rounding", levels = 2, clip = 0.02, margin = {}}}\n'
    )
    file = tmp_path / "sweep.toml"
    file.write_text(text.format(60.0))
    load = lambda name: pictures()  # noqa: E731
    sweeps.carry_out_sweep(Sweep.from_toml(file), load, tmp_path / "out")
    first = json.loads(sweeps.save_curves(Sweep.from_toml(file), tmp_path / "out").read_text())
    for change in (["mechanism.margin=1000.0"], ["delta=1e-9"], ["budget_epsilon=1.0"], ["honest_clients=2"]):
        other = Sweep.from_toml(file, change)
        with pytest.raises(ValueError, match=r"one: .*holds a run of another plan"):
            sweeps.carry_out_sweep(other, load, tmp_path / "out")
        again = json.loads(sweeps.save_curves(other, tmp_path / "out").read_text())
        assert again["one"]["plan"] == first["one"]["plan"]
    assert sweeps.carry_out_sweep(Sweep.from_toml(file, ["evaluate_every=1"]), load, tmp_path / "out")


@pytest.mark.parametrize(("one", "other"), [("A b", "A-B"), ("same", "same")])
def test_variants_that_would_share_a_folder_are_refused(tmp_path, one, other):
    file = tmp_path / "sweep.toml"
    file.write_text("".join(f'[[variants]]\nname = "{name}"\n' for name in (one, other)))
    with pytest.raises(ValueError, match="would share a folder"):
        Sweep.from_toml(file)


def test_the_population_that_was_charged_for_is_not_replaced(tmp_path):
    folder = charged(tmp_path / "a", MEAN.with_values(population=100, sampling="uniform"))
    assert account_ledger(folder, adversary="outsider")[0].participation.population == 100
    with pytest.raises(ValueError, match="population = 1000000: must be 100"):
        account_ledger(folder, adversary="outsider", population=10**6)
    known = charged(tmp_path / "b", users=100)
    with pytest.raises(ValueError, match="population = 1000000: must be 100"):
        account_ledger(known, adversary="outsider", population=10**6)
    plan = make_plan(model="mine", dim=10, population=100, clients=5, transforms=Transforms(1.0))
    with pytest.raises(ValueError, match="population = 1000: must be 100"):
        account(plan, population=1000)


def test_a_runs_ledger_knows_its_users(tmp_path):
    train(PLAN, tmp_path / "run")
    assert read(tmp_path / "run" / LEDGER).subject["users"] == len(pictures().train)


def test_a_fraction_is_told_of_random_samples_only(tmp_path):
    folder = charged(tmp_path / "a")
    assert MEAN.participation.sampling == "available"
    for question in ({"honest_fraction": 0.2, "population": 3400}, {"adversary": "outsider", "population": 3400}):
        with pytest.raises(ValueError, match=r"sampling = 'uniform'|sampling = 'available': must be"):
            account_ledger(folder, **question)
    with pytest.raises(ValueError, match=r"honest_fraction = 0\.5: must come with a population and with sampling"):
        MEAN.with_values(honest_fraction=0.5, population=3400)
    pytest.importorskip("flwr")
    from rqm.flower.shared_plan import SharedPlan
    from rqm.flower.vector_layout import VectorLayout

    uniform = make_plan(clients=5, honest_fraction=0.5, population=100, transforms=Transforms(1.0, True))
    for mean in (uniform.private_mean(10), MEAN.with_values(sampling="uniform", population=100)):
        with pytest.raises(ValueError, match="available nodes are no random sample of the population"):
            SharedPlan(mean, ("w",), VectorLayout(mean.dim, mean.l2_clip))
    with pytest.raises(ValueError, match=r"honest_fraction = 0\.5: must come with"):
        make_plan(clients=5, honest_fraction=0.5, population=100, sampling="available")


def test_a_ledger_that_does_not_say_how_clients_were_drawn_is_not_believed(tmp_path):
    path, values = tmp_path / LEDGER, MEAN.to_dict()
    del values["sampling"]
    with Ledger(path, {"mean": values, "plan": None}) as ledger:
        ledger.charge(0)
    with pytest.raises(ValueError, match="sampling"):
        account_ledger(path)


def test_the_size_of_a_known_model_is_not_a_matter_of_opinion():
    plan = make_plan(clients=5, rounds=1, mechanism=StochasticRounding(levels=2, margin=30.0))
    with pytest.raises(ValueError, match="dim = 1: the model small-cnn has"):
        account(plan, dim=1)
    with pytest.raises(ValueError, match="dim = 1: the model small-cnn has"):
        change_plan(plan, dim=1)
    done = command("account", "glyphs", "--set", "dim=1", "--set", "rounds=1", "--set", "clients=5")
    assert done.returncode == 2
    assert "dim=1: the model small-cnn has" in done.stderr


def test_one_question_has_one_answer():
    """δ follows the population, however that is given."""
    plan = make_plan(model="mine", dim=100, clients=5, transforms=Transforms(1.0, rotate=True), mechanism=MECHANISM)
    asked, written = account(plan, population=10**6), account(change_plan(plan, population=10**6))
    assert asked.to_dict() == written.to_dict()
    assert asked.delta == 1e-6


BIG = "1" + 400 * "0"


@pytest.mark.parametrize(
    "args",
    [
        ("account", "glyphs", "--set", f"delta={BIG}"),
        ("account", "glyphs", "--set", f"dim={BIG}"),
        ("account", "glyphs", "--set", f"transforms.l2_clip={BIG}"),
        ("account", "glyphs", "--set", f"mechanism.clip={BIG}"),
        ("account", "glyphs", "--set", f"population={10**40}"),
        ("train", "glyphs", "--set", "device=mps", "--out", "x"),
        ("train", "glyphs", "--set", "device=meta", "--out", "x"),
        ("account", ""),
    ],
)
def test_odd_values_are_one_line(args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command(*args)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["[" * 5000, "{", '"x"', "\xff"])
def test_damaged_plans_name_their_file(text, tmp_path):
    (tmp_path / PLAN_FILE).write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"plan\.json: is damaged"):
        Plan.of_run(tmp_path)


@pytest.mark.parametrize("text", ["variants = 3", "variants = [3]"])
def test_variants_are_tables(text, tmp_path):
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(TypeError, match="variants must be tables"):
        Sweep.from_toml(tmp_path / "p.toml")


def test_deeply_nested_ledgers_are_refused(tmp_path):
    (tmp_path / LEDGER).write_text("[" * 10000 + "\n")
    with pytest.raises(LedgerError, match="line 1 was changed"):
        read(tmp_path / LEDGER)


def test_as_many_rounds_and_users_as_one_likes():
    """Neither takes time that grows with the number."""
    threat, release = ThreatModel(honest_fraction=0.5), MEAN.release

    def least(population):
        who = Participation(100, 10**9, population, "uniform", max_participations=1)
        return Question.of(release, who, threat, 1e-6).honest

    few = least(10**8)
    assert 0.8 * few < least(10**15) <= few
    mean = rqm.private_mean(mechanism=MECHANISM, dim=10, clients=20, rounds=10**9, max_participations=3)
    assert mean.guarantee().charges == 10**9
    assert mean.guarantee().participations == 3


def test_messages_name_what_was_asked():
    with pytest.raises(ValueError, match="epsilon = 1e-09: no mechanism reaches it here"):
        rqm.private_mean(epsilon=1e-9, clients=10, dim=10)
    with pytest.raises(TypeError, match="epsilon = '3'"):
        rqm.private_mean(epsilon="3", mechanism=MECHANISM, clients=10, dim=10)
    with pytest.raises(ValueError, match="epsilon = nan"):
        rqm.private_mean(epsilon=float("nan"), mechanism=MECHANISM, clients=10, dim=10)
    with pytest.raises(ValueError, match=r"the mechanism gives 5\.3"):
        rqm.private_mean(epsilon=1e-3, mechanism=MECHANISM, clients=20, dim=100, rounds=30)


def test_a_simulation_begins_where_nothing_was_charged(tmp_path):
    plan = change_plan(PLAN, budget_epsilon=1e-3)
    with pytest.raises(ValueError, match="which one round costs"):
        rqm.simulate(plan, data=pictures(), folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    simulation = rqm.simulate(PLAN, data=pictures(), folder=tmp_path / "a")
    next(simulation)
    with pytest.raises(ValueError, match="holds a ledger already"):
        rqm.simulate(change_plan(PLAN, mechanism=rqm.Noiseless()), data=pictures(), folder=tmp_path / "a")
    del simulation  # and with it the lock
    with Ledger(tmp_path / "a" / LEDGER, read(tmp_path / "a" / LEDGER).subject, key=signer()):
        pass
