"""`rqm.train`: trains a model on users' data with a given ε."""

import copy
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from html import escape
from math import inf
from pathlib import Path
from secrets import randbits
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn

from rqm._util.files import write_json
from rqm._util.text import many
from rqm.config.plan import PLAN, ClientWork, Plan
from rqm.config.run_files import CHECKPOINT, METRICS, SUMMARY, read_metrics
from rqm.data.federated_data import FederatedData, as_federated_data
from rqm.ledger.ledger import LEDGER
from rqm.simulation.defaults import TrainingRequest, plan_for
from rqm.simulation.loop import Outcome, RunState
from rqm.simulation.models import Loss, cross_entropy, example_losses, trained_parameters
from rqm.simulation.run_folder import carry_out

if TYPE_CHECKING:
    from rqm.accounting.guarantee import Guarantee


@final
@dataclass(frozen=True)
class Statement:
    """The guarantee of a run with all of its conditions; `str` is one sentence.

    Attributes:
        details: The guarantee with all numbers; None if there is no noise.
        seed: The seed of a simulation, whose noise anyone can repeat; None: randomness was secure.
        repeated_rounds: Releases of rounds that were done again after an interruption.
        requested_epsilon: The ε that the caller asked for.
        users_behind: The users whose data were resampled to an assumed population.
    """

    details: "Guarantee | None"
    seed: int | None = None
    repeated_rounds: int = 0
    requested_epsilon: float | None = None
    users_behind: int | None = None

    @property
    def epsilon(self) -> float:
        """ε of every user over the whole run; infinite without noise."""
        return inf if self.details is None else self.details.epsilon

    @property
    def delta(self) -> float | None:
        """δ; None without noise."""
        return None if self.details is None else self.details.delta

    @property
    def certified(self) -> bool:
        """Whether ε is proven for all inputs, and randomness was secure."""
        return self.details is not None and self.details.certified and self.seed is None

    @property
    def simulated(self) -> bool:
        """Whether noise came from a seed."""
        return self.seed is not None

    def __str__(self) -> str:
        """The guarantee in one sentence."""
        if self.details is None:
            return "Not private: the clients' vectors were summed without noise, and there is no ε."
        sentence = self.details.sentence
        if self.repeated_rounds:
            sentence += f"; this counts {many(self.repeated_rounds, 'round')} done again after an interruption"
            sentence += "" if self.requested_epsilon is None else f", where {self.requested_epsilon:g} was asked for"
        population = self.details.participation.population
        if population is not None and self.users_behind not in (None, population):
            sentence += f"; training data of the assumed {population:,} users are resampled from {self.users_behind:,}"
        if self.seed is None:
            return f"{sentence}; all clients ran in this process, which has seen their data."
        return (
            f"A simulation (anyone can repeat the noise of seed {self.seed}, so it hides no real data) of what is, "
            f"deployed with secure randomness, {sentence[0].lower()}{sentence[1:]}."
        )

    def _repr_html_(self) -> str:
        details = "" if self.details is None else f"<pre>{escape(str(self.details))}</pre>"
        return f"<p>{escape(str(self))}</p><details><summary>All numbers</summary>{details}</details>"

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        values = {} if self.details is None else self.details.to_dict()
        return {**values, "simulated": self.simulated, "sentence": str(self)}


