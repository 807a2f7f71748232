"""An independent reader of ledgers: ``verify`` believes nothing that it has not read or computed itself.

It shares no line with the rest of the package, on purpose, and imports nothing of it: the chain of hashes, the
signatures and a second, simpler bound on ε are told here once more, so that a defect of the ledger or of the accountant
is seen by somebody who does not have it. What it cannot check it says so, and never guesses. ``docs/verify.md`` has the
proof of its bound.
"""

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from .bound import epsilon
from .cancel import MOST_TIMES, NARROWEST, WIDEST
from .chain import Report, Row, chain, content, heads, is_folder, parsed, shown, signatures
from .laws import Unsure
from .promise import Promise, real, whole
from .silos import KEYS, of_plan
from .silos import epsilon as of_records
from .vectors import MOST, as_vertices, width

LOOSE = 1.10
"""This bound exceeds the accountant's by no more."""
LONGEST = 2**24
"""Bytes of a checkpoint's header that are read."""
MEAN = {"private_mean", "dim", "clients", "mechanism", "delta", "l2_clip", "rotate", "rounds", "population"}
MEAN |= {"participations", "honest", "survivors", "observer", "neighbours", "unit", "seed"}
LATER = {"cancel", "separation"}
"""What a mean or a plan holds only where noise is taken back, or users wait."""
FEW = {"coordinates"}
"""What a mean or a plan's transforms hold only where not all coordinates are sent."""
ABOUT = {"mean", "sampling", "plan"}
TRANSFORMS = {"l2_clip", "rotate"}
PLAN = {"data", "model", "dropout", "dim", "mechanism", "clients", "population", "examples", "participations", "lost"}
PLAN |= {"survivors", "honest", "delta", "budget_epsilon", "secagg", "rounds", "seed", "device", "evaluate_every"}
PLAN |= {"checkpoint_every", "transforms", "client", "server"}
NOISE = {"clip", "scale", "steps", "bits"}
PARAMETERS = {
    "gaussian": {"noise_multiplier", "local"},
    "rounding": {"clip", "margin", "levels"},
    "rqm": {"clip", "margin", "levels", "keep"},
    "pbm": {"clip", "theta", "levels"},
    "discrete-gaussian": NOISE,
    "skellam": NOISE,
    "binomial": NOISE,
    "vqsgd": {"epsilon", "local"},
}


def verify(
    path: Path | str,
    *,
    key: str | Path | None = None,
    witness: Path | str | None = None,
    head: str | None = None,
    dim: int | None = None,
    delta: float | None = None,
    honest: int | float | None = None,
    rounds: int | None = None,
) -> Report:
    """Read a ledger, or the folder of a run, and check everything that can be checked from outside.

    ``key`` is the public key of the server, in hexadecimal or in a file; ``witness`` a file of heads that were told to
    it; ``head`` one that was written down. ``dim`` (the model's parameters), ``delta``, ``honest`` and ``rounds``
    (releases that are known of) are what the auditor knows: a ledger that says otherwise is wrong.

    >>> verify("/nothing").unsure
    ['/nothing: cannot be read (No such file or directory)']
    """
    path, report = Path(path), Report(str(path))
    steps: list[Callable[[], None]] = []
    with _doubts(report):
        folder = path if is_folder(path) else None
        lines = chain(content(path / "ledger.jsonl" if folder else path), report)
        hashes, about = [line["hash"] for line in lines], lines[0]["about"] if lines else {}
        spent = Counter(line["round"] for line in lines[1:])
        report.charges, report.rounds, report.head = sum(spent.values()), len(spent), hashes[-1] if hashes else None
        if not report.wrong:
            known = {"dim": dim, "delta": delta, "honest": honest, "rounds": rounds}
            steps.append(lambda: signatures(lines, key, report))
            steps.append(lambda: heads(hashes, witness, head, report))
            steps.append(lambda: _agree(about, known, report))
            steps.append(lambda: _account(about, spent, report))
            steps.extend(_beside(folder, about, spent, hashes, report) if folder else [])
    for step in steps:  # what one of them cannot tell does not keep the others from looking
        with _doubts(report):
            step()
    return report


