"""Ledgers, plans and witness files, in the bytes that a run writes: an independent reimplementation of the writer."""

import hashlib
import json
from collections import Counter

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rqm import Gaussian, Participation, PrivateMean, StochasticRounding
from rqm.config.plan import Plan
from tests.plans import make_plan

KEY, OTHER_KEY = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
DELTA = 1e-6
MEAN = PrivateMean(
    dim=100,
    mechanism=StochasticRounding(clip=0.4, levels=2, margin=9.0),
    participation=Participation(clients=20, rounds=8, max_participations=3),
    delta=DELTA,
)


def public_key(key):
    return key.public_key().public_bytes_raw().hex()


def describe(mean=MEAN, plan=None, **more):
    """The description in the first line of a ledger."""
    return {"mean": json.loads(json.dumps(mean.to_dict())), "plan": plan, **more}


def change_mean(description, **values):
    """A description with some values of its mean changed."""
    return {**description, "mean": {**description["mean"], **values}}


def plan_table(mean=MEAN, **changes):
    """The plan of a run of this mean, as a run writes it."""
    values = Plan(mechanism=mean.mechanism).to_dict()
    values |= {name: value for name, value in mean.to_dict().items() if name in values}
    coordinates = mean.coordinates if mean.is_subset else None
    values["transforms"] = {"l2_clip": mean.l2_clip, "rotate": mean.rotate, "coordinates": coordinates}
    return json.loads(json.dumps({**values, **changes}))


def ledger_bytes(charges, description=None, key=KEY, first=None, nonces=None):
    """A ledger with charges for these rounds.

    Args:
        charges: Round indices, one for each charge.
        description: The description of what is charged for.
        key: Signs the lines; None: the ledger is not signed.
        first: Values to replace in the first line.
        nonces: The nonces of all lines; by default they follow from the line number.
    """
    begin = {"ledger": 4, "about": describe() if description is None else description}
    begin |= {"key": public_key(key)} if key else {}
    lines, head = [], "0" * 64
    for number, body in enumerate([{**begin, **(first or {})}, *({"round": round_index} for round_index in charges)]):
        nonce = f"{number:016x}" if nonces is None else nonces[number]
        line = {**body, "nonce": nonce, "previous": head}
        head = line["hash"] = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
        if key:
            line["signature"] = key.sign(b"rqm ledger" + bytes.fromhex(head)).hex()
        lines.append(json.dumps(line) + "\n")
    return "".join(lines).encode()


def hashes(ledger):
    return [json.loads(line)["hash"] for line in ledger.splitlines()]


def witness_bytes(ledger):
    """The file of a witness to which every line of a ledger was reported."""
    heads = hashes(ledger)
    rows = [{"ledger": heads[0], "lines": n, "head": head, "path": "x"} for n, head in enumerate(heads, start=1)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


LEDGER = ledger_bytes([0, 1, 2, 2, 3])
FAST_DESCRIPTION = describe(
    PrivateMean(dim=100, mechanism=Gaussian(5.0), participation=Participation(clients=20, rounds=8), delta=DELTA)
)
"""Its ε takes no time."""
FAST_LEDGER = ledger_bytes([0, 1, 2, 2, 3], FAST_DESCRIPTION)

SILO_NOISE = {"mechanism": "discrete-gaussian", "clip": 1.0, "scale": 0.5, "steps": 511, "bits": 12}


def silo_plan(**changes):
    """The plan of a run of silos, whose records are sampled."""
    values = {"model": "own", "dim": 500, "mechanism": SILO_NOISE, "clients": 4, "rounds": 20, "delta": 1e-6}
    values |= {"transforms": {"l2_clip": 22.6, "rotate": True}}
    values |= {"records": {"clip": 1.0, "batch": 200, "sampling_rate": 0.05}}
    return make_plan(**values | changes)


def silo_ledger(charges, **changes):
    """The accountant's ε of some rounds of silos, and the ledger."""
    plan = silo_plan(**changes)
    mean = plan.private_mean()
    description = describe(mean, plan=json.loads(json.dumps(plan.to_dict())), users=mean.participation.clients)
    return mean.account(Counter(charges)).epsilon, ledger_bytes(charges, description)
