"""A node's own policy: the limits that its owner sets, and the ledgers in which the node counts its own releases.

The server of a federation chooses the noise, the number of clients and the rounds. A node checks every round against
its policy before its keys leave, and charges a ledger of its own before its vector does. A node without a policy takes
part in nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, final

from rqm._util.checks import Count, Fraction, Positive, check_fields, known_keys, shown, whole
from rqm._util.files import lock, read_json, read_toml, state_folder, sync_folder, write_atomically, write_json
from rqm.bounds import Neighboring, Unit
from rqm.core.base import BaseMean
from rqm.core.from_dict import mean_from_dict
from rqm.ledger.budget_guard import Guard
from rqm.ledger.ledger import LEDGER, read

if TYPE_CHECKING:
    from rqm.secagg import Identity, Roster

POLICY, IDENTITY, LEDGERS = "policy.toml", "identity.key", "node"
"""The files of a policy and of the node's secret key, by default in the folder of the user's state; and the folder of
ledgers beside them."""
EPSILONS, MAX_KINDS = "epsilon.json", 256
"""The file with ε of one, two, … releases, and for how many kinds of rounds it is kept."""
RELEASES_AHEAD, SAMPLED_RELEASES_AHEAD = 64, 8
"""Releases for which ε is computed at once; with Poisson sampling each takes longer."""
BEGUN, CHAINS = "rounds", "chains"
"""The folders of rounds that were begun, an empty file each, and of chains of rounds with the last one of each."""

TEMPLATE = """\
# The limits of this node. Only its owner writes this file. The node refuses a round that breaks a limit before it
# sends anything, and counts its releases in ledgers next to this file.

epsilon = 8.0            # of all releases of this node together, without end
release_epsilon = 2.0    # of a single release
delta = 1e-5             # the δ of both
l2_clip = 1.0            # the largest norm of a vector
clients = 20             # the fewest clients of a round
honest_fraction = 0.8    # the fraction of them that is honest, dropouts included (or honest_clients = 16);
                         # the others may collude with the server, and the secure sum must hold against them
roster = "roster.txt"    # public keys of all clients, one per line (rqm keys), next to this file. Or instead:
# trust_server_with_keys = true    # trust the server, which forwards keys, not to impersonate clients
max_participations = 10  # releases, without end
mechanisms = ["rqm", "rounding", "pbm"]
# unit = "record"        # this node is a silo and ε is per record; by default ε is for all data of the node
# neighboring = "replace-one"  # of records: one is replaced by another; by default one is added or removed
"""
TRUSTING = """\
# This node trusts the server with everything: noise, clients, keys, number of rounds. Nothing is checked or counted.
# For simulations, and for owners who run the server themselves.

trust_server = true
"""


class PolicyError(ValueError):
    """A round breaks a limit of this node's policy."""