@final
@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model with its guarantee.

    Attributes:
        model: The model, ready to predict.
        guarantee: What the training guarantees to every user.
        history: A table for each round, as in `metrics.jsonl`. Loss and accuracy on the test set are released, and no
            ε covers the people in it. What is marked as not released stays here.
        plan: The plan of the run.
        folder: The folder of the run.
    """

    model: nn.Module
    guarantee: Statement
    history: list[dict[str, Any]]
    plan: Plan
    folder: Path
    _temporary: TemporaryDirectory[str] | None = field(default=None, repr=False)

    @property
    def evaluation(self) -> dict[str, Any]:
        """The last loss and accuracy on the test set, which are released; empty without a test set."""
        evaluated = [line for line in self.history if "loss" in line]
        if not evaluated:
            return {}
        last = evaluated[-1]
        return {name: last[name] for name in ("round", "loss", "accuracy") if name in last} | {"released": True}

    def save(self, folder: Path | str) -> Path:
        """Save the weights (`model.pt`), the guarantee (`guarantee.json`) and the files of the run.

        Args:
            folder: A new or empty folder, or that of the run.

        Returns:
            The folder.
        """
        folder = Path(folder)
        if folder.resolve() != self.folder.resolve():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise FileExistsError(f"{folder}: must be a new or empty folder, or that of the run")
            folder.mkdir(parents=True, exist_ok=True)
            for name in (PLAN, METRICS, SUMMARY, CHECKPOINT, LEDGER):
                if (self.folder / name).exists():
                    shutil.copyfile(self.folder / name, folder / name)
        weights = {name: value.cpu().clone() for name, value in self.model.state_dict().items()}
        torch.save(weights, folder / "model.pt")
        write_json(folder / "guarantee.json", self.guarantee.to_dict())
        return folder

    def __str__(self) -> str:
        """The last evaluation and the guarantee."""
        values = [f"{name} {self.evaluation[name]:.4g}" for name in ("accuracy", "loss") if name in self.evaluation]
        return (f"{', '.join(values)} on the test set (released). " if values else "") + str(self.guarantee)

    def _repr_html_(self) -> str:
        return self.guarantee._repr_html_()


def train(  # noqa: PLR0913 (all but three of them follow from rules)
    model: nn.Module,
    data: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    rounds: int = 100,
    clients: int | None = None,
    users: Any = None,
    loss: Loss | None = None,
    test: Any = None,
    local: ClientWork | None = None,
    seed: int | None = None,
    out: Path | str | None = None,
    resume: bool | None = None,
    evaluate_every: int | None = None,
    device: str = "auto",
    progress: bool | Callable[[Outcome], object] = True,
    **rules: Any,
) -> Trained:
    """Train a torch model with differential privacy for every user.

    In each round some users compute a gradient, or take local steps. What is not given follows from public rules.

    Args:
        model: The model. It is copied.
        data: A list with one data set a user, (inputs, labels) or a torch data set; or (inputs, labels) of all, with
            `users`; or an `rqm.FederatedData`.
        epsilon: ε of the whole run for each user; infinity trains without noise, for comparison.
        delta: δ; None: 10⁻⁵, or one over the number of users if that is less.
        rounds: Number of rounds.
        clients: Clients in a round, who take turns; None: a tenth of the users, but from 100 to 1000.
        users: The id of each example's owner.
        loss: Called with the model's outputs and the labels; None: the cross-entropy.
        test: A data set on which the model is evaluated. The results are released, and no ε covers the people in it.
        local: Local steps; None: the gradient of all of a client's examples.
        seed: Makes the run a simulation that can be repeated; None: secure randomness.
        out: The folder of the run, where the same call continues after an interruption; None: a temporary one.
        resume: True: the folder must hold this run. False: it must be new. None: either.
        evaluate_every: Rounds from one evaluation to the next; None: ten evaluations.
        device: "auto", "cpu" or "cuda".
        progress: Whether to show the rounds on a terminal; or a function that is called with each round's `Outcome`.
        **rules: `l2_clip` (1), the server's `rate`, `honest_clients` and `noise` ("independent", "correlated", or None
            for the better of the two); see `TrainingRequest`.

    Returns:
        The trained model with its guarantee.

    Raises:
        ValueError: If the model, the loss and the data do not fit together, or no mechanism reaches ε.

    >>> import numpy as np, torch
    >>> people = [(np.full((3, 2), 1.0 - 2 * (i % 2)), np.full(3, i % 2)) for i in range(400)]
    >>> result = train(torch.nn.Linear(2, 2), people, epsilon=3, rounds=20, clients=40, rate=1, progress=False)
    >>> result.guarantee.epsilon <= 3, len(result.history), result.model(torch.ones(2)).argmax().item()
    (True, 20, 0)
    """
    request = TrainingRequest(epsilon, delta, rounds, clients, **rules)
    federation = as_federated_data(data, users, test)
    dim = check_model(model, federation, loss)
    temporary = TemporaryDirectory(prefix="rqm-") if out is None else None
    folder = Path(temporary.name if temporary is not None else str(out))
    public_seed = seed
    if public_seed is None:  # of the order of users and the rotation; a run that continues keeps its own
        public_seed = Plan.of_run(folder).seed if (folder / PLAN).exists() else randbits(31)
    plan = plan_for(
        request,
        len(federation.train),
        dim,
        public_seed,
        data=federation.name,
        client=local or ClientWork(),
        device=device,
        evaluate_every=max(1, rounds // 10) if evaluate_every is None else evaluate_every,
        checkpoint_every=1 if temporary is None else rounds,  # a round that is done again is charged again
    )
    states: list[RunState] = []

    def make(plan: Plan, data: FederatedData) -> RunState:
        states.append(RunState(plan, data, model, loss=loss, is_secure=seed is None))
        return states[0]

    watch = None if isinstance(progress, bool) else progress
    if progress is True and sys.stderr.isatty():
        watch = partial(_print_progress, rounds)
    carry_out(plan, federation, folder, watch, resume=resume, make=make, seeded=seed is not None)
    state = states[0]
    for parameter in state.model.parameters():
        parameter.grad = None
    statement = Statement(None)
    if state.mean.is_private:
        charges = state.guard.charges
        guarantee = state.mean.guarantee(charges=charges, workload=state.plan.workload)
        statement = Statement(guarantee, seed, sum(charges.values()) - len(charges), epsilon)
    return Trained(state.model.eval(), statement, read_metrics(folder), state.plan, folder, temporary)


def check_model(model: nn.Module, data: FederatedData, loss: Loss | None = None) -> int:
    """Refuse what cannot be trained, or what no ε covers. Tries a copy of the model on one user's examples.

    Args:
        model: The model.
        data: The data.
        loss: The loss; None: the cross-entropy.

    Returns:
        The number of parameters that are trained.

    Raises:
        TypeError: If the model is no torch module, or has parameters of another type than float32.
        ValueError: If it has no parameters, fails on the data, keeps statistics of them, or has sparse gradients.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: must be a torch.nn.Module")
    trained = trained_parameters(model)
    for parameter in trained:
        if parameter.dtype != torch.float32:
            raise TypeError(f"model: has parameters of {parameter.dtype}; must be torch.float32 (model.float())")
    trial = copy.deepcopy(model).cpu().train()
    buffers = {name: value.clone() for name, value in trial.named_buffers()}
    inputs, labels = data.train[int(data.train.sizes.argmax())]
    try:
        with torch.random.fork_rng(devices=[]):
            losses = example_losses(trial, inputs, labels, loss or cross_entropy)
            losses.mean().backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        name = "the cross-entropy (give loss= for another)" if loss is None else "loss"
        raise ValueError(
            f"model: fails on inputs of shape {tuple(inputs.shape)} and labels of {tuple(labels.shape)} with {name}: "
            f"{reason[0]}"
        ) from None
    for name, value in trial.named_buffers():
        if not torch.equal(value, buffers[name]):
            raise ValueError(
                f"model: {name} changes with the users' data in every pass, beside the gradient, and no ε covers it "
                "(batch normalization does so); use GroupNorm or LayerNorm, or track_running_stats=False"
            )
    for name, parameter in trial.named_parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise ValueError(f"model: {name} has sparse gradients, which reveal what a user has; give sparse=False")
    return sum(parameter.numel() for parameter in trained)


def _print_progress(rounds: int, outcome: Outcome) -> None:
    """Show a round on the last line of the terminal."""
    facts = {"loss": outcome.loss, "accuracy": outcome.accuracy, "ε so far": outcome.epsilon}
    texts = [f"{name} {value:.3g}" for name, value in facts.items() if value is not None]
    end = "\n" if outcome.round == rounds else ""
    print("\r" + ", ".join([f"round {outcome.round} of {rounds}", *texts]), end=end, file=sys.stderr, flush=True)
