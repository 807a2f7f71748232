"""Private, few-bit federated learning around the Randomized Quantization Mechanism (Youn et al. 2023).

>>> import rqm
>>> mech = rqm.RQM(clip=1.5, margin=1.0, levels=16, keep=0.42)
>>> z = mech.encode([0.2, -1.4, 0.9], rqm.SecureRandom())
>>> mech.decode(z, clients=1).shape
(3,)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rqm._util.extras import how_to_install
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.noiseless import Noiseless
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.registry import mechanism_from_dict, register
from rqm.mechanisms.rounding import Rounding
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.tabled import Tabled
from rqm.randomness import SecureRandom, SeededRandom

if TYPE_CHECKING:
    from rqm.advice.adviser import Advice, advise
    from rqm.data.clients import FederatedData
    from rqm.encoding.calibrate import Calibration, calibrate, calibrate_records
    from rqm.encoding.private_mean import PrivateMean
    from rqm.plan.account import account
    from rqm.plan.plan import Plan
    from rqm.privacy.guarantee import Guarantee
    from rqm.privacy.worst_case import Bound, renyi
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
    "Advice": "rqm.advice.adviser",
    "advise": "rqm.advice.adviser",
    "Bound": "rqm.privacy.worst_case",
    "renyi": "rqm.privacy.worst_case",
    "Guarantee": "rqm.privacy.guarantee",
    "account": "rqm.plan.account",
    "Calibration": "rqm.encoding.calibrate",
    "calibrate": "rqm.encoding.calibrate",
    "calibrate_records": "rqm.encoding.calibrate",
    "Plan": "rqm.plan.plan",
    "PrivateMean": "rqm.encoding.private_mean",
    "simulate": "rqm.training.simulate",
    "FederatedData": "rqm.data.clients",
    "train": "rqm.training.train",
}  # these need the compiler or torch: half a second, or one and a half


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        try:
            return getattr(import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            raise how_to_install(error) from None
    raise AttributeError(f"module 'rqm' has no attribute {name!r}")