@contextmanager
def _doubts(report: Report) -> Iterator[None]:
    """Whatever cannot be told is reported, and nothing else happens."""
    try:
        yield
    except Unsure as doubt:
        report.unsure.append(str(doubt))
    except Exception as error:  # nobody has thought of that, so nothing is known
        report.unsure.append(f"a value is beyond what can be computed with ({type(error).__name__})")


# -- what is charged for --------------------------------------------------------------------------


def _mean(about: Row) -> Row:
    if "seeded" in about:
        raise Unsure("the answers came from seeded words, which anyone can repeat: not private")
    mean = about.get("mean")
    if not isinstance(mean, dict):
        raise Unsure("the ledger does not say what a release is (mean)")
    return mean


def _agree(about: Row, known: Row, report: Report) -> None:
    """The parts of a ledger's first line must not contradict each other, nor what the auditor knows."""
    if known["rounds"] is not None and report.charges < known["rounds"]:
        report.wrong.append(f"{report.charges} releases were charged: {known['rounds']} are known of")
    mean = _mean(about)
    expected = {**known, "dim": width(about.get("plan"), known["dim"])}
    for name in ("dim", "delta", "honest"):
        found = mean.get("clients") if name == "honest" and mean.get(name) is None else mean.get(name)
        if expected[name] is not None and _differ(name, found, expected[name]):
            report.wrong.append(f"{name} = {shown(found)}: expected {expected[name]}")
    if about.get("plan") is not None:
        _compare(mean, about["plan"], "the ledger's plan", report)


def _differ(name: str, one: Any, other: Any) -> bool:
    """Whether two values say different things: of honest clients 1 is one of them, 1.0 is all."""
    return bool(one != other or (name == "honest" and isinstance(one, float) != isinstance(other, float)))


def _compare(mean: Row, plan: Any, where: str, report: Report) -> None:
    """What a plan says must be what is charged for."""
    if not isinstance(plan, dict):
        report.wrong.append(f"{where} is no plan: {shown(plan)}")
        return
    transforms = plan.get("transforms")
    if (
        set(plan) - LATER - {"records", "adapt"} != PLAN
        or not isinstance(transforms, dict)
        or set(transforms) - FEW != TRANSFORMS
    ):
        raise Unsure(f"{where} does not say what a plan says as this verifier knows it")
    later = LATER | FEW
    later |= KEYS | {"unit", "neighbours"} if "records" in plan or mean.get("unit") == "record" else set()
    said = {**dict.fromkeys(later & mean.keys()), **plan, **transforms, **of_plan(plan)}
    said["dim"] = width(plan, said["dim"])
    if mean.get("coordinates") is None and said.get("coordinates") == _all(mean):
        said["coordinates"] = None  # all are not few
    if said["survivors"] is None and said["lost"]:
        said["survivors"] = 1  # a round may then end with anybody
    if said["delta"] is None:
        users = whole(said, "population", 2**62, none=True)
        said["delta"] = min(1e-5, 1 / users) if users else 1e-5
    exact = {"clients", "rounds", "mechanism", "l2_clip", "rotate", "population", "participations", "honest"}
    for name in sorted({*exact, *later & said.keys(), "survivors", "delta", "dim"} & {*mean, *later}):
        if _differ(name, said[name], mean.get(name)) and not (name == "dim" and said[name] is None):
            report.wrong.append(f"{name} = {shown(mean.get(name))} is charged for: {where} says {shown(said[name])}")


