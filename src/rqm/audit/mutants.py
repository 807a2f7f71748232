"""Mutants: deliberately broken mechanisms and protocols. Does an audit notice?

Every mutant is a small, plausible mistake. Most leave all results right: sums are sums, and models
learn. A mutant is caught if its audit gives an alarm for it, and none for the sound version. The
ledger and the masks, which no sample shows, are checked here.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from rqm.audit.measurement import IntArray, Source
from rqm.audit.privacy import audit_privacy
from rqm.audit.sampler import MIN_P_VALUE, audit_sampler, goodness
from rqm.kernels.integer_sampler import TABLE_BITS, grid_sampler
from rqm.kernels.packing import unpack
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.rqm import RQM
from rqm.randomness import AES_KEY_BYTES, SecureRandom, SeededRandom, Words, cipher_stream


class Finding(NamedTuple):
    """Whether an audit gave an alarm, and its evidence."""

    is_alarm: bool
    evidence: str


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes:
        name: Its name.
        mistake: What is wrong.
        audit: The audit that should notice.
        test: Runs the audit on the mutant (True) or on the sound version (False).
    """

    name: str
    mistake: str
    audit: str
    test: Callable[[bool], Finding]


@dataclass(frozen=True)
class Verdict:
    """Whether a mutant was caught, with the evidence against it and against the sound version."""

    name: str
    mistake: str
    audit: str
    caught: bool
    evidence: str
    sound: str

    def to_dict(self) -> dict[str, Any]:
        """All values, ready for JSON."""
        return asdict(self)


def audit_mutants(names: Sequence[str] | None = None) -> Iterator[Verdict]:
    """Audit mutants and their sound versions.

    Args:
        names: Names of mutants; None: all.

    Yields:
        A verdict on each.
    """
    for mutant in MUTANTS:
        if not names or mutant.name in names:
            broken = mutant.test(True)
            sound = mutant.test(False)
            is_caught = broken.is_alarm and not sound.is_alarm
            yield Verdict(mutant.name, mutant.mistake, mutant.audit, is_caught, broken.evidence, sound.evidence)


# -- samplers -------------------------------------------------------------------------------------


def _sample(
    is_broken: bool,
    mutant: Callable[[], DiscreteMechanism] = RQM,
    source: Callable[[], Source] = SecureRandom,
    draws: int = 10**6,
) -> Finding:
    """Audit the sampler of a mechanism, or with a source of randomness, that is not what it should be."""
    mechanism, rng = (mutant(), source()) if is_broken else (RQM(), SecureRandom())
    audit = audit_sampler(mechanism, rng, draws=draws, claimed=RQM())
    return Finding(not audit.passed, f"p = {audit.p_value:.2g}, {audit.worst}")


def _wide_clamp() -> DiscreteMechanism:
    """Inputs outside the clip are clamped half a level further out than is accounted for."""
    mechanism = RQM()
    wide_sampler = replace(mechanism.sampler, low=mechanism.sampler.low - 2**23, high=mechanism.sampler.high + 2**23)
    mechanism.__dict__["sampler"] = wide_sampler  # where the cached property keeps it
    return mechanism


