"""An independent verifier of ledgers. It shares nothing with the rest of the package, and imports nothing of it.

To audit it, read `verifier` first, then `ledger_claims` (what a ledger may say) and `epsilon_bound` (how bounds of
releases add up). Each kind of release has its bounds in one place, and each bound names its proof in docs/verify.md:

| release | bounds | proofs |
|---|---|---|
| affine noise: rounding, RQM, PBM, vqSGD | `affine_bound.AffineRelease` | Lemmas 1 to 4, 8 and 9 |
| additive noise | `additive_bound.AdditiveRelease` | Lemmas 5 and 8 |
| correlated noise | `correlated_bound.participation_mu` | Lemma 6 |
| records of silos | `AdditiveRelease.anywhere_mu`, `correlated_bound.fixed_order_epsilon` | Lemmas 5 and 7 |
| sampled records, an honest fraction | `epsilon_bound` | Lemmas 7 and 9 |
| lower bound on ε | `affine_bound.threshold_epsilon` | Lemma 10 |
"""

from .verification_report import Report
from .verifier import verify

__all__ = ["Report", "verify"]
