"""The guard of a run's privacy: charges the ledger before a sum is used, and knows what has been spent.

Every way to train goes through it: the commands, sweeps, Python, Flower.
"""

from collections import Counter
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, final

from rqm._util.checks import real, shown
from rqm._util.closing import Closing
from rqm._util.files import read_json
from rqm.accounting.participation import charge_counts, worst_counts
from rqm.encoding.private_mean import PrivateMean
from rqm.ledger.ledger import LEDGER, Ledger, read
from rqm.ledger.signing import LedgerError, Witness, signer
from rqm.plan.account import charged_mean
from rqm.plan.plan import Plan

CERTIFICATE = 1
"""The format of a file of certificates."""


@final
class Guard(Closing):
    """The ledger of a run, and ε as it grows, for a user against the server.

    The ledger is kept in ``folder``; without one, charges are only counted. A round that is done again after an
    interruption is charged again: its clients have then been part of two releases. Noise-free runs promise nothing,
    and have no ledger.

    The ledger is signed by the server's ``key``: a file, by default one in the folder of the user's state. A
    ``witness`` (a file elsewhere, or ``cmd:`` and a command) is told every charge; a file also notices a ledger that
    was put back.

    ``users`` are those whom a round's clients are drawn from, where the plan does not say. Where the accountant is not
    installed, ε is looked up in a ``certificate`` that ``rqm account --save`` wrote; without one, rounds are charged
    and ε is not stated.
    """

    def __init__(
        self,
        mean: PrivateMean,
        folder: Path | str | None = None,
        *,
        plan: Plan | None = None,
        budget: float | None = None,
        expect_head: str | None = None,
        certificate: Path | None = None,
        users: int | None = None,
        key: Path | None = None,
        witness: str | Path | None = None,
        seeded: bool = False,
    ) -> None:
        self.mean, self.budget, self.ledger = mean, budget, None
        self._charges: Counter[int] = Counter()
        self._epsilons = None if certificate is None else certified(certificate, mean)
        if not mean.is_private:
            if budget is not None or expect_head is not None:
                raise ValueError("budget_epsilon: must come with a mechanism that adds noise")
            return
        if budget is not None and self._epsilons is None:
            _can_account(mean)
        if folder is None:
            return
        about: dict[str, Any] = {"mean": mean.to_dict(), "plan": None if plan is None else plan.to_dict()}
        about |= {} if users is None else {"users": users}
        about |= {"seeded": True} if seeded else {}
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(
            Path(folder) / LEDGER,
            about,
            expect_head,
            same=_same,
            key=signer(key),
            witness=None if witness is None else Witness(witness),
        )

    def close(self) -> None:
        """Let others open the ledger."""
        if self.ledger is not None:
            self.ledger.close()

    @property
    def head(self) -> str | None:
        """The hash of the ledger's last line."""
        return None if self.ledger is None else self.ledger.head

    @property
    def charges(self) -> Counter[int]:
        """How often each round was charged."""
        return Counter(self._charges) if self.ledger is None else self.ledger.charges

    def charge(self, turn: int) -> None:
        """Pay for one release of round ``turn``. When this returns the charge is on the disk, if there is a ledger."""
        if self.ledger is not None:
            self.ledger.charge(turn)
        elif self.mean.is_private:
            self._charges[turn] += 1

    def epsilon(self, more: int | None = None) -> float | None:
        """ε of all that was charged, and of round ``more`` besides; None if nobody here can tell."""
        if not self.mean.is_private:
            return None
        charges = self.charges
        if more is not None:
            charges[more] += 1
        if self._epsilons is not None:
            who = self.mean.participation.spanning(charges)
            counts = worst_counts(who, charge_counts(who, charges))
            count = sum(times * rounds for times, rounds in counts.items())
            return 0.0 if not count else self._epsilons[count - 1] if count <= len(self._epsilons) else None
        try:
            return self.mean.account(charges).epsilon
        except ModuleNotFoundError:
            return None

    @cached_property
    def tells(self) -> bool:
        """Whether ε means something and is known at once, round after round: under an L2 budget, or with a budget."""
        if not self.mean.is_private or self._epsilons is not None or self.budget is not None:
            return self.mean.is_private
        try:
            _ = self.mean.release  # which the accountant makes, where it is installed
            return self.mean.l2_clip is not None and self.mean.is_quick
        except ModuleNotFoundError:
            return False

    def allows(self, turn: int) -> bool:
        """Whether the budget pays for another release of this round."""
        if self.budget is None:
            return True
        epsilon = self.epsilon(turn)
        return epsilon is not None and epsilon <= self.budget

    def check(self, head: str | None, done: int) -> None:
        """Refuse a ledger older than the checkpoint, after ``done`` rounds, that a run goes on from."""
        if self.ledger is None:
            return
        if done and (head is None or head not in self.ledger):
            raise LedgerError(
                f"{self.ledger.path}: lacks charges that came before the checkpoint; it is an older copy, or "
                "another run's"
            )


def _can_account(mean: PrivateMean) -> None:
    """Refuse a budget that nobody here can keep."""
    try:
        mean.account({0: 1})
    except ModuleNotFoundError as error:
        raise ValueError(
            f"budget_epsilon: the accountant is not installed here ({error}); give a certificate that was written by: "
            "rqm account PLAN --save FILE"
        ) from None


def _same(saved: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a ledger is for the same promises."""
    return saved.get("seeded") == new.get("seeded") and charged_mean(saved).promises() == charged_mean(new).promises()


def delta_of(folder: Path) -> float | None:
    """The δ that a folder's ledger is kept for, if there is one."""
    path = folder / LEDGER
    return charged_mean(read(path).about).delta if path.exists() and path.stat().st_size else None


# -- certificates ---------------------------------------------------------------------------------


def certificate(mean: PrivateMean, name: str = "") -> dict[str, Any]:
    """ε for every number of releases that a run of this may come to, for machines without an accountant."""
    if mean.sampling_rate is not None:
        raise ValueError(
            "sampling_rate: ε of sampled records does not follow from the number of releases; no certificate"
        )
    releases = mean.participation.limit
    counts = range(1, releases + max(10, releases // 4) + 1)  # some rounds may be done again
    return {
        "name": name,
        "mean": mean.to_dict(),
        "delta": mean.delta,
        "epsilons": [mean.account({0: count}).epsilon for count in counts],
    }


def _growing(epsilons: list[Any]) -> list[float]:
    """ε of one, two, … releases: none is less than the one before."""
    values = [real("epsilons", value, "at least 0", -1e-300, inf) for value in epsilons]
    if values != sorted(values):
        raise ValueError("its epsilons fall: more releases cannot cost less")
    return values


def certified(path: Path, mean: PrivateMean) -> list[float]:
    """The ε of one, two, … releases, from a file of certificates."""
    try:
        found = read_json(path, "certificates")
        if found["certificates_format"] != CERTIFICATE:
            raise ValueError(f"its format is {shown(found['certificates_format'])}: must be {CERTIFICATE}")
        for one in found["certificates"]:
            if PrivateMean.from_dict(one["mean"]).promises() == mean.promises():
                return _growing(one["epsilons"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"certificate = {path}: is damaged, or no certificate ({error})") from None
    raise ValueError(f"certificate = {path}: is for another plan; write one with: rqm account PLAN --save {path}")
