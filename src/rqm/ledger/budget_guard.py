"""The guard of a run's privacy budget: charges the ledger before vectors are asked for, and states what was spent.

Every way to train uses it: the commands, sweeps, the Python API and Flower.
"""

from collections import Counter
from contextlib import AbstractContextManager
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Protocol, final

from rqm._util.checks import real, shown
from rqm._util.files import read_json, write_json
from rqm.accounting.participation import charge_counts
from rqm.bounds import Bound, compose, epsilon
from rqm.core.base import BaseMean
from rqm.core.from_dict import mean_from_dict
from rqm.ledger.ledger import LEDGER, Ledger, read
from rqm.ledger.signing import LedgerError, Witness, signer

CERTIFICATE = 1
"""The format of a file of certificates."""


class SavedPlan(Protocol):
    """A plan, as it is written into a ledger."""

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values."""


@final
class Guard(AbstractContextManager["Guard"]):
    """The ledger of a run, and ε as it grows, for a user against the server.

    A round that is repeated after an interruption is charged again, because its clients were then part of two
    releases. Runs without noise have no guarantee and no ledger.

    Args:
        mean: What clients send in a round, and what that guarantees.
        folder: Where the ledger is kept; None: charges are only counted in memory.
        plan: The plan of the run, which is written into the ledger.
        budget: The largest ε that the run may spend; None: no limit.
        expect_head: A hash that the ledger must contain, for runs that continue.
        certificate: A file that `rqm account --save` wrote. ε is looked up in it, for machines without the
            accountant. Without either, rounds are charged and no ε is stated.
        users: The users that a round's clients are drawn from, where the plan does not say.
        key: The file of the server's signing key; None: the one in the folder of the user's state.
        witness: A file elsewhere, or `cmd:` and a command, that records every charge. A file also detects a
            ledger that was restored from a backup.
        seeded: Whether messages are encoded with seeded randomness. The ledger then says so.
        earlier: What other runs have spent of the same users' ε; it composes with this run's.

    Raises:
        ValueError: If a budget cannot be enforced here, or the mechanism adds no noise.
        LedgerError: If the folder has the ledger of another run, or one that cannot be trusted.
    """

    def __init__(
        self,
        mean: BaseMean,
        folder: Path | str | None = None,
        *,
        plan: "SavedPlan | None" = None,
        budget: float | None = None,
        expect_head: str | None = None,
        certificate: Path | None = None,
        users: int | None = None,
        key: Path | None = None,
        witness: str | Path | None = None,
        seeded: bool = False,
        earlier: Bound | None = None,
    ) -> None:
        self.mean = mean
        self.budget = budget
        self.earlier = earlier
        self.ledger = None
        self._charges: Counter[int] = Counter()
        self._epsilons = None if certificate is None else certified(certificate, mean)
        if not mean.is_private:
            if budget is not None or expect_head is not None:
                raise ValueError("budget_epsilon: must come with a mechanism that adds noise")
            return
        if budget is not None and self._epsilons is None:
            _check_accountant(mean)
        if folder is None:
            return
        about: dict[str, Any] = {"mean": mean.to_dict(), "plan": None if plan is None else plan.to_dict()}
        if users is not None:
            about["users"] = users
        if seeded:
            about["seeded"] = True
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(
            Path(folder) / LEDGER,
            about,
            expect_head,
            same=_is_same_release,
            key=signer(key),
            witness=None if witness is None else Witness(witness),
        )

    def close(self) -> None:
        """Let other processes open the ledger."""
        if self.ledger is not None:
            self.ledger.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def head(self) -> str | None:
        """The hash of the ledger's last line; None without a ledger."""
        return None if self.ledger is None else self.ledger.head

    @property
    def charges(self) -> Counter[int]:
        """How often each round was charged."""
        return Counter(self._charges) if self.ledger is None else self.ledger.charges

    def charge(self, round_index: int) -> None:
        """Pay for one release of a round. When this returns, the charge is on disk if there is a ledger."""
        if self.ledger is not None:
            self.ledger.charge(round_index)
        elif self.mean.is_private:
            self._charges[round_index] += 1

    def epsilon(self, next_round: int | None = None) -> float | None:
        """ε of all charges, of one more release of `next_round`, and of earlier runs; None if it is not known here."""
        if not self.mean.is_private:
            return None
        charges = self.charges
        if next_round is not None:
            charges[next_round] += 1
        if self._epsilons is not None:
            return self._certified_epsilon(charges)
        try:
            result = self.mean.account(charges)
        except ModuleNotFoundError:
            return None
        if self.earlier is None:
            return result.epsilon
        assert self.mean.delta is not None
        return epsilon(compose([(result.bound, 1), (self.earlier, 1)]), self.mean.delta)

    def _certified_epsilon(self, charges: Counter[int]) -> float | None:
        """ε of the releases that one user is part of, from the certificate."""
        assert self._epsilons is not None
        participation = self.mean.participation.spanning(charges)
        _, counts = charge_counts(participation, charges)
        releases = sum(charges_per_round * rounds for charges_per_round, rounds in counts.items())
        if not releases:
            return 0.0
        return self._epsilons[releases - 1] if releases <= len(self._epsilons) else None

    @cached_property
    def has_running_epsilon(self) -> bool:
        """Whether ε can be stated after every round: it protects whole vectors, and takes little time."""
        if not self.mean.is_private or self._epsilons is not None or self.budget is not None:
            return self.mean.is_private
        try:
            _ = self.mean.release  # needs the accountant
            return self.mean.l2_clip is not None and self.mean.is_accounted_in_seconds
        except ModuleNotFoundError:
            return False

    def allows(self, round_index: int) -> bool:
        """Whether the budget pays for another release of this round."""
        if self.budget is None:
            return True
        epsilon = self.epsilon(round_index)
        return epsilon is not None and epsilon <= self.budget

    def check(self, head: str | None, rounds_done: int) -> None:
        """Refuse a ledger that is older than the checkpoint from which a run continues.

        Args:
            head: The head of the ledger that the checkpoint recorded.
            rounds_done: How many rounds the checkpoint contains.

        Raises:
            LedgerError: If the ledger lacks that head.
        """
        if self.ledger is None:
            return
        if rounds_done and (head is None or head not in self.ledger):
            raise LedgerError(
                f"{self.ledger.path}: lacks charges that came before the checkpoint; it is an older copy, or "
                "another run's"
            )


