"""A node's own policy: what its owner takes part in, whatever a server asks for, and what that has cost so far.

The server of a federation says how much noise there is, how many clients, and how often. A node holds its policy
against that: it checks every round before its keys leave, and charges a ledger of its own before its vector does. A
node without a policy takes part in nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final, get_args

from rqm._util.checks import known_keys, real, shown, whole
from rqm._util.disk import lock, state_folder, sync_folder
from rqm._util.files import read_json, write_atomically, write_json
from rqm.bounds import Neighboring, Unit
from rqm.encoding.private_mean import PrivateMean
from rqm.ledger.ledger import LEDGER, read
from rqm.plan.guard import Guard
from rqm.plan.plan import Plan, read_toml
from rqm.plan.protocol import corrupt

if TYPE_CHECKING:
    from rqm.secagg import Identity, Roster

POLICY, PAID = "policy.toml", "node"
"""The file of a policy, by default in the folder of the user's state, and the folder of ledgers beside it."""
IDENTITY = "identity.key"
"""The node's own secret key, beside it too."""
KNOWN, AHEAD, DRAWN, KEPT = "epsilon.json", 64, 8, 256
"""The file of what releases cost, so many ahead (of records that are drawn, after which counts take longer), of so many
kinds."""
FARTHEST = 256
"""Rounds from one participation to the next, of noise that cancels, that a node counts on at most."""
BEGUN, CHAINS = "rounds", "chains"
"""The folders of what was begun, an empty file a round; and of chains of rounds, with the last one in each."""
NAMED = "rqm-policy"
"""The key of a node's configuration that names its policy's file."""
ANY = ("rqm", "pbm", "rounding", "discrete-gaussian", "skellam", "binomial")

TEMPLATE = """\
# What this node takes part in, whatever a server asks for. Only its owner writes this file. A round that it forbids is
# refused before anything leaves; the node counts for itself, in ledgers beside this file.

epsilon = 8.0            # of all releases of this node together, for ever, …
release_epsilon = 2.0    # … and of a single one, …
delta = 1e-6             # … at this δ
l2_clip = 1.0            # a vector is clipped to this norm, or less
clients = 20             # a round has so many clients at least, …
honest_fraction = 0.8    # … of whom this fraction is honest (or honest_clients = 16), those who drop out counted in;
                         # the others may collude with the server: the secure sum must hold against them
roster = "roster.txt"    # who may be among them: public keys, a line each (rqm keys), beside this file. Or instead:
# trust_server_with_keys = true    # the server, which hands on the others' keys, will not play them itself
max_participations = 10  # releases, for ever
mechanisms = ["rqm", "rounding", "pbm"]
# unit = "record"        # this node is a silo, and ε a record's: without this line it is for all that the node holds
# neighboring = "replace-one"  # of records: one is replaced by another; without this line one is there, or is not
"""
TRUSTING = """\
# This node takes what the server says: noise, clients, keys, how often. Nothing is checked, nothing is counted here.
# For simulations, and for those who run the server themselves.

trust_server = true
"""


class PolicyError(ValueError):
    """What a server asks for is more than the owner of this node allows."""