def _promise(about: Row) -> Promise:
    """What a release is, every value checked; anything that is not known here cannot be verified."""
    mean = _mean(about)
    if set(about) - {"users"} != ABOUT or about["sampling"] not in ("uniform", "available"):
        raise Unsure(f"the ledger begins with {shown(sorted(about))}, which this verifier does not know")
    if set(mean) - LATER - FEW != MEAN or mean["private_mean"] != 1 or not isinstance(mean["mechanism"], dict):
        raise Unsure("the ledger does not say what a release is as this verifier knows it")
    if mean["observer"] != "server" or mean["unit"] != "user" or mean["neighbours"] not in ("replace", "zero-out"):
        raise Unsure(f"observer, neighbours = {shown([mean['observer'], mean['neighbours']])}: cannot be verified")
    if not isinstance(mean["rotate"], bool):
        raise Unsure(f"rotate = {shown(mean['rotate'])}: must be true or false")
    clients = whole(mean, "clients", 2**31)
    honest = mean["honest"]
    if isinstance(honest, float):
        real(mean, "honest", 1)
    else:
        honest = whole(mean, "honest", clients, none=True)
    real(mean, "delta", 1)
    if mean["delta"] == 1:
        raise Unsure("delta = 1: must be below 1, for it promises nothing")
    whole(mean, "rounds", 2**62, none=True)
    if type(mean["seed"]) is not int:
        raise Unsure(f"seed = {shown(mean['seed'])}: must be a whole number")
    if "users" in about and not whole(about, "users", 2**62) >= clients:
        raise Unsure(f"users = {about['users']}: must be at least {clients}, a round's clients")
    if mean["population"] not in (None, about.get("users", mean["population"])):
        raise Unsure(f"users = {about['users']}: the population is {shown(mean['population'])}")
    if mean["l2_clip"] is not None:
        real(mean, "l2_clip", 1e300)
    population = whole(mean, "population", 2**62, none=True)
    if population is not None and population < clients:
        raise Unsure(f"population = {population}: must be at least {clients}, a round's clients")
    cancel, left, times = _cancel(mean)
    promise = Promise(
        mechanism=_mechanism(mean["mechanism"], mean["l2_clip"]),
        dim=whole(mean, "dim", 2**40) or 1,
        clients=clients or 1,
        delta=mean["delta"],
        l2_clip=mean["l2_clip"],
        rotate=mean["rotate"],
        population=population,
        participations=whole(mean, "participations", 2**62, none=True),
        honest=honest,
        survivors=whole(mean, "survivors", clients, none=True),
        zero_out=mean["neighbours"] == "zero-out",
        uniform=about.get("sampling") == "uniform",
        cancel=cancel,
        left=left,
        times=times,
        separation=whole({"separation": None, **mean}, "separation", 2**62, none=True),
        few=_few(mean),
    )
    return as_vertices(promise) if promise.mechanism["mechanism"] == "vqsgd" else promise


def _few(mean: Row) -> int | None:
    """How many coordinates are sent, where these are not all; checked."""
    if mean.get("coordinates") is None:
        return None
    if not mean["rotate"] or mean["l2_clip"] is None or mean.get("cancel") is not None:
        raise Unsure("coordinates: few are sent only of vectors that are clipped and rotated, with noise that stays")
    return int(whole(mean, "coordinates", _all(mean) - 1))


def _all(mean: Row) -> int:
    """The coordinates of a vector that is rotated, and so padded."""
    return int(1 << (whole(mean, "dim", 2**40) - 1).bit_length())


def _cancel(mean: Row) -> tuple[float | None, float, int]:
    """Steps of noise that is taken back; of which a part stays, so many steps, and was so often as large; checked."""
    value = mean.get("cancel")
    if value is None:
        return None, 0.0, 1
    parts = dict(zip(("cancel", "stays", "times"), value if isinstance(value, list) else [value], strict=False))
    mech = mean["mechanism"]
    if (mech.get("mechanism"), mech.get("levels")) != ("rounding", 2) or (isinstance(value, list) and len(value) != 3):
        raise Unsure(f"cancel = {shown(value)}: must come with rounding to two levels, and be a number, or three")
    for name in [one for one in parts if one != "times"]:
        real(parts, name, WIDEST)
        if parts[name] < NARROWEST:
            raise Unsure(f"cancel = {shown(value)}: must be at least {NARROWEST}")
    if "times" in parts and whole(parts, "times", MOST_TIMES) < 2:
        raise Unsure(f"cancel = {shown(value)}: what stays must be at least twice as large at first")
    return float(parts["cancel"]), float(parts.get("stays", 0.0)), int(parts.get("times", 1))


