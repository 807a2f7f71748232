"""Plans, sweeps, ledgers, certificates, tables and checkpoints."""

import json
import tomllib
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from rqm._util.tensor_file import dump, parse
from rqm.accounting.participation import Participation
from rqm.config.account import account_ledger
from rqm.config.experiments import find, names
from rqm.config.plan import PLAN, Plan, Transforms, assign
from rqm.config.run_files import CHECKPOINT, METRICS, recorded_head
from rqm.config.sweep import Sweep
from rqm.core.from_dict import mean_from_dict
from rqm.correlated.noise import CorrelatedNoise
from rqm.ledger.budget_guard import CERTIFICATE, certified, charged_mean
from rqm.ledger.ledger import LEDGER, Ledger, read
from rqm.mechanisms.stochastic_rounding import StochasticRounding
from rqm.mechanisms.table import Table
from rqm.registry import kinds
from tools.fuzz.mutate import DEEP, ODD, changed, damaged, text_of, value_of
from tools.fuzz.target import Target


def all_plans() -> list[dict[str, Any]]:
    """A plan for every mechanism, with all its keys, one with correlated noise, and one of few coordinates."""
    who = Participation(40, 3, 1000, "uniform", max_participations=1)
    base = Plan(participation=who, transforms=Transforms(l2_clip=1.0, rotate=True))
    ordered = replace(who, sampling="fixed-order", min_separation=2)
    rounding, noise = StochasticRounding(levels=2, margin=9.0), CorrelatedNoise(5.0, 1.0, 3)
    correlated = replace(base, mechanism=rounding, noise=noise, participation=ordered)
    few = replace(base, mechanism=rounding, transforms=Transforms(1.0, True, 512))
    return [
        correlated.to_dict(),
        few.to_dict(),
        *(replace(base, mechanism=made()).to_dict() for made in kinds().values()),
    ]


class Dicts(Target):
    """A plan as Python has it."""

    name = "plan, dict"
    part = 3

    def prepare(self) -> None:
        """One of each mechanism."""
        self.plans = all_plans()

    def attack(self, rng: Random) -> None:
        """Change it, and read it."""
        Plan.from_dict(value_of(changed(rng.choice(self.plans), rng)))


class Json(Dicts):
    """The plan in a run's folder."""

    name = "plan, JSON"
    part = 2

    def attack(self, rng: Random) -> None:
        """Change the values, or the text."""
        plan = rng.choice(self.plans)
        text = text_of(changed(plan, rng)) if rng.random() < 0.5 else damaged(json.dumps(plan).encode(), rng)
        (self.folder / PLAN).write_bytes(text)
        Plan.of_run(self.folder)


class Toml(Target):
    """An experiment, and settings on the command line."""

    name = "plan, TOML"
    part = 2

    def prepare(self) -> None:
        """The shipped experiments."""
        self.texts = [find(name).read_bytes() for name in names()]
        self.keys = [
            *("rounds", "clients", "seeds", "mechanism.mechanism", "mechanism.keep", "server.rate", "population"),
            *(
                "transforms.l2_clip",
                "transforms.coordinates",
                "a.b",
                "mechanism",
                "",
                ".",
                "dim",
                "delta",
                "honest_clients",
                "honest_fraction",
                "min_separation",
                "noise",
                "noise.gain",
                "variants",
                "name",
            ),
        ]

    def attack(self, rng: Random) -> None:
        """Change the text, or set keys."""
        text, settings = rng.choice(self.texts), []
        if rng.random() < 0.6:
            text = damaged(text, rng, rng.choice(self.texts))
            if rng.random() < 0.05:
                text += b"\ndim = " + rng.choice((b"[" * 50_000, b"0x" + b"f" * 5000, b"1" * 5000, b"{a=" * 20_000))
        else:
            odd = [str(one) if one != DEEP else "[" * 5000 for one in ODD]
            settings = [f"{rng.choice(self.keys)}={rng.choice(odd)}" for _ in range(rng.choice((1, 2, 3)))]
        path = self.folder / "plan.toml"
        path.write_bytes(text)
        sweep = Sweep.from_toml(path, settings)
        if rng.random() < 0.1:
            tomllib.loads(text.decode())
            sweep.runs(self.folder)
        for setting in settings:
            assign({}, setting)