@final
@dataclass(frozen=True)
class Policy:
    """The owner's limits. ε is this node's own: against the server and all clients of a round who are not honest.

    ``honest_clients`` or ``honest_fraction`` says how many they are, dropouts included: the server says who drops out.
    With a ``roster`` all clients of a round are in it, each once; their keys are signed. ε is for all that the node
    holds, unless the owner says that its ``unit`` is a record: then the node is a silo, ``l2_clip`` that of each of
    its records, and ``neighboring`` says whether a record is added or removed, or replaced by another.

    >>> limits = {"epsilon": 8.0, "delta": 1e-6, "release_epsilon": 2.0, "l2_clip": 1.0, "clients": 20}
    >>> Policy(**limits, max_participations=10, honest_fraction=0.8, trust_server_with_keys=True).corrupt(100)
    20
    """

    epsilon: float
    delta: float
    release_epsilon: float
    l2_clip: float
    clients: int
    max_participations: int
    honest_clients: int | None = None
    honest_fraction: float | None = None
    roster: Path | None = None
    trust_server_with_keys: bool = False
    mechanisms: tuple[str, ...] = ANY
    unit: Unit = "user"
    neighboring: Neighboring | None = None

    def __post_init__(self) -> None:
        """Validate every value."""
        for name in ("epsilon", "release_epsilon"):
            real(name, getattr(self, name), "a positive finite number", 0, inf)
        real("delta", self.delta, "above 0 and below 1", 0, 1)
        real("l2_clip", self.l2_clip, "a number above 0", 0, 1e300)
        whole("clients", self.clients, 2)
        whole("max_participations", self.max_participations, 1)
        if (self.honest_clients is None) == (self.honest_fraction is None):
            raise ValueError("honest_clients, honest_fraction: one of the two must be given, and only one")
        if self.honest_fraction is not None:
            real("honest_fraction", self.honest_fraction, "above 0 and below 1", 0, 1)
        else:
            whole("honest_clients", self.honest_clients, 1, self.clients)
        if not isinstance(self.trust_server_with_keys, bool):
            raise ValueError(f"trust_server_with_keys = {shown(self.trust_server_with_keys)}: must be true or false")
        if (self.roster is None) != self.trust_server_with_keys:
            raise ValueError(
                "roster: must be given, or else trust_server_with_keys = true: the server hands on the keys of the "
                "other clients, and could play them itself"
            )
        if not isinstance(self.mechanisms, tuple | list) or not all(isinstance(one, str) for one in self.mechanisms):
            raise ValueError(f"mechanisms = {shown(self.mechanisms)}: must be a list of names")
        object.__setattr__(self, "mechanisms", tuple(self.mechanisms))
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit = {shown(self.unit)}: must be one of {', '.join(get_args(Unit))}")
        known = ("add-or-remove-one", "replace-one") if self.unit == "record" else ("replace-one",)
        if self.neighboring is None:
            object.__setattr__(self, "neighboring", known[0])
        if self.neighboring not in known:
            raise ValueError(
                f"neighboring = {shown(self.neighboring)}: must be {' or '.join(known)} where the unit is a {self.unit}"
            )

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read a policy; whatever it does not say in full is refused."""
        try:
            values = read_toml(path)
            names = [one.name for one in fields(cls)]
            known_keys(values, names)
            optional = ("roster", "trust_server_with_keys", "unit", "neighboring", "honest_clients", "honest_fraction")
            needed = [name for name in names if name not in optional]
            missing = [name for name in needed if name not in values]
            if missing:
                raise ValueError(f"{missing[0]}: missing; a policy says all of {', '.join(needed)}")
            roster = values.pop("roster", None)
            if not isinstance(roster, str | None):
                raise ValueError(f"roster = {shown(roster)}: must be the name of a file")
            return cls(**values, roster=None if roster is None else path.parent / roster)
        except (ValueError, TypeError, OSError) as error:
            raise PolicyError(f"{path}: {error}") from None

    def corrupt(self, clients: int) -> int:
        """How many of a round's clients may work with the server."""
        if self.honest_fraction is not None:
            return clients - int(self.honest_fraction * clients)
        return clients - min(self.honest_clients or 0, clients)

    def counted(self, mean: PrivateMean) -> PrivateMean:
        """What a round is worth to this owner: his δ, and the noise of the honest clients that he believes in."""
        clients, who = mean.participation.clients, mean.participation
        # the node itself counts its rounds; a separation longer than this takes hours to account for
        window = 1 if mean.noise is None else min(who.window, FARTHEST)
        counted = replace(who, max_participations=None, population=None, sampling="available", min_separation=window)
        threat = replace(mean.threat_model, honest_clients=clients - self.corrupt(clients), honest_fraction=None)
        return replace(mean, participation=counted, threat_model=threat, delta=self.delta, **_same_coordinates(mean))

    def covers(self, kind: PrivateMean) -> bool:
        """Whether ε of rounds of a kind holds for whom this policy protects: a record, too, if for the whole node."""
        threat = kind.threat_model
        return (threat.unit, threat.neighboring) in ((self.unit, self.neighboring), ("user", "replace-one"))

    def check(self, plan: Plan, mean: PrivateMean) -> None:
        """Refuse what no count of releases could make good."""
        clients, threat = plan.participation.clients, mean.threat_model
        least, bad = plan.participation.min_survivors or (1 if plan.lost else clients), self.corrupt(clients)
        name, clip = plan.mechanism.to_dict()["mechanism"], mean.record_clip or mean.l2_clip or 0
        for good, problem in (
            (name in self.mechanisms, f"mechanism = {name}: must be one of {', '.join(self.mechanisms)}"),
            (mean.is_quick, f"clients = {clients}: ε of this mechanism takes too long to work out"),
            (mean.l2_clip is not None, "l2_clip: must be given, or nothing bounds a vector"),
            (threat.unit == self.unit, f"unit = {threat.unit}: must be {self.unit}, which its ε is to protect"),
            (
                threat.neighboring == self.neighboring,
                f"neighboring = {threat.neighboring}: must be {self.neighboring}, by which its owner counts",
            ),
            (
                threat.adversary == "server",
                f"adversary = {threat.adversary}: must be server, against which a node counts",
            ),
            (clip <= self.l2_clip, f"l2_clip = {clip}: must be at most {self.l2_clip}"),
            (clients >= self.clients, f"clients = {clients}: must be at least {self.clients}"),
            (least > bad, f"min_survivors = {least}: must be more than {bad}, who may collude with the server"),
            (
                corrupt(plan) >= bad,
                f"honest_clients = {clients - corrupt(plan)}: must be at most {clients - bad}, or the secure sum is "
                f"not made for {bad} of {clients} clients who collude with the server",
            ),
        ):
            if not good:
                raise PolicyError(f"the policy of this node: {problem}")