def _mechanism(mech: Row, l2_clip: float | None, most_steps: int = 1023) -> Row:
    """The parameters of a mechanism, checked."""
    kind = mech.get("mechanism")
    if not isinstance(kind, str) or kind not in PARAMETERS:
        raise Unsure(f"mechanism = {shown(kind)}: this verifier has no bound for it")
    if set(mech) - {"mechanism"} != PARAMETERS[kind]:
        raise Unsure(f"mechanism: has the parameters {shown(sorted(mech))}, which are not those of {kind}")
    if kind == "vqsgd" and not isinstance(mech["local"], bool):
        raise Unsure(f"local = {shown(mech['local'])}: must be true or false")
    ranges = {"clip": 1e280, "margin": 1e300, "theta": 0.5, "scale": 1e300, "noise_multiplier": 1e150}
    for name, most in {**ranges, "epsilon": MOST[mech.get("local") is True]}.items():
        if name in mech and not (name == "margin" and type(mech[name]) in (int, float) and mech[name] == 0):
            real(mech, name, most)
    for name, largest in {"levels": 1024 if kind == "rqm" else 2**16, "steps": most_steps, "bits": 16}.items():
        if name in mech:
            whole(mech, name, largest)
    if kind == "rqm":
        one = not isinstance(mech["keep"], list)
        keeps = [mech["keep"]] if one else mech["keep"]
        if not (one or len(keeps) == mech["levels"] - 2) or not all(type(q) is float and 0 < q < 1 for q in keeps):
            raise Unsure(f"keep = {shown(mech['keep'])}: must be chances between 0 and 1")
    if mech.get("levels", 2) < 2 or mech.get("theta") == 0.5 or (kind == "gaussian" and l2_clip is None):
        raise Unsure(f"mechanism = {shown(mech)}: such a mechanism is not known here")
    if "bits" in mech and (mech["steps"] % 2 == 0 or mech["steps"] >= 2 ** mech["bits"]):
        raise Unsure(f"steps = {mech['steps']}: must be odd, and fit {mech['bits']} bits")
    return mech


def _account(about: Row, spent: Counter[int], report: Report) -> None:
    """ε of all that was charged, by this verifier's own bound."""
    if _mean(about).get("unit") == "record":
        _records(about, spent, report)
        return
    promise = _promise(about)
    report.delta = promise.delta
    report.participations = sum(count for _, count in spent.most_common(_most(promise, spent)))
    report.honest = promise.floor(max(1, report.participations))[0]
    if isinstance(promise.honest, float) and max(spent.values(), default=0) > 1:
        raise Unsure(
            f"honest = {promise.honest}: this verifier has no bound for a fraction and rounds that were done again"
        )
    report.epsilon, report.lower = epsilon(promise, report.participations)
    if promise.mechanism["mechanism"] == "gaussian" and not promise.mechanism["local"]:
        report.notes.append("the noise is the server's: ε holds against those who see only what it publishes")


def _records(about: Row, spent: Counter[int], report: Report) -> None:
    """The same for a record of a silo."""
    mean = _mean(about)
    if set(about) - {"users"} != ABOUT or set(mean) - LATER - FEW - KEYS != MEAN or mean["private_mean"] != 1:
        raise Unsure("the ledger does not say what a release of silos is as this verifier knows it")
    if not isinstance(mean["mechanism"], dict) or mean["rotate"] not in (True, False):
        raise Unsure("the ledger does not say what a silo's vector is encoded by")
    mech = _mechanism(mean["mechanism"], mean["l2_clip"], most_steps=2**14)
    report.epsilon, report.participations, report.honest = of_records(mean, mech, spent)
    report.delta, report.lower, report.unit = mean["delta"], 0.0, "record"
    report.notes.append("ε is a record's: that each was clipped, and drawn in secret, its silo alone knows")


