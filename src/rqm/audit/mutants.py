"""Deliberately broken mechanisms and protocols: would anybody notice? Each is put before an audit that ships,
or, where the audits look at samples only (the clip, the ledger, the masks), before a check that stands here.

Every mutant is a small, plausible mistake, most of which leave all results right: sums are sums, models learn. It is
caught if the audit gives an alarm for it, and none for the sound version.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from rqm.audit.privacy import Claim, audit_privacy
from rqm.audit.sampler import LEVEL, audit_sampler, goodness
from rqm.channel import Channel
from rqm.kernels.packing import unpack
from rqm.kernels.recipe import TABLE_BITS, Recipe, on_grid
from rqm.mechanisms.rqm import RQM
from rqm.randomness import Keystream, SecureRandom, SeededRandom

DRAWS = 1_000_000


class Finding(NamedTuple):
    """Whether there was an alarm, and why."""

    alarm: bool
    evidence: str


@dataclass(frozen=True)
class Mutant:
    """A mistake, what it is, and the audit that looks for it: called with whether to make it."""

    name: str
    mistake: str
    audit: str
    look: Callable[[bool], Finding]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    name: str
    mistake: str
    audit: str
    caught: bool
    evidence: str
    sound: str

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)


def audit_mutants(names: list[str] | None = None) -> Iterator[Verdict]:
    """Put every mutant, and its sound version, before its audit."""
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        broken, sound = mutant.look(True), mutant.look(False)
        caught = broken.alarm and not sound.alarm
        yield Verdict(mutant.name, mutant.mistake, mutant.audit, caught, broken.evidence, sound.evidence)


# -- the law ------------------------------------------------------------------------------------------


def _sampler(broken: bool, mutate: Callable[[Channel], Channel]) -> Finding:
    found = audit_sampler(mutate(RQM()) if broken else RQM(), draws=DRAWS, claimed=RQM())
    return Finding(not found.passed, f"p = {found.p_value:.2g}, {found.worst}")


def _with_recipe(mech: Channel, recipe: Recipe) -> Channel:
    object.__setattr__(mech, "recipe", recipe)  # where the cached property keeps it
    return mech


def _wide_clamp(mech: Channel) -> Channel:
    """Inputs beyond the clip reach one level further than is accounted for."""
    recipe = mech.recipe
    return _with_recipe(mech, replace(recipe, low=recipe.low - 2**23, high=recipe.high + 2**23))


def _biased_table(mech: Channel) -> Channel:
    """One row of the table has a three-hundredth of its mass two levels too high."""
    table = mech.table.copy()
    row = table[len(table) // 2]
    moved = 2**TABLE_BITS // 300
    row[5], row[7] = row[5] - moved, row[7] + moved
    return _with_recipe(
        mech, on_grid(mech.clip, mech.input_reach, mech.input_levels, table, rows=True, modulus=mech.levels)
    )


def _wrong_knot(broken: bool) -> Finding:
    """The worst case is taken at ±c, where a level inside is worse."""
    claim: Claim = "paper" if broken else "certified"
    found = audit_privacy(RQM(keep=0.23), draws=10_000_000, claim=claim, rng=SeededRandom(1))
    return Finding(found.contradicted, f"claimed ε = {found.claimed:.4g}, measured at least {found.measured:.4g}")


# -- randomness ---------------------------------------------------------------------------------------


def _randomness(broken: bool, mistake: AbstractContextManager[Any]) -> Finding:
    with mistake if broken else nullcontext():
        found = audit_sampler(RQM(), draws=20_000)
    return Finding(not found.passed, f"p = {found.p_value:.2g}, {found.worst}")


@contextmanager
def _same_key() -> Iterator[None]:
    """Every keystream has the same key and nonce."""
    with patch("rqm.randomness.os.urandom", bytes):
        yield


@contextmanager
def _shared_keystream() -> Iterator[None]:
    """One keystream for the life of a process, which a fork copies."""
    kept: dict[int, Keystream] = {}
    lock = Lock()

    class Shared(Keystream):
        def next(self, count: int) -> Any:
            self._process = os.getpid()  # forget who began it
            with lock:
                return super().next(count).copy()

    def keystream(_self: SecureRandom, size: int) -> Keystream:
        return kept.setdefault(0, Shared(2**20)) if size <= 2**20 else Shared(size)

    with patch.object(SecureRandom, "keystream", keystream):
        SecureRandom().words(1)
        yield


# -- a whole run --------------------------------------------------------------------------------------


def _plan() -> Any:
    """A run with ε = 1 for each user, who takes part once: 100 clients a round."""
    from rqm.encoding.calibrate import calibrate  # noqa: PLC0415
    from rqm.plan.experiments import find  # noqa: PLC0415
    from rqm.plan.sweep import Sweep  # noqa: PLC0415

    plan = next(iter(Sweep.from_toml(find("audit"), first=True).variants.values()))
    found = calibrate("rqm", epsilon=1, delta=1e-5, clients=100, population=3400, rounds=10, dim=2**16)
    assert isinstance(found.mechanism, RQM)
    assert isinstance(plan.mechanism, RQM)
    return replace(plan, mechanism=replace(found.mechanism, clip=plan.mechanism.clip))


def _few_others(broken: bool) -> Finding:
    """A guarantee that counts on a hundred honest clients, of whom there are four."""
    from rqm.audit.training import audit_training  # noqa: PLC0415
    from rqm.datasets import load  # noqa: PLC0415

    plan = _plan()
    if broken:
        plan = replace(plan, clients=4, rounds=250, evaluate_every=250)
    found = audit_training(plan, load("glyphs"), 1.0, canaries=1000)
    return Finding(
        found.contradicted,
        f"claimed ε = 1, measured at least {found.measured:.3g} ({found.correct} of {found.guesses} right)",
    )


def _long_vectors(broken: bool) -> Finding:
    """Vectors are not scaled down to the L2 clip, and nobody checks the budget."""
    import torch  # noqa: PLC0415

    from rqm.audit.training import Megaphone  # noqa: PLC0415
    from rqm.datasets import load  # noqa: PLC0415

    with ExitStack() as stack:
        if broken:
            unscaled = lambda x, bound: (torch.ones(len(x)), torch.ones(len(x), dtype=torch.bool))  # noqa: E731
            stack.enter_context(patch("rqm.encoding.tensors._factors", unscaled))
            stack.enter_context(
                patch(
                    "rqm.encoding.private_mean.over_budget",
                    lambda mech, x, bound: torch.zeros(len(x), dtype=torch.bool),
                )
            )
        low, allowed = Megaphone(replace(_plan(), rounds=8), load("glyphs"), 100.0).length(0.999)
    return Finding(low > allowed, f"a client's vector has length {low / allowed:.3g} clips at least")


def _charged_late(broken: bool) -> Finding:
    """The ledger is charged when the round is over, so a process that is killed before has released for nothing."""
    from rqm.datasets import load  # noqa: PLC0415
    from rqm.federated.loop import Trainer  # noqa: PLC0415
    from rqm.plan.guard import Guard  # noqa: PLC0415
    from rqm.privacy.ledger import LEDGER, read  # noqa: PLC0415

    plan, unpaid = replace(_plan(), clients=5, rounds=2, evaluate_every=2), []
    trainer = Trainer(plan, load("glyphs"))
    with TemporaryDirectory() as folder, Guard(trainer.mean, Path(folder)) as guard:

        def seen(turn: int, _mean: Any) -> None:
            if not read(Path(folder) / LEDGER)[1][turn]:
                unpaid.append(turn)

        trainer.seen = seen
        if not broken:
            trainer.guard = guard
        while trainer.done < plan.rounds:
            trainer.step()
            if broken:
                guard.charge(trainer.done - 1)
    return Finding(bool(unpaid), f"{len(unpaid)} of {plan.rounds} sums were released before they were charged")


# -- secure aggregation -------------------------------------------------------------------------------


def masked_vectors(rounds: int = 2, count: int = 4096) -> list[Any]:
    """What the server sees of client 0, who sends the same levels in several rounds."""
    from rqm.secagg import Params, local, wire  # noqa: PLC0415

    seen, answer = [], local._answer

    def listen(client: Any, stage: Any, data: bytes, values: Any) -> bytes:
        message = answer(client, stage, data, values)
        if stage == wire.Kind.MASKED and client.number == 0:
            body = wire.unframe(message, stage, client.params.digest, 0)
            packed = np.frombuffer(body[: -(-count * client.params.bits // 8)], dtype=np.uint8)
            seen.append(np.asarray(unpack(packed, client.params.bits, count)))
        return message

    with patch.object(local, "_answer", listen):
        for number in range(rounds):
            params = Params(clients=4, count=count, levels=16, round=bytes([number]), threshold=2)
            local.aggregate(params, lambda u: np.full(count, u))
    return seen


def _masks(broken: bool, mistake: Callable[[], AbstractContextManager[Any]]) -> Finding:
    """Masked vectors are uniform, and those of two rounds have nothing in common."""
    with mistake() if broken else nullcontext():
        first, second = masked_vectors()
    top = 2**6
    values = {
        "what is masked is not uniform": goodness(np.bincount(first, minlength=top), np.full(top, 1 / top)),
        "two rounds have masks in common": goodness(
            np.bincount((second.astype(int) - first) % top, minlength=top), np.full(top, 1 / top)
        ),
    }
    worst = min(values, key=lambda name: values[name])
    p_value = min(1.0, 2 * values[worst])
    return Finding(p_value < LEVEL, f"p = {p_value:.2g}: {worst if p_value < LEVEL else 'nothing found'}")


@contextmanager
def _reused_masks() -> Iterator[None]:
    """Masks depend on nothing that changes from round to round."""
    with ExitStack() as stack:
        stack.enter_context(patch("rqm.secagg.client.own_key", lambda params, seed, number: bytes(32)))
        stack.enter_context(
            patch("rqm.secagg.client.mask_key", lambda params, key, a, b: bytes([1 + min(a, b), 1 + max(a, b)] * 16))
        )
        stack.enter_context(patch("rqm.secagg.server.own_key", lambda params, seed, number: bytes(32)))
        yield


@contextmanager
def _no_masks() -> Iterator[None]:
    """Masks are left out: they cancel in the sum, so it comes out right."""
    with patch("rqm.secagg.masking.add_mask", lambda total, key, sign: None):
        yield


MUTANTS = [
    Mutant("wrong keep", "the encoder keeps levels 2 % too often", "sampler",
           lambda broken: _sampler(broken, lambda mech: RQM(keep=0.42 * 1.02))),
    Mutant("biased table", "a three-hundredth of one row of the table lies two levels too high", "sampler",
           lambda broken: _sampler(broken, _biased_table)),
    Mutant("wide clamp", "inputs beyond the clip reach half a level further", "sampler",
           lambda broken: _sampler(broken, _wide_clamp)),
    Mutant("wrong knot", "the worst case is looked for at ±c only", "privacy", _wrong_knot),
    Mutant("reused keystream", "every call has the same key and nonce", "sampler",
           lambda broken: _randomness(broken, _same_key())),
    Mutant("forked keystream", "one keystream goes on in both processes after a fork", "sampler",
           lambda broken: _randomness(broken, _shared_keystream())),
    Mutant("under-counted others", "ε counts on 100 honest clients, there are 4", "privacy --experiment", _few_others),
    Mutant("no L2 clip", "vectors of any length are sent", "canaries' length", _long_vectors),
    Mutant("late ledger", "the ledger is charged after the release", "ledger at release", _charged_late),
    Mutant("reused masks", "masks are the same in every round", "masked vectors",
           lambda broken: _masks(broken, _reused_masks)),
    Mutant("no masks", "vectors are sent as they are", "masked vectors", lambda broken: _masks(broken, _no_masks)),
]  # fmt: skip
