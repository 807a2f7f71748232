"""Private, few-bit federated learning around the Randomized Quantization Mechanism (Youn et al. 2023).

>>> import rqm
>>> mech = rqm.RQM(clip=1.5, margin=1.0, levels=16, keep=0.42)
>>> z = mech.encode([0.2, -1.4, 0.9], rqm.SecureRandom())
>>> mech.decode(z, clients=1).shape
(3,)
"""

TYPE_CHECKING = False  # nothing is imported here: whoever stops a command in its first moment is told so, and by ours
if TYPE_CHECKING:
    from rqm.advice.adviser import Advice, advise
    from rqm.data.clients import FederatedData
    from rqm.encoding.calibrate import Calibration, calibrate, calibrate_records
    from rqm.encoding.private_mean import PrivateMean
    from rqm.mechanisms.base import Mechanism
    from rqm.mechanisms.channel import Channel
    from rqm.mechanisms.gaussian import Gaussian
    from rqm.mechanisms.noiseless import Noiseless
    from rqm.mechanisms.pbm import PBM
    from rqm.mechanisms.registry import mechanism_from_dict, register
    from rqm.mechanisms.rounding import Rounding
    from rqm.mechanisms.rqm import RQM
    from rqm.mechanisms.tabled import Tabled
    from rqm.plan.account import account
    from rqm.plan.plan import Plan
    from rqm.privacy.guarantee import Guarantee
    from rqm.privacy.worst_case import Bound, renyi
    from rqm.randomness import SecureRandom, SeededRandom
    from rqm.training.simulate import simulate
    from rqm.training.train import train

__version__ = "0.2.0"

__all__ = [
    "PBM",
    "RQM",
    "Advice",
    "Bound",
    "Calibration",
    "Channel",
    "FederatedData",
    "Gaussian",
    "Guarantee",
    "Mechanism",
    "Noiseless",
    "Plan",
    "PrivateMean",
    "Rounding",
    "SecureRandom",
    "SeededRandom",
    "Tabled",
    "account",
    "advise",
    "calibrate",
    "calibrate_records",
    "mechanism_from_dict",
    "register",
    "renyi",
    "simulate",
    "train",
]

_LAZY = {
    "Advice": "advice.adviser",
    "advise": "advice.adviser",
    "Bound": "privacy.worst_case",
    "renyi": "privacy.worst_case",
    "Guarantee": "privacy.guarantee",
    "account": "plan.account",
    "Calibration": "encoding.calibrate",
    "calibrate": "encoding.calibrate",
    "calibrate_records": "encoding.calibrate",
    "Channel": "mechanisms.channel",
    "FederatedData": "data.clients",
    "Gaussian": "mechanisms.gaussian",
    "Mechanism": "mechanisms.base",
    "Noiseless": "mechanisms.noiseless",
    "PBM": "mechanisms.pbm",
    "Plan": "plan.plan",
    "PrivateMean": "encoding.private_mean",
    "RQM": "mechanisms.rqm",
    "Rounding": "mechanisms.rounding",
    "SecureRandom": "randomness",
    "SeededRandom": "randomness",
    "Tabled": "mechanisms.tabled",
    "mechanism_from_dict": "mechanisms.registry",
    "register": "mechanisms.registry",
    "simulate": "training.simulate",
    "train": "training.train",
}
"""Where each public name is; it is loaded when it is asked for."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'rqm' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    try:
        found: object = getattr(import_module(f"rqm.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        from rqm._util.extras import how_to_install  # noqa: PLC0415

        raise how_to_install(error) from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