def _most(promise: Promise, spent: Counter[int]) -> int | None:
    """The most rounds of those charged that one user took part in; two of them are apart by the separation."""
    if promise.separation is None:
        return promise.participations
    if spent and max(spent) - min(spent) >= len(spent):
        raise Unsure(f"separation = {promise.separation}: rounds are missing, so users may have come back too early")
    apart = -(-len(spent) // promise.separation)
    return apart if promise.participations is None else min(apart, promise.participations)


# -- the files beside a ledger --------------------------------------------------------------------


def _beside(
    folder: Path, about: Row, spent: Counter[int], hashes: list[str], report: Report
) -> Iterator[Callable[[], None]]:
    """The other files of a run must not tell of more, or of something else, than was charged."""
    looks: dict[str, Callable[[Path], None]] = {
        "plan.json": lambda path: _compare(_mean(about), parsed(content(path)), "plan.json", report),
        "metrics.jsonl": lambda path: _metrics(content(path), spent, report),
        "checkpoint.safetensors": lambda path: _checkpoint(path, about, spent, hashes, report),
        "summary.json": lambda path: _summary(parsed(content(path)), about, hashes, report),
    }
    for name, look in looks.items():
        if (folder / name).exists():
            yield partial(look, folder / name)


def _metrics(data: bytes, spent: Counter[int], report: Report) -> None:
    """Every round that is told of (from 1) must have been charged (from 0)."""
    rows = [parsed(raw) for raw in data.split(b"\n")[:-1]]
    turns = [one["round"] for one in rows if isinstance(one, dict) and type(one.get("round")) is int]
    if len(turns) < len(rows):
        raise Unsure("metrics.jsonl: has lines that cannot be read")
    missing = [turn for turn in turns if not spent[turn - 1]]
    if missing:
        report.wrong.append(
            f"metrics.jsonl tells of {len(missing)} rounds that were not charged, first of {missing[0]}"
        )


def _checkpoint(path: Path, about: Row, spent: Counter[int], hashes: list[str], report: Report) -> None:
    """The model has as many parameters as was charged for, and is no later than the ledger."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, LONGEST)))
        state = json.loads(header["__metadata__"]["state"])
        size, done, head = prod(header["values"]["shape"]), state["round"], state["ledger_head"]
        if type(size) is not int or type(done) is not int:
            raise TypeError("its size and its round must be whole numbers")
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise Unsure(f"{path.name}: cannot be read ({type(error).__name__}: {error})") from None
    sent = _mean(about).get("dim")
    if width(about.get("plan"), size) != sent:
        report.wrong.append(f"dim = {shown(sent)}: {path.name} has {shown(size)} parameters")
    if head not in hashes:
        report.wrong.append(f"{path.name} came after the head {shown(head)}, which the ledger lacks")
    if done > len(spent):
        report.wrong.append(f"{path.name} is of {shown(done)} rounds: {len(spent)} were charged")


def _summary(found: Any, about: Row, hashes: list[str], report: Report) -> None:
    """What a run states at its end must be what was charged for, and an ε that can be true."""
    if not isinstance(found, dict):
        raise Unsure("summary.json: cannot be read")
    mean = _mean(about)
    for name, expected in (("delta", mean.get("delta")), ("parameters", mean.get("dim"))):
        told = width(about.get("plan"), found.get(name)) if name == "parameters" else found.get(name)
        if told not in (None, expected):
            report.wrong.append(f"{name} = {shown(expected)}: summary.json says {shown(found[name])}")
    if found.get("ledger_head") not in (None, *hashes):
        report.wrong.append(f"summary.json came after the head {shown(found['ledger_head'])}, which the ledger lacks")
    stated = found.get("epsilon")
    if stated is None or report.epsilon is None or report.lower is None:
        return
    if type(stated) not in (int, float) or not stated >= report.lower:
        report.wrong.append(f"summary.json states ε = {shown(stated)}: no ε below {report.lower:.4g} can be true")
    elif stated < report.epsilon / LOOSE:
        raise Unsure(f"summary.json states ε = {stated:.6g}: this verifier can only confirm {report.epsilon:.6g}")
