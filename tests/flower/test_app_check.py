"""`rqm flower`: what it says of an app, the lines that it writes, and simulations with their state."""

import subprocess

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from rqm._util.files import state_folder
from rqm.flower import simulated_federation
from rqm.flower.federation_folder import FEDERATIONS, MODEL_FILE, PLAN_FILE
from tests.commands import rqm, rqm_json
from tests.flower.test_app_matrix import APPS, BATCH_NORM, NODES, started, written

CLIENT, PROJECT = "quickstart/client_app.py", "pyproject.toml"
SERVER, TASK = "quickstart/server_app.py", "quickstart/task.py"
LEGACY = """
from flwr.server import ServerApp, ServerAppComponents

app = ServerApp(server_fn=lambda context: ServerAppComponents())
"""
BRANCHES = """other = FedAvg()
    if rounds > 100:
        other.start(grid, arrays)
    else:
        start(strategy, grid, context, arrays, rounds)


def start(chosen, grid, settings, arrays, rounds):
    net = task.Net()
    print("this is no JSON")
    return chosen.start(grid=grid"""


def app_of(folder, *changes):
    """Write an app without rqm, with texts of its files replaced."""
    files = APPS["torch-fedadam"].files(folder.name)
    for name, before, after in changes:
        assert before in files[name]
        files[name] = files[name].replace(before, after)
    written(folder, files)
    return folder


def in_one_file(folder):
    """The same app, whose ClientApp is in the file of its ServerApp."""
    app_of(folder, (PROJECT, "quickstart.client_app:app", "quickstart.server_app:client"))
    client = (folder / CLIENT).read_text().replace("app = Cl", "client = Cl").replace("@app", "@client")
    (folder / SERVER).write_text(client + (folder / SERVER).read_text())
    (folder / CLIENT).write_text("")
    return folder


def test_what_would_happen_is_told_and_nothing_is_written(tmp_path):
    folder = app_of(tmp_path / "asked")
    facts = rqm_json("flower", "check", folder, "--clients", 30, "--epsilon", 4)
    assert facts["strategy"] == "FedAdam"
    assert facts["arrays"][0] == {"name": "0.weight", "shape": "6×8", "dtype": "float32", "role": "trained"}
    assert facts["problems"] == []
    assert any("evaluation on clients is off" in change for change in facts["changes"])
    assert set(facts["files"]) == {str(folder / name) for name in (PROJECT, CLIENT, SERVER)}
    assert 3.8 < facts["epsilon"] <= 4
    assert facts["delta"] == 1e-5
    assert 0.1 < facts["noise_over_clip"] < 10
    assert "rqm" not in "".join(path.read_text() for path in folder.rglob("*.py"))
    text = rqm("flower", "check", folder).stdout
    assert f"{folder / SERVER}: would change; write it with --write" in text
    assert "Note: all clients weigh the same" in text


@pytest.mark.parametrize("kind", ["plain", "in-one-file", "branches"])
def test_the_written_app_runs_and_nothing_is_left_to_change(kind, tmp_path, monkeypatch):
    """Not only the first `start` in the text is found, nor only that in the main function."""
    folder = tmp_path / f"written-{kind}"
    change = [(SERVER, "result = strategy.start(grid=grid", BRANCHES)] if kind == "branches" else []
    folder = in_one_file(folder) if kind == "in-one-file" else app_of(folder, *change)
    done = rqm("flower", "check", folder, "--clients", NODES, "--epsilon", 500, "--write")
    assert (done.returncode, f"{folder / SERVER}: written" in done.stdout) == (0, True), done.stderr
    again = rqm_json("flower", "check", folder)
    assert (again["files"], again["problems"]) == ([], [])
    *_, strategy, _, result = started(folder, monkeypatch)
    assert strategy.run.released == 3
    assert len(result.train_metrics_clientapp) == 3