def _check_accountant(mean: BaseMean) -> None:
    """Refuse a budget that cannot be enforced without the accountant."""
    try:
        mean.account({0: 1})
    except ModuleNotFoundError as error:
        raise ValueError(
            f"budget_epsilon: the accountant is not installed here ({error}); give a certificate that was written by: "
            "rqm account PLAN --save FILE"
        ) from None


def _is_same_release(saved: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a ledger charges for releases with the same guarantee."""
    return (
        saved.get("seeded") == new.get("seeded")
        and charged_mean(saved).privacy_parameters() == charged_mean(new).privacy_parameters()
    )


def charged_mean(about: dict[str, Any]) -> BaseMean:
    """What a ledger's charges are for.

    Args:
        about: The first line of the ledger.

    Returns:
        The private mean.

    Raises:
        LedgerError: If the ledger does not say it.
    """
    try:
        return mean_from_dict(about["mean"])
    except (KeyError, TypeError, AttributeError) as error:
        raise LedgerError(f"the ledger does not say what it charges for ({error})") from None


def delta_of(folder: Path) -> float | None:
    """The δ of a folder's ledger; None if there is no ledger."""
    path = folder / LEDGER
    return charged_mean(read(path).subject).delta if path.exists() and path.stat().st_size else None


# -- certificates ---------------------------------------------------------------------------------


def save_certificates(path: Path, certificates: list[dict[str, Any]]) -> None:
    """Write certificates to a file, as JSON."""
    write_json(path, {"certificates_format": CERTIFICATE, "certificates": certificates})


def certificate(mean: BaseMean, name: str = "") -> dict[str, Any]:
    """ε for every number of releases that a run may reach, for machines without the accountant.

    Args:
        mean: What clients send, and what that guarantees.
        name: The name of the variant of an experiment.

    Returns:
        The certificate as plain values, ready for JSON.

    Raises:
        ValueError: If ε does not follow from the number of releases (Poisson sampling of records).
    """
    if mean.sampling_rate is not None:
        raise ValueError(
            "sampling_rate: ε of sampled records does not follow from the number of releases; no certificate"
        )
    releases = mean.participation.limit
    counts = range(1, releases + max(10, releases // 4) + 1)  # some rounds may be repeated
    return {
        "name": name,
        "mean": mean.to_dict(),
        "delta": mean.delta,
        "epsilons": [mean.account({0: count}).epsilon for count in counts],
    }


def certified(path: Path, mean: BaseMean) -> list[float]:
    """ε of one, two, … releases, from a file of certificates.

    Args:
        path: The file.
        mean: What the certificate must be for.

    Returns:
        ε by the number of releases, from 1.

    Raises:
        ValueError: If the file is damaged or is for another plan.
    """
    try:
        content = read_json(path, "certificates")
        if content["certificates_format"] != CERTIFICATE:
            raise ValueError(f"its format is {shown(content['certificates_format'])}: must be {CERTIFICATE}")
        for entry in content["certificates"]:
            if mean_from_dict(entry["mean"]).privacy_parameters() == mean.privacy_parameters():
                return _nondecreasing(entry["epsilons"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"certificate = {path}: is damaged, or no certificate ({error})") from None
    raise ValueError(f"certificate = {path}: is for another plan; write one with: rqm account PLAN --save {path}")


def _nondecreasing(epsilons: list[Any]) -> list[float]:
    """The values of a certificate; more releases cannot cost less."""
    values = [real("epsilons", value, "at least 0", -1e-300, inf) for value in epsilons]
    if values != sorted(values):
        raise ValueError("its epsilons fall: more releases cannot cost less")
    return values