@final
class NodeGuard:
    """A node's policy, its key and its own ledgers, in a folder of its own that must outlive the process.

    There is a ledger for every kind of round.
    """

    def __init__(self, policy: Policy, home: Path) -> None:
        self.policy, self.home, self.folder = policy, home, home / PAID

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Self | None:
        """The guard of this machine, whose owner names his policy's file in the node's configuration (``rqm-policy``).

        By default it is in the folder of the user's state. None if that says ``trust_server = true``, and nothing else.
        """
        given = node_config.get(NAMED)
        path = state_folder() / POLICY if given is None else Path(str(given))
        if given is None and not path.exists():
            raise PolicyError(
                f"this node has no policy, and takes part in nothing: rqm init --policy writes one, {path} by default"
            )
        return None if _trusts_all(path) else cls(Policy.from_toml(path), path.parent)

    @property
    def credentials(self) -> "tuple[Identity, Roster] | None":
        """The node's own key, and everybody's; None if the owner trusts the server with keys."""
        from rqm.secagg import Identity, Roster  # noqa: PLC0415 (a bare GPU machine has no ciphers)

        if self.policy.roster is None:
            return None
        return Identity.read(self.home / IDENTITY), Roster.read(self.policy.roster)

    def allow(self, plan: Plan, dim: int, round_: bytes) -> None:
        """Refuse a round before it begins: one that the policy forbids, or can no longer pay for, or has begun before.

        A name that came twice could bring keys back that were given up in between. When this returns it is on the disk.
        """
        found = self.credentials
        if found and plan.participation.clients > (most := len(found[1].keys)):
            raise PolicyError(
                f"the policy of this node: clients = {plan.participation.clients}: must be at most {most}, who are in "
                "the roster"
            )
        self._pay(plan, dim, None)
        self.begin(round_)

    def begin(self, round_: bytes) -> None:
        """Refuse a round that was begun before, under the same name. When this returns it is on the disk."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        begun = self.folder / BEGUN
        begun.mkdir(mode=0o700, exist_ok=True)
        sync_folder(self.folder)
        try:
            write_atomically(begun / sha256(round_).hexdigest(), b"", new=True)
        except FileExistsError:
            raise PolicyError("the policy of this node: a round that it has begun before") from None

    def charge(self, plan: Plan, dim: int, turn: int, chain: bytes = b"") -> None:
        """Pay for this node's vector in a round, of a chain; when this returns the charge is on the disk."""
        self._pay(plan, dim, turn, chain)

    def _pay(self, plan: Plan, dim: int, turn: int | None, chain: bytes = b"") -> None:
        """Look at all ledgers of this node; charge one of them, if a turn is given."""
        self.policy.check(plan, plan.private_mean(dim))
        mean = self.policy.counted(plan.private_mean(dim))
        _ = mean.length  # refuses what nobody can encode, before it is paid for
        own = _file(mean)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        counts = None
        while True:
            with self._ledgers() as (held, stack):
                before, counts = counts, {name: (one.mean, one.charges.total()) for name, one in held.items()}
                if turn is not None and before == counts:  # nobody else has charged since it was found affordable
                    (self.folder / own).mkdir(mode=0o700, exist_ok=True)
                    guard = held.get(own) or stack.enter_context(Guard(mean, self.folder / own))
                    if chain:
                        self._come_back(chain, turn, mean.participation.window)
                    guard.charge(turn)
                    return
            with_this = counts | {own: (mean, counts.get(own, (mean, 0))[1] + 1)}
            self._afford(mean, [(self.policy.counted(kind), count) for kind, count in with_this.values()])
            if turn is None:
                return

    def _come_back(self, chain: bytes, turn: int, apart: int) -> None:
        """Refuse to take part again in a chain of rounds too soon: noise of a round protects a node once.

        How soon, the last participation says, which was paid for so: a server may call the rest of a run a shorter one.
        """
        folder = self.folder / CHAINS
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / sha256(chain).hexdigest()
        known = read_json(path, "a chain") if path.exists() else None
        if known is not None:
            last, wait = whole("turn", known.get("turn"), 0), whole("apart", known.get("apart"), 1)
            if turn < last + wait:
                raise PolicyError(
                    f"the policy of this node: round {turn} of a chain in which it took part in round {last}: must be "
                    f"{wait} rounds later"
                )
        write_json(path, {"turn": turn, "apart": apart})

    @contextmanager
    def _ledgers(self) -> Iterator[tuple[dict[str, Guard], ExitStack]]:
        """All ledgers of this node, which no other process has meanwhile. Nothing in it may take long."""
        with ExitStack() as stack:
            lock(stack.enter_context((self.folder / "lock").open("ab")).fileno(), wait=True)
            held = {}
            for path in filter(_begun, self.folder.glob(f"*/{LEDGER}")):
                known = PrivateMean.from_dict(read(path).about["mean"])
                held[path.parent.name] = stack.enter_context(Guard(known, path.parent))
            yield held, stack

    def _afford(self, mean: PrivateMean, counts: list[tuple[PrivateMean, int]]) -> None:
        """Whether so many releases of each kind are allowed, and one of this. Kinds are added up: ε and δ of each."""
        policy, share = self.policy, self.policy.delta / len(counts)
        for kind in (kind for kind, count in counts if count and not policy.covers(kind)):
            raise PolicyError(
                f"the policy of this node: unit = {policy.unit}, neighboring = {policy.neighboring}: it took part in "
                f"rounds for a {kind.threat_model.unit}, {kind.threat_model.neighboring}, and what these cost a "
                f"{policy.unit} nobody has counted: "
                "must stay what it was, or begin in another folder, for other data"
            )
        for found, most, what in (
            (sum(count for _, count in counts), policy.max_participations, "max_participations"),
            (self._epsilon(mean, 1, policy.delta), policy.release_epsilon, "ε for a release"),
            (sum(self._epsilon(kind, count, share) for kind, count in counts), policy.epsilon, "ε for ever"),
        ):
            if not found <= most:
                raise PolicyError(f"the policy of this node: {what} = {found:.4g}: must be at most {most}")

    def _epsilon(self, mean: PrivateMean, releases: int, delta: float) -> float:
        """ε of so many releases of a kind; kept in a file, since a node starts a process for every message."""
        path, most = self.folder / KNOWN, max(releases, min(self.policy.max_participations, AHEAD))
        known = read_json(path, "ε") if path.exists() else {}
        mean = mean.replaced(delta=delta)
        key = _file(mean)
        found = known.get(key)
        if not isinstance(found, list) or len(found) < releases:
            # records are drawn anew for every message, in rounds of their own
            drawn, start = mean.sampling_rate is not None, found if isinstance(found, list) else []
            more = range(len(start), max(releases, min(most, len(start) + DRAWN)) if drawn else most)
            found = start + [_cost(mean, n + 1, drawn) for n in more]
            write_json(path, dict([*known.items(), (key, found)][-KEPT:]))
        return float(found[releases - 1]) if releases else 0.0


@lru_cache(maxsize=1024)
def _cost(mean: PrivateMean, releases: int, drawn: bool) -> float:
    """ε of so many releases: in rounds of their own, or of one round. Nodes of one process ask for the same."""
    return mean.account(dict.fromkeys(range(releases), 1) if drawn else {0: releases}).epsilon


def _begun(path: Path) -> bool:
    """Whether a ledger has its first line: who was killed before has charged nothing."""
    with path.open("rb") as file:
        return file.readline().endswith(b"\n")


def _trusts_all(path: Path) -> bool:
    """Whether a policy says that the server is trusted with everything, in so many words and no others."""
    try:
        values = read_toml(path)
    except (ValueError, OSError) as error:
        raise PolicyError(f"{path}: {error}") from None
    return values.keys() == {"trust_server"} and values["trust_server"] is True


def _file(mean: PrivateMean) -> str:
    """The name for a kind of rounds."""
    return mean.kind[:32]


def _same_coordinates(mean: PrivateMean) -> dict[str, Any]:
    """The choice of coordinates, where there is one."""
    return {"coordinates": mean.coordinates if mean.is_subset else None}