def _biased_table() -> DiscreteMechanism:
    """One row of the table has a three-hundredth of its mass two levels too high."""
    mechanism = RQM()
    table = mechanism.table.copy()
    shifted = 2**TABLE_BITS // 300
    table[len(table) // 2, [5, 7]] += [-shifted, shifted]
    mechanism.__dict__["sampler"] = grid_sampler(
        mechanism.clip, mechanism.input_range, mechanism.input_levels, table, modulus=mechanism.levels
    )
    return mechanism


class SameKey(SecureRandom):  # type: ignore[misc]
    """Every stream has the same key and nonce."""

    def keystream(self) -> Callable[[Words], None]:
        """The one keystream."""
        return cipher_stream(bytes(AES_KEY_BYTES))


class CountedNonce(SecureRandom):  # type: ignore[misc]
    """One key for the life of a process, and a nonce that counts on. A fork copies both."""

    def __init__(self) -> None:
        self._secret, self._nonces = os.urandom(AES_KEY_BYTES), count()

    def keystream(self) -> Callable[[Words], None]:
        """The same key with the next nonce."""
        return cipher_stream(self._secret, next(self._nonces).to_bytes(12, "little"))


# -- accounting -----------------------------------------------------------------------------------


def _ends_only(is_broken: bool) -> Finding:
    """The worst case is taken at ±clip, where a level inside is worse."""
    claim: Any = "paper" if is_broken else "certified"
    audit = audit_privacy(RQM(keep=0.23), draws=10_000_000, claim=claim, rng=SeededRandom(1))
    return Finding(audit.contradicted, f"claimed ε = {audit.claimed:.4g}, measured at least {audit.measured:.4g}")


def _plan(clients: int = 100, rounds: int = 10) -> Any:
    """A run with ε = 1 for each user, who takes part once, if 100 clients a round are honest."""
    from rqm.config.experiments import find  # noqa: PLC0415
    from rqm.config.sweep import Sweep  # noqa: PLC0415
    from rqm.core.search import calibrate  # noqa: PLC0415

    (plan,) = Sweep.from_toml(find("audit"), first=True).variants.values()
    calibrated = calibrate("rqm", epsilon=1, delta=1e-5, clients=100, population=3400, rounds=10, dim=2**16)
    return replace(
        plan,
        mechanism=calibrated.mechanism.with_parameters(clip=plan.mechanism.discrete.clip),
        participation=replace(plan.participation, clients=clients, rounds=rounds),
        evaluate_every=rounds,
    )


def _plant_canaries(plan: Any, length: float = 1.0) -> Finding:
    """Audit a run that claims ε = 1 with canaries."""
    from rqm.audit.training import audit_training  # noqa: PLC0415
    from rqm.data import load  # noqa: PLC0415

    audit = audit_training(plan, load("glyphs"), 1.0, length=length)
    guesses = f"{audit.correct} of {audit.guesses} right"
    return Finding(audit.contradicted, f"claimed ε = 1, measured at least {audit.measured:.3g} ({guesses})")


def _few_honest(is_broken: bool) -> Finding:
    """The guarantee assumes a hundred honest clients, and there are four."""
    return _plant_canaries(_plan(clients=4, rounds=250) if is_broken else _plan())


def _no_clip(is_broken: bool) -> Finding:
    """Clients send vectors a hundred times as long as the L2 clip that is accounted for."""
    plan = _plan()
    if not is_broken:
        return _plant_canaries(plan, length=100.0)
    return _plant_canaries(replace(plan, transforms=replace(plan.transforms, l2_clip=100 * plan.transforms.l2_clip)))


def _late_charge(is_broken: bool) -> Finding:
    """The ledger is charged after the round. A process that is killed before has released a sum for free."""
    from rqm.data import load  # noqa: PLC0415
    from rqm.ledger.budget_guard import Guard  # noqa: PLC0415
    from rqm.ledger.ledger import LEDGER, read  # noqa: PLC0415
    from rqm.simulation.loop import Observer, RunState  # noqa: PLC0415

    plan = _plan(clients=5, rounds=2)
    unpaid = list[int]()

    class Auditor(Observer):
        def learns(self, round_index: int, mean: Any) -> None:
            """Note a sum that was not charged before.

            Args:
                round_index: The round.
                mean: Its decoded mean, which does not matter here.
            """
            if not read(Path(folder) / LEDGER).charges[round_index]:
                unpaid.append(round_index)

    trainer = RunState(plan, load("glyphs"), observer=Auditor())
    with TemporaryDirectory() as folder, Guard(trainer.mean, Path(folder)) as guard:
        if not is_broken:
            trainer.charge_to(guard)
        for round_index in range(plan.participation.rounds):
            trainer.step()
            if is_broken:
                guard.charge(round_index)
    rounds = plan.participation.rounds
    return Finding(bool(unpaid), f"{len(unpaid)} of {rounds} sums were released before they were charged")


# -- secure aggregation ---------------------------------------------------------------------------


def _masked_vector(round_index: int, length: int = 4096) -> IntArray:
    """What the server sees of client 0, who sends the same values in every round."""
    from rqm.secagg import Params, local, wire  # noqa: PLC0415

    params = Params(clients=4, count=length, levels=16, round=bytes([round_index]), threshold=2)
    masked: list[IntArray] = []

    def _record(client: int, stage: Any, message: bytes) -> None:
        if stage == wire.Kind.MASKED and client == 0:
            body = wire.unframe(message, stage, params.digest, 0)
            packed = np.frombuffer(body[: -(-length * params.bits // 8)], dtype=np.uint8)
            masked.append(np.asarray(unpack(packed, params.bits, length)).astype(np.int64))

    local.aggregate(params, lambda client: np.full(length, client), intercept=_record)
    return masked[0]


def _masks(is_broken: bool, **mutations: Any) -> Finding:
    """Masked vectors are uniform, and so is the difference of those of two rounds."""
    from rqm.secagg import masking  # noqa: PLC0415

    with patch.multiple(masking, **mutations) if is_broken else nullcontext():
        first = _masked_vector(0)
        second = _masked_vector(1)
    modulus = 2**6
    problems = {
        "what is masked is not uniform": first,
        "two rounds have masks in common": (second - first) % modulus,
    }
    uniform = np.full(modulus, 1 / modulus)
    smallest, problem = min(
        (goodness(np.bincount(values, minlength=modulus), uniform), name) for name, values in problems.items()
    )
    p_value = min(1.0, 2 * smallest)
    is_alarm = p_value < MIN_P_VALUE
    return Finding(is_alarm, f"p = {p_value:.2g}: {problem if is_alarm else 'nothing found'}")


# Masks that depend on the clients only.
_reused_masks = partial(
    _masks,
    own_mask_key=lambda digest, seed, client: bytes(32),
    pair_mask_key=lambda digest, secret, u, v: bytes([1 + min(u, v), 1 + max(u, v)] * 16),
)
# Masks that are left out. They cancel in the sum, so it comes out right.
_no_masks = partial(_masks, add_mask=lambda total, key, sign: None)

MUTANTS = [
    Mutant(
        "wrong keep",
        "the encoder keeps levels 2 % too often",
        "sampler",
        partial(_sample, mutant=lambda: RQM(keep=0.4284)),
    ),
    Mutant(
        "biased table",
        "a three-hundredth of one row of the table lies two levels too high",
        "sampler",
        partial(_sample, mutant=_biased_table),
    ),
    Mutant(
        "wide clamp",
        "inputs beyond the clip reach half a level further",
        "sampler",
        partial(_sample, mutant=_wide_clamp),
    ),
    Mutant("wrong knot", "the worst case is looked for at ±c only", "privacy", _ends_only),
    Mutant(
        "reused keystream",
        "every call has the same key and nonce",
        "sampler",
        partial(_sample, source=SameKey, draws=20_000),
    ),
    Mutant(
        "forked keystream",
        "one keystream goes on in both processes after a fork",
        "sampler",
        partial(_sample, source=CountedNonce, draws=20_000),
    ),
    Mutant("under-counted others", "ε counts on 100 honest clients, there are 4", "privacy --experiment", _few_honest),
    Mutant("no L2 clip", "vectors of any length are sent", "privacy --experiment", _no_clip),
    Mutant("late ledger", "the ledger is charged after the release", "ledger at release", _late_charge),
    Mutant("reused masks", "masks are the same in every round", "masked vectors", _reused_masks),
    Mutant("no masks", "vectors are sent as they are", "masked vectors", _no_masks),
]