@final
@dataclass(frozen=True)
class Policy:
    """The owner's limits. ε holds against the server and all clients of a round that are not honest.

    Attributes:
        epsilon: The largest ε of all releases of this node together.
        delta: δ.
        release_epsilon: The largest ε of a single release.
        l2_clip: The largest L2 clip of a vector; where the unit is a record, of a record.
        clients: The fewest clients of a round.
        max_participations: The most releases of this node.
        honest_clients: How many clients of a round are honest, dropouts included, since the server says who drops out.
        honest_fraction: The fraction of them, instead of `honest_clients`.
        roster: The file with the public keys of all clients of the federation; their keys are then signed.
        trust_server_with_keys: Whether the server is trusted not to impersonate clients, instead of a roster.
        mechanisms: The names of the mechanisms that are allowed.
        unit: "user" (all data of this node) or "record".
        neighboring: For records "add-or-remove-one" (the default) or "replace-one"; else "replace-one".

    >>> limits = {"epsilon": 8.0, "delta": 1e-6, "release_epsilon": 2.0, "l2_clip": 1.0, "clients": 20}
    >>> Policy(**limits, max_participations=10, honest_fraction=0.8, trust_server_with_keys=True).corrupt(100)
    20
    """

    epsilon: Positive
    delta: Fraction
    release_epsilon: Positive
    l2_clip: Positive
    clients: Annotated[int, partial(whole, low=2)]
    max_participations: Count
    honest_clients: Count | None = None
    honest_fraction: Fraction | None = None
    roster: Path | None = None
    trust_server_with_keys: bool = False
    mechanisms: tuple[str, ...] = ("rqm", "pbm", "rounding", "discrete-gaussian", "skellam", "binomial")
    unit: Unit = "user"
    neighboring: Neighboring | None = None

    def __post_init__(self) -> None:
        """Validate every value."""
        if not isinstance(self.mechanisms, tuple | list) or not all(isinstance(name, str) for name in self.mechanisms):
            raise ValueError(f"mechanisms = {shown(self.mechanisms)}: must be a list of names")
        object.__setattr__(self, "mechanisms", tuple(self.mechanisms))
        check_fields(self)
        if (self.honest_clients is None) == (self.honest_fraction is None):
            raise ValueError("honest_clients, honest_fraction: one of the two must be given, and only one")
        if self.honest_clients is not None:
            whole("honest_clients", self.honest_clients, 1, self.clients)
        if (self.roster is None) != self.trust_server_with_keys:
            raise ValueError(
                "roster: must be given, or else trust_server_with_keys = true: the server forwards the keys of the "
                "other clients, and could impersonate them"
            )
        allowed = {"record": ("add-or-remove-one", "replace-one"), "user": ("replace-one",)}[self.unit]
        if self.neighboring is None:
            object.__setattr__(self, "neighboring", allowed[0])
        if self.neighboring not in allowed:
            raise ValueError(
                f"neighboring = {shown(self.neighboring)}: must be {' or '.join(allowed)} where the unit is a "
                f"{self.unit}"
            )

    @classmethod
    def from_toml(cls, path: Path) -> Self | None:
        """Read a policy; a file that leaves out a limit is refused.

        Args:
            path: The TOML file.

        Returns:
            The policy; None if it consists of `trust_server = true`.

        Raises:
            PolicyError: If the file cannot be read, or a value is missing or not allowed.
        """
        try:
            values = read_toml(path, "a policy; rqm init --policy writes one")
            if values.keys() == {"trust_server"} and values["trust_server"] is True:
                return None
            names = [field.name for field in fields(cls)]
            known_keys(values, names)
            optional = ("roster", "trust_server_with_keys", "unit", "neighboring", "honest_clients", "honest_fraction")
            required = [name for name in names if name not in optional]
            missing = [name for name in required if name not in values]
            if missing:
                raise ValueError(f"{missing[0]}: missing; a policy says all of {', '.join(required)}")
            roster = values.pop("roster", None)
            if not isinstance(roster, str | None):
                raise ValueError(f"roster = {shown(roster)}: must be the name of a file")
            return cls(**values, roster=None if roster is None else path.parent / roster)
        except (ValueError, TypeError, OSError) as error:
            raise PolicyError(f"{path}: {error}") from None

    def corrupt(self, clients: int) -> int:
        """How many of a round's clients may collude with the server."""
        if self.honest_fraction is not None:
            return clients - int(self.honest_fraction * clients)
        return clients - min(self.honest_clients or 0, clients)

    def counted(self, mean: BaseMean) -> BaseMean:
        """A round as this owner accounts for it: with the owner's δ and number of honest clients.

        Args:
            mean: What clients of the round send.

        Returns:
            The same under the owner's assumptions. The node itself counts its rounds.
        """
        clients = mean.participation.clients
        participation = mean.participation
        window = 1 if mean.noise is None else min(participation.window, 256)  # rounds; more take hours to account for
        counted = replace(
            participation, max_participations=None, population=None, sampling="available", min_separation=window
        )
        threat_model = replace(mean.threat_model, honest_clients=clients - self.corrupt(clients), honest_fraction=None)
        coordinates: Any = mean.coordinates if mean.is_subset else None
        return replace(
            mean, participation=counted, threat_model=threat_model, delta=self.delta, coordinates=coordinates
        )

    def covers(self, mean: BaseMean) -> bool:
        """Whether ε of such rounds protects what this policy protects; ε of all data covers each record."""
        threat_model = mean.threat_model
        relation = threat_model.unit, threat_model.neighboring
        return relation in ((self.unit, self.neighboring), ("user", "replace-one"))

    def check(self, mean: BaseMean) -> None:
        """Refuse a round that no number of releases could make acceptable.

        Args:
            mean: What clients of the round send.

        Raises:
            PolicyError: If the round breaks a limit.
        """
        participation = mean.participation
        threat_model = mean.threat_model
        clients = mean.participation.clients
        min_survivors = participation.min_survivors or clients
        corrupt_clients = self.corrupt(clients)
        planned_corrupt = corrupt(mean)
        name = mean.mechanism.kind
        clip = mean.record_clip or mean.l2_clip or 0
        for is_allowed, problem in (
            (name in self.mechanisms, f"mechanism = {name}: must be one of {', '.join(self.mechanisms)}"),
            (mean.is_accounted_in_seconds, f"clients = {clients}: ε of this mechanism takes too long to compute"),
            (mean.l2_clip is not None, "l2_clip: must be given, or nothing bounds a vector"),
            (threat_model.unit == self.unit, f"unit = {threat_model.unit}: must be {self.unit}"),
            (
                threat_model.neighboring == self.neighboring,
                f"neighboring = {threat_model.neighboring}: must be {self.neighboring}",
            ),
            (threat_model.adversary == "server", f"adversary = {threat_model.adversary}: must be server"),
            (clip <= self.l2_clip, f"l2_clip = {clip}: must be at most {self.l2_clip}"),
            (clients >= self.clients, f"clients = {clients}: must be at least {self.clients}"),
            (
                min_survivors > corrupt_clients,
                f"min_survivors = {min_survivors}: must be more than {corrupt_clients}, who may collude with the "
                "server",
            ),
            (
                planned_corrupt >= corrupt_clients,
                f"honest_clients = {clients - planned_corrupt}: must be at most {clients - corrupt_clients}, or the "
                f"secure sum is not made for {corrupt_clients} of {clients} clients who collude with the server; a run "
                "that does not set honest_clients counts on all",
            ),
        ):
            if not is_allowed:
                raise PolicyError(f"the policy of this node: {problem}")