PROBLEMS = {
    "client_fn": (
        (CLIENT, "ClientApp()", "ClientApp(lambda context: None)"),
        "made of a client_fn: register functions",
    ),
    "mods": (
        (CLIENT, "ClientApp()", "ClientApp(mods=[print, private_mod])"),
        "private_mod must be the first of the mod",
    ),
    "no ClientApp": ((CLIENT, "app = ClientApp()", "app = task.app()"), "no ClientApp(…) is made here"),
    "client's syntax": ((CLIENT, "app = ", "app = ("), "the ClientApp cannot be read (SyntaxError)"),
    "Krum": (
        (SERVER, "FedAdam(eta=0.1)", "__import__('flwr').serverapp.strategy.Krum()"),
        "Krum: needs the updates of",
    ),
    "no model": (
        (SERVER, "net.state_dict()", "task.Net().state_dict()"),
        "running_mean: is no trained array of floats",
    ),
    "no arrays": ((SERVER, "initial_arrays=arrays", "initial_arrays=None"), "started without an ArrayRecord"),
    "raises": ((SERVER, "rounds =", "rounds = {}[7]  #"), "stops before its strategy starts: KeyError: 7"),
    "exits": ((SERVER, "rounds =", "raise SystemExit('no data')  #"), "SystemExit: no data"),
    "no start": ((SERVER, "result = ", "return  #"), "ends without starting a strategy"),
    "start in a line": ((SERVER, "result = strategy", "FedAvg()"), "no line strategy.start(…) is found"),
    "legacy": ((SERVER, "@app.main()", LEGACY), "has no main function, as in Flower's old API"),
    "rounds": ((PROJECT, "num-server-rounds", "rounds"), "rqm.rounds: must be given, or num-server-rounds"),
    "table": ((PROJECT, "local-epochs = 2", "rqm.epsilon = 8.0\nrqm.clients = 'ten'"), "rqm.clients = 'ten'"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_named(name, tmp_path):
    change, expected = PROBLEMS[name]
    folder = app_of(tmp_path / "app", change)
    if name == "no model":
        (folder / TASK).write_text(BATCH_NORM)
        server = (folder / SERVER).read_text()
        (folder / SERVER).write_text(server.replace("net = task.Net()", ""))
    done = rqm("flower", "check", folder)
    assert (done.returncode, "Problem: " in done.stdout) == (1, True)
    assert expected in " ".join(done.stdout.split())


@pytest.mark.parametrize("option", ["--epsilon=-1", "--clients=1"])
def test_settings_that_cannot_work_are_not_written(option, tmp_path):
    folder = app_of(tmp_path / "app")
    done = rqm("flower", "check", folder, option, "--write")
    assert (done.returncode, f"rqm.{option[2:9]}" in done.stdout) == (1, True)
    assert "rqm" not in (folder / PROJECT).read_text()


def test_a_folder_without_an_app_is_refused(tmp_path):
    done = rqm("flower", "check", tmp_path)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"rqm: {tmp_path / PROJECT}: no such file or directory: must be the pyproject.toml of a Flower app\n"
    )
    (tmp_path / PROJECT).write_text("[project]\nname = 'other'\n")
    assert "is not that of a Flower app (KeyError: 'tool')" in rqm("flower", "check", tmp_path).stderr


# -- simulations ----------------------------------------------------------------------------------


def test_only_the_state_of_simulated_nodes_is_reset(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_STATE", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "policy.toml").write_text("trust_server = true\n")
    folder = app_of(tmp_path / "simulated")
    assert rqm("flower", "check", folder, "--clients", NODES, "--epsilon", 500, "--write").returncode == 0
    started(folder, monkeypatch)
    state = state_folder() / FEDERATIONS / "matrix.simulated"
    assert list(state.glob(f"*/{MODEL_FILE}"))
    unknown = rqm("flower", "reset-simulated", "nobody")
    assert (unknown.returncode, unknown.stderr.endswith("known are matrix.simulated\n")) == (2, True)
    (plan,) = state.glob(f"*/{PLAN_FILE}")
    text = plan.read_text()
    plan.write_text(text.replace('"simulated": true', '"simulated": false'))
    refused = rqm("flower", "reset-simulated", "matrix.simulated")
    assert (refused.returncode, "nodes took part that were not simulated" in refused.stderr) == (2, True)
    plan.write_text(text)
    assert rqm_json("flower", "reset-simulated", "matrix.simulated") == {"deleted": str(state)}
    assert not state.exists()


@pytest.fixture
def commands(monkeypatch):
    """Programs that `simulate` would run: none is, and a run ends with a code and a status."""
    called, outcome = [], {"code": 0, "status": "finished:completed"}

    class Link:
        pid = 2**22 + 1  # of no process

        def __init__(self, command, env, stdout, **_):
            called.append((command, env, stdout))

        def wait(self, timeout):
            return 0

    def run(command, **options):
        called.append((command, options["env"], options.get("stdout")))
        code = outcome["code"] if "run" in command else 0
        return subprocess.CompletedProcess(command, code, f'{{"status": "{outcome["status"]}"}}', "")

    monkeypatch.setattr(simulated_federation.subprocess, "Popen", Link)
    monkeypatch.setattr(simulated_federation.subprocess, "run", run)
    monkeypatch.setattr(simulated_federation, "_wait_for", lambda *_: None)
    return called, outcome


@pytest.mark.parametrize(
    ("code", "status", "expected"), [(0, "finished:completed", 0), (0, "finished:failed", 1), (3, "", 3)]
)
def test_a_failed_simulation_is_the_exit_code(code, status, expected, commands, tmp_path):
    """`flwr run` ends with 0 although the run has failed."""
    called, outcome = commands
    outcome |= {"code": code, "status": status}
    folder = app_of(tmp_path / "app")
    done = rqm("flower", "simulate", folder, "--nodes", 7, "--run-config", "lr=1", "--json")
    assert (done.returncode, done.stdout) == (expected, f'{{"exit_code": {expected}}}\n')
    (_, environment, _), (command, same, stdout) = called[:2]
    assert (environment, stdout) == (same, 2)
    assert environment["RQM_STATE"].endswith("simulated")
    assert command[1:3] == ["run", str(folder)]
    assert command[-4:] == ["--federation-config", "num-supernodes=7", "--run-config", "lr=1"]


def test_a_folder_without_an_app_is_not_simulated(commands, tmp_path):
    done = rqm("flower", "simulate", tmp_path)
    assert (done.returncode, "must be the pyproject.toml of a Flower app" in done.stderr) == (2, True)
    assert commands[0] == []
