"""Ledgers as their writer writes them, told here once more, and what a witness is told of them."""

import hashlib
import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rqm import Gaussian, PrivateMean, Rounding
from rqm.plan.plan import Plan

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
MEAN = PrivateMean(
    dim=100, clients=20, mechanism=Rounding(clip=0.4, levels=2, margin=9.0), delta=1e-6, rounds=8, participations=3
)


def public(key):
    return key.public_key().public_bytes_raw().hex()


def about(mean=MEAN, **more):
    return {"mean": json.loads(json.dumps(mean.to_dict())), "sampling": "uniform", "plan": None, **more}


def plan(mean=MEAN, **other):
    """What the plan of such a ledger says."""
    parts = {"l2_clip": mean.l2_clip, "rotate": mean.rotate}
    said = {**Plan(mechanism=mean.mechanism, clients=mean.clients).to_dict(), "transforms": parts}
    said |= {name: value for name, value in mean.to_dict().items() if name in said}
    return json.loads(json.dumps({**said, **other}))


def written(charges, said=None, key=KEY, first=None):
    """A ledger as its writer writes it, told here once more; ``first`` replaces parts of its first line."""
    begin = {"ledger": 3 if key else 2, "about": about() if said is None else said}
    begin |= {"key": public(key)} if key else {}
    out, head = [], "0" * 64
    for body in ({**begin, **(first or {})}, *({"round": turn} for turn in charges)):
        line = {**body, "previous": head}
        head = line["hash"] = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
        if key:
            line["signature"] = key.sign(b"rqm ledger" + bytes.fromhex(head)).hex()
        out.append(json.dumps(line) + "\n")
    return "".join(out).encode()


def hashes(data):
    return [json.loads(line)["hash"] for line in data.splitlines()]


def heads(data):
    """What a witness was told of a ledger."""
    found = hashes(data)
    rows = [{"ledger": found[0], "lines": n, "head": head, "path": "x"} for n, head in enumerate(found, start=1)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


LEDGER = written([0, 1, 2, 2, 3])
SAID = about(PrivateMean(dim=100, clients=20, mechanism=Gaussian(5.0), delta=1e-6, rounds=8))  # known in no time
QUICK = written([0, 1, 2, 2, 3], SAID)