@final
class NodeGuard:
    """A node's policy, its key and its own ledgers, one for every kind of round.

    The folder must outlive the process.

    Args:
        policy: The owner's limits.
        home: The folder of the policy.
    """

    def __init__(self, policy: Policy, home: Path) -> None:
        self.policy = policy
        self.home = home
        self.folder = home / LEDGERS

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Self | None:
        """The guard of this machine.

        Args:
            node_config: The node's configuration; `rqm-policy` names the file of the policy, which by default is in
                the folder of the user's state.

        Returns:
            The guard; None if the policy consists of `trust_server = true`.

        Raises:
            PolicyError: If there is no policy, or it cannot be read.
        """
        configured = node_config.get("rqm-policy")
        path = state_folder() / POLICY if configured is None else Path(str(configured))
        if configured is None and not path.exists():
            raise PolicyError(
                f"this node has no policy, and takes part in nothing: rqm init --policy writes one, {path} by default"
            )
        policy = Policy.from_toml(path)
        return None if policy is None else cls(policy, path.parent)

    @property
    def credentials(self) -> "tuple[Identity, Roster] | None":
        """The node's own key and the roster; None if the owner trusts the server with keys."""
        from rqm.secagg import Identity, Roster  # noqa: PLC0415 (a bare GPU machine has no ciphers)

        if self.policy.roster is None:
            return None
        return Identity.read(self.home / IDENTITY), Roster.read(self.policy.roster)

    def certify(self, mean: BaseMean) -> None:
        """Refuse rounds that the policy forbids or cannot pay for.

        Args:
            mean: What clients of the rounds send.

        Raises:
            PolicyError: If no such round is allowed.
        """
        credentials = self.credentials
        if credentials and mean.participation.clients > (largest := len(credentials[1].keys)):
            raise PolicyError(
                f"the policy of this node: clients = {mean.participation.clients}: must be at most {largest}, the "
                "clients in the roster"
            )
        self.charge(mean, None)

    def allow(self, mean: BaseMean, round_: bytes) -> None:
        """Refuse a round before it begins.

        Args:
            mean: What clients of the round send.
            round_: The name of the round. A name that came twice could bring back keys that were given up.

        Raises:
            PolicyError: If the policy forbids the round, cannot pay for it, or the round was begun before.
        """
        self.certify(mean)
        self.begin(round_)

    def begin(self, round_: bytes) -> None:
        """Refuse a round that was begun before, under the same name. When this returns, it is on disk."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        begun = self.folder / BEGUN
        begun.mkdir(mode=0o700, exist_ok=True)
        sync_folder(self.folder)
        try:
            write_atomically(begun / sha256(round_).hexdigest(), b"", new=True)
        except FileExistsError:
            raise PolicyError("the policy of this node: a round that it has begun before") from None

    def charge(self, mean: BaseMean, round_index: int | None, chain: bytes = b"") -> None:
        """Pay for this node's vector in a round. When this returns, the charge is on disk.

        Args:
            mean: What clients of the round send.
            round_index: The round, from 0; None: only check that the policy allows it and can pay for it.
            chain: The name of the chain of rounds, with correlated noise.

        Raises:
            PolicyError: If the policy forbids the round or cannot pay for it.
        """
        self.policy.check(mean)
        mean = self.policy.counted(mean)
        _ = mean.max_length  # refuses what cannot be encoded before it is paid for
        kind = _kind(mean)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        counts: dict[str, tuple[BaseMean, int]] | None = None
        while True:
            with self._ledgers() as (guards, stack):
                checked = counts
                counts = {name: (open_.mean, open_.charges.total()) for name, open_ in guards.items()}
                if round_index is not None and checked == counts:  # no other process has charged since the check
                    (self.folder / kind).mkdir(mode=0o700, exist_ok=True)
                    guard = guards.get(kind) or stack.enter_context(Guard(mean, self.folder / kind))
                    if chain:
                        self._check_separation(chain, round_index, mean.participation.window)
                    guard.charge(round_index)
                    return
            with_this = counts | {kind: (mean, counts.get(kind, (mean, 0))[1] + 1)}
            self._check_budget(
                mean, [(self.policy.counted(ledger_mean), count) for ledger_mean, count in with_this.values()]
            )
            if round_index is None:
                return

    def _check_separation(self, chain: bytes, round_index: int, min_separation: int) -> None:
        """Refuse to take part again in a chain of rounds too soon: the noise of a round protects a node once.

        The last participation was paid for with a separation, which counts: a server could otherwise present the rest
        of a run as a shorter one.
        """
        folder = self.folder / CHAINS
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / sha256(chain).hexdigest()
        if path.exists():
            entry = read_json(path, "a chain")
            last = whole("round", entry.get("round"), 0)
            separation = whole("min_separation", entry.get("min_separation"), 1)
            if round_index < last + separation:
                raise PolicyError(
                    f"the policy of this node: round {round_index} of a chain in which it took part in round {last}: "
                    f"must be {separation} rounds later"
                )
        write_json(path, {"round": round_index, "min_separation": min_separation})

    @contextmanager
    def _ledgers(self) -> Iterator[tuple[dict[str, Guard], ExitStack]]:
        """All ledgers of this node, locked against other processes. Keep the block short."""
        with ExitStack() as stack:
            lock(stack.enter_context((self.folder / "lock").open("ab")).fileno(), wait=True)
            guards = {}
            for path in filter(_has_first_line, self.folder.glob(f"*/{LEDGER}")):
                mean = mean_from_dict(read(path).subject["mean"])
                guards[path.parent.name] = stack.enter_context(Guard(mean, path.parent))
            yield guards, stack

    def _check_budget(self, mean: BaseMean, counts: list[tuple[BaseMean, int]]) -> None:
        """Refuse a release of `mean` if the releases of all kinds, this one included, cost more than is allowed."""
        policy = self.policy
        delta = self.policy.delta / len(counts)
        for counted in (counted for counted, count in counts if count and not policy.covers(counted)):
            raise PolicyError(
                f"the policy of this node: unit = {policy.unit}, neighboring = {policy.neighboring}: must stay what it "
                f"was: this node took part in rounds that protect a {counted.threat_model.unit} "
                f"({counted.threat_model.neighboring}), and their cost for a {policy.unit} was not counted; or begin "
                "in another folder, for other data"
            )
        at_delta = f" at this node's δ = {policy.delta:g}"
        for cost, limit, name, conditions in (
            (sum(count for _, count in counts), policy.max_participations, "max_participations", ""),
            (self._epsilon(mean, 1, policy.delta), policy.release_epsilon, "release_epsilon", at_delta),
            (
                sum(self._epsilon(counted, count, delta) for counted, count in counts),
                policy.epsilon,
                "epsilon",
                f" of all releases{at_delta}",
            ),
        ):
            if not cost <= limit:
                raise PolicyError(f"the policy of this node: {name} = {cost:.4g}{conditions}: must be at most {limit}")

    def _epsilon(self, mean: BaseMean, releases: int, delta: float) -> float:
        """ε of some releases of a kind; kept in a file, since a node starts a process for every message."""
        if not releases:
            return 0.0
        path = self.folder / EPSILONS
        stored = read_json(path, "ε") if path.exists() else {}
        mean = mean.with_values(delta=delta)
        key = _kind(mean)
        epsilons = stored.get(key)
        if not isinstance(epsilons, list):
            epsilons = []
        if len(epsilons) < releases:
            is_sampled = mean.sampling_rate is not None  # records are sampled anew in rounds of their own
            ahead = SAMPLED_RELEASES_AHEAD if is_sampled else RELEASES_AHEAD
            end = max(releases, min(self.policy.max_participations, len(epsilons) + ahead))
            epsilons = epsilons + [_cost(mean, count + 1, is_sampled) for count in range(len(epsilons), end)]
            write_json(path, dict([*stored.items(), (key, epsilons)][-MAX_KINDS:]))
        return float(epsilons[releases - 1])


@lru_cache(maxsize=1024)
def _cost(mean: BaseMean, releases: int, is_sampled: bool) -> float:
    """ε of some releases: in rounds of their own, or of one round."""
    return mean.account(dict.fromkeys(range(releases), 1) if is_sampled else {0: releases}).epsilon


def _has_first_line(path: Path) -> bool:
    """Whether a ledger has its first line; without it, a process that was killed has charged nothing."""
    with path.open("rb") as file:
        return file.readline().endswith(b"\n")


def _kind(mean: BaseMean) -> str:
    """The name of a kind of rounds: those with the same guarantee for each release."""
    return mean.fingerprint[:32]


def corrupt(mean: BaseMean) -> int:
    """How many of a round's clients may collude with the server: all that the guarantee does not count as honest."""
    participation = mean.participation
    threat_model = mean.threat_model
    clients = mean.participation.clients
    if threat_model.honest_fraction is None:
        return clients - (threat_model.honest_clients or clients)
    from rqm.accounting.accountant import Question  # noqa: PLC0415 (takes the compiler)

    all_stay = replace(participation, min_survivors=None)
    assert mean.delta is not None
    return clients - Question.of(mean.release, all_stay, threat_model, mean.delta).honest