class Ledgers(Target):
    """A ledger: its text, and what it says it charges for."""

    name = "ledger"

    def prepare(self) -> None:
        """A good one, and what it is about."""
        self.abouts = [_about(Plan.from_dict(values)) for values in all_plans()]
        self.file = self.folder / LEDGER
        with Ledger(self.file, self.abouts[0]) as ledger:
            for turn in range(4):
                ledger.charge(turn)
        self.good = self.file.read_bytes()

    def attack(self, rng: Random) -> None:
        """Change the text; or write one, hashes and all, about something else."""
        self.file.unlink()
        if rng.random() < 0.6:
            self.file.write_bytes(damaged(self.good, rng, self.good))
            charged_mean(read(self.file).subject)
            return
        about = changed(rng.choice(self.abouts), rng) if rng.random() < 0.9 else rng.choice(ODD)
        self.file.touch()
        with Ledger(self.file, about):  # no charge: no ε, which takes time
            pass
        charged_mean(read(self.file).subject)
        account_ledger(self.folder)


def _about(plan: Plan) -> dict[str, Any]:
    return {"mean": plan.private_mean().to_dict(), "plan": plan.to_dict(), "users": 1000}


class Certificates(Target):
    """A file of certificates."""

    name = "certificate"

    def prepare(self) -> None:
        """A good one."""
        self.mean = Plan.from_dict(all_plans()[0]).private_mean()
        about = {"name": "x", "mean": self.mean.to_dict(), "delta": self.mean.delta, "epsilons": [0.5, 1.0, 1.5]}
        self.good = {"certificates_format": CERTIFICATE, "certificates": [about]}

    def attack(self, rng: Random) -> None:
        """Change the values, or the text."""
        good = json.dumps(self.good).encode()
        path = self.folder / "certificate.json"
        path.write_bytes(text_of(changed(self.good, rng)) if rng.random() < 0.7 else damaged(good, rng))
        certified(path, self.mean)


class Means(Target):
    """A private mean, as the other side writes it."""

    name = "private mean"

    def prepare(self) -> None:
        """One of each mechanism."""
        self.means = [Plan.from_dict(values).private_mean().to_dict() for values in all_plans()]

    def attack(self, rng: Random) -> None:
        """Change it, and read it."""
        mean_from_dict(value_of(changed(rng.choice(self.means), rng)))


class Tables(Target):
    """A mechanism's table in a file."""

    name = "table"

    def prepare(self) -> None:
        """A good one."""
        self.good = Table(rows=((0.7, 0.1, 0.2), (0.2, 0.1, 0.7))).to_dict()

    def attack(self, rng: Random) -> None:
        """Change the values, or the text; what is accepted must have a pmf."""
        path, good = self.folder / "table.json", json.dumps(self.good).encode()
        path.write_bytes(text_of(changed(self.good, rng)) if rng.random() < 0.7 else damaged(good, rng))
        mech = Table.load(path)
        mech.pmf(0.0)
        if not np.isfinite(mech.pmf(mech.clip)).all():
            raise AssertionError("a table without a pmf")


class Checkpoints(Target):
    """A checkpoint: with a checksum that is right or not, and without one as version 0.1.0 wrote it."""

    name = "checkpoint"

    def prepare(self) -> None:
        """A good one, of a tiny model."""
        from rqm.simulation import checkpoint  # noqa: PLC0415 (torch)
        from tools.fuzz.tiny import trainer  # noqa: PLC0415

        self.module, self.trainer, self.path = checkpoint, trainer(), self.folder / CHECKPOINT
        (self.folder / METRICS).write_text("x" * 50)
        checkpoint.save(self.trainer, self.folder, 10, "0" * 64)
        self.good = self.path.read_bytes()
        self.arrays, self.texts = parse(self.good)

    def attack(self, rng: Random) -> None:
        """Change bytes, which must be noticed; or the state, with a new checksum; or strip that and change bytes."""
        kind = rng.random()
        if kind < 0.4:
            data = damaged(self.good, rng, self.good)
        else:
            state = changed(json.loads(self.texts["state"]), rng)
            texts = {"state": text_of(state).decode()}
            arrays = {
                name: array + np.float32(rng.choice((0, 0, 0, np.nan, np.inf))) for name, array in self.arrays.items()
            }
            data = dump(arrays, texts)
            if kind > 0.7:
                data = damaged(data.replace(b'"sha256": "', b'"sha256": "'[:-1] + b"x", 1), rng)
        self.path.write_bytes(data)
        recorded_head(self.folder)
        self.module.restore(self.trainer, self.folder)
        if kind < 0.4 and data != self.good:
            raise AssertionError("damage that was not noticed")


TARGETS = (Dicts, Json, Toml, Ledgers, Certificates, Means, Tables, Checkpoints)
