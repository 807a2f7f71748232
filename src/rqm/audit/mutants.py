"""Deliberately broken mechanisms and protocols: would anybody notice? Each is put before an audit that ships,
or, where the audits look at samples only (the clip, the ledger, the masks), before a check that stands here.

Every mutant is a small, plausible mistake, most of which leave all results right: sums are sums, models learn. It is
caught if the audit gives an alarm for it, and none for the sound version.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from rqm.audit.privacy import Claim, audit_privacy
from rqm.audit.sampler import LEVEL, audit_sampler, goodness
from rqm.kernels.packing import unpack
from rqm.kernels.recipe import TABLE_BITS, Recipe, on_grid
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.rqm import RQM
from rqm.randomness import KEY_WORDS, KeyWords, SecureRandom, SeededRandom

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


def _sampler(broken: bool, mutant: Channel) -> Finding:
    found = audit_sampler(mutant if broken else RQM(), draws=DRAWS, claimed=RQM())
    return Finding(not found.passed, f"p = {found.p_value:.2g}, {found.worst}")


def _with_recipe(mech: Channel, recipe: Recipe) -> Channel:
    object.__setattr__(mech, "recipe", recipe)  # where the cached property keeps it
    return mech


def _wide_clamp() -> Channel:
    """Inputs beyond the clip reach one level further than is accounted for."""
    mech = RQM()
    return _with_recipe(mech, replace(mech.recipe, low=mech.recipe.low - 2**23, high=mech.recipe.high + 2**23))


def _biased_table() -> Channel:
    """One row of the table has a three-hundredth of its mass two levels too high."""
    mech = RQM()
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


def _randomness(broken: bool, source: Callable[[], SecureRandom]) -> Finding:
    found = audit_sampler(RQM(), draws=20_000, rng=source() if broken else SecureRandom())
    return Finding(not found.passed, f"p = {found.p_value:.2g}, {found.worst}")


class SameKey(SecureRandom):  # type: ignore[misc]
    """Every stream has the same key and nonce."""

    def key(self) -> KeyWords:
        """The one key."""
        return np.zeros(KEY_WORDS, dtype=np.uint32)


class Counted(SecureRandom):  # type: ignore[misc]
    """One key for the life of a process, and a nonce that counts on: a fork copies both."""

    def __init__(self) -> None:
        self._first, self._count = super().key(), count()

    def key(self) -> KeyWords:
        """The same key with the next nonce, whoever began it."""
        return np.append(self._first[:-1], np.uint32(next(self._count)))


# -- a whole run --------------------------------------------------------------------------------------


def _plan() -> Any:
    """A run with ε = 1 for each user, who takes part once: 100 clients a round."""
    from rqm.encoding.calibrate import calibrate  # noqa: PLC0415
    from rqm.plan.experiments import find  # noqa: PLC0415
    from rqm.plan.sweep import Sweep  # noqa: PLC0415

    plan = next(iter(Sweep.from_toml(find("audit"), first=True).variants.values()))
    found = calibrate("rqm", epsilon=1, delta=1e-5, clients=100, population=3400, rounds=10, dim=2**16)
    return replace(plan, mechanism=found.mechanism.changed(clip=plan.mechanism.channel.clip))


def _few_others(broken: bool) -> Finding:
    """A guarantee that counts on a hundred honest clients, of whom there are four."""
    from rqm.audit.training import audit_training  # noqa: PLC0415
    from rqm.data import load  # noqa: PLC0415

    plan = _plan()
    if broken:
        few = replace(plan.participation, clients=4, rounds=250)
        plan = replace(plan, participation=few, evaluate_every=250)
    found = audit_training(plan, load("glyphs"), 1.0, canaries=1000)
    return Finding(
        found.contradicted,
        f"claimed ε = 1, measured at least {found.measured:.3g} ({found.correct} of {found.guesses} right)",
    )


def _long_vectors(broken: bool) -> Finding:
    """Vectors may be a hundred times as long as the L2 clip that is accounted for."""
    from rqm.audit.training import Megaphone  # noqa: PLC0415
    from rqm.data import load  # noqa: PLC0415

    plan = _plan()
    plan = replace(plan, participation=replace(plan.participation, rounds=8))
    sent = replace(plan, transforms=replace(plan.transforms, l2_clip=100 * plan.transforms.l2_clip))
    low, allowed = Megaphone(plan, load("glyphs"), 100.0, sent if broken else plan).loudness(0.999)
    return Finding(low > allowed, f"a client's vector has length {low / allowed:.3g} clips at least")


def _charged_late(broken: bool) -> Finding:
    """The ledger is charged when the round is over, so a process that is killed before has released for nothing."""
    from rqm.data import load  # noqa: PLC0415
    from rqm.ledger.ledger import LEDGER, read  # noqa: PLC0415
    from rqm.plan.guard import Guard  # noqa: PLC0415
    from rqm.training.observer import Observer  # noqa: PLC0415
    from rqm.training.trainer import Trainer  # noqa: PLC0415

    plan, unpaid = _plan(), list[int]()
    plan = replace(plan, participation=replace(plan.participation, clients=5, rounds=2), evaluate_every=2)

    class Auditor(Observer):
        def learns(self, turn: int, mean: Any) -> None:
            if not read(Path(folder) / LEDGER).charges[turn]:
                unpaid.append(turn)

    trainer = Trainer(plan, load("glyphs"), observer=Auditor())
    with TemporaryDirectory() as folder, Guard(trainer.mean, Path(folder)) as guard:
        if not broken:
            trainer.charge_to(guard)
        while trainer.done < plan.participation.rounds:
            trainer.step()
            if broken:
                guard.charge(trainer.done - 1)
    return Finding(
        bool(unpaid), f"{len(unpaid)} of {plan.participation.rounds} sums were released before they were charged"
    )


# -- secure aggregation -------------------------------------------------------------------------------


def masked_vectors(rounds: int = 2, count: int = 4096) -> list[Any]:
    """What the server sees of client 0, who sends the same levels in several rounds."""
    from rqm.secagg import Params, local, wire  # noqa: PLC0415

    seen: list[Any] = []
    for turn in range(rounds):
        params = Params(clients=4, count=count, levels=16, round=bytes([turn]), threshold=2)

        def hears(client: int, stage: Any, message: bytes, params: Params = params) -> None:
            if stage == wire.Kind.MASKED and client == 0:
                body = wire.unframe(message, stage, params.digest, 0)
                packed = np.frombuffer(body[: -(-count * params.bits // 8)], dtype=np.uint8)
                seen.append(np.asarray(unpack(packed, params.bits, count)))

        local.aggregate(params, lambda u: np.full(count, u), intercept=hears)
    return seen


def _masks(broken: bool, name: str) -> Finding:
    """Masked vectors are uniform, and those of two rounds have nothing in common."""
    from rqm.secagg import masking  # noqa: PLC0415

    mistakes: dict[str, dict[str, Any]] = {
        "reused": {  # keys depend on nothing that changes from round to round
            "own_mask_key": lambda *_: bytes(32),
            "pair_mask_key": lambda _, __, one, other: bytes([1 + min(one, other), 1 + max(one, other)] * 16),
        },
        "missing": {"add_mask": lambda *_: None},  # masks cancel in the sum, so it comes out right
    }
    with patch.multiple(masking, **mistakes[name]) if broken else nullcontext():
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


MUTANTS = [
    Mutant(
        "wrong keep",
        "the encoder keeps levels 2 % too often",
        "sampler",
        lambda broken: _sampler(broken, RQM(keep=0.42 * 1.02)),
    ),
    Mutant(
        "biased table",
        "a three-hundredth of one row of the table lies two levels too high",
        "sampler",
        lambda broken: _sampler(broken, _biased_table()),
    ),
    Mutant(
        "wide clamp",
        "inputs beyond the clip reach half a level further",
        "sampler",
        lambda broken: _sampler(broken, _wide_clamp()),
    ),
    Mutant("wrong knot", "the worst case is looked for at ±c only", "privacy", _wrong_knot),
    Mutant(
        "reused keystream",
        "every call has the same key and nonce",
        "sampler",
        lambda broken: _randomness(broken, SameKey),
    ),
    Mutant(
        "forked keystream",
        "one keystream goes on in both processes after a fork",
        "sampler",
        lambda broken: _randomness(broken, Counted),
    ),
    Mutant("under-counted others", "ε counts on 100 honest clients, there are 4", "privacy --experiment", _few_others),
    Mutant("no L2 clip", "vectors of any length are sent", "canaries' length", _long_vectors),
    Mutant("late ledger", "the ledger is charged after the release", "ledger at release", _charged_late),
    Mutant(
        "reused masks",
        "masks are the same in every round",
        "masked vectors",
        lambda broken: _masks(broken, "reused"),
    ),
    Mutant("no masks", "vectors are sent as they are", "masked vectors", lambda broken: _masks(broken, "missing")),
]
