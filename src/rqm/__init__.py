"""Private, few-bit federated learning around the Randomized Quantization Mechanism (Youn et al. 2023).

>>> import rqm
>>> mech = rqm.RQM(clip=1.5, margin=1.0, levels=16, keep=0.42)
>>> z = mech.encode([0.2, -1.4, 0.9], rqm.SecureRandom())
>>> mech.decode(z, clients=1).shape
(3,)
"""

TYPE_CHECKING = False  # importing typing takes time, and the command line starts here
if TYPE_CHECKING:
    from rqm.accounting.guarantee import Guarantee
    from rqm.accounting.participation import Participation, ThreatModel
    from rqm.advice.adviser import Advice, advise
    from rqm.bounds import Bound, epsilon_of_gaussian, epsilon_of_laplace
    from rqm.certify.renyi import RenyiBound, renyi
    from rqm.config.account import account, compose
    from rqm.config.plan import Plan
    from rqm.core.from_dict import mean_from_dict
    from rqm.core.private_mean import PrivateMean
    from rqm.core.record_mean import PrivateRecordMean
    from rqm.core.search import Calibration, calibrate, calibrate_records, private_mean, private_record_mean
    from rqm.correlated.noise import CorrelatedNoise
    from rqm.data.federated_data import FederatedData
    from rqm.mechanisms.additive import DiscreteGaussian, Skellam
    from rqm.mechanisms.base import Mechanism
    from rqm.mechanisms.discrete import DiscreteMechanism
    from rqm.mechanisms.gaussian import Gaussian
    from rqm.mechanisms.noiseless import Noiseless
    from rqm.mechanisms.pbm import PBM
    from rqm.mechanisms.rqm import RQM
    from rqm.mechanisms.stochastic_rounding import StochasticRounding
    from rqm.mechanisms.table_mechanism import TableMechanism
    from rqm.randomness import SecureRandom, SeededRandom
    from rqm.registry import mechanism_from_dict, register
    from rqm.simulation.simulate import simulate
    from rqm.simulation.train import train

__version__ = "0.2.0"

__all__ = [
    "PBM",
    "RQM",
    "Advice",
    "Bound",
    "Calibration",
    "CorrelatedNoise",
    "DiscreteGaussian",
    "DiscreteMechanism",
    "FederatedData",
    "Gaussian",
    "Guarantee",
    "Mechanism",
    "Noiseless",
    "Participation",
    "Plan",
    "PrivateMean",
    "PrivateRecordMean",
    "RenyiBound",
    "SecureRandom",
    "SeededRandom",
    "Skellam",
    "StochasticRounding",
    "TableMechanism",
    "ThreatModel",
    "account",
    "advise",
    "calibrate",
    "calibrate_records",
    "compose",
    "epsilon_of_gaussian",
    "epsilon_of_laplace",
    "mean_from_dict",
    "mechanism_from_dict",
    "private_mean",
    "private_record_mean",
    "register",
    "renyi",
    "simulate",
    "train",
]

_LAZY = {
    "PBM": "mechanisms.pbm",
    "RQM": "mechanisms.rqm",
    "Advice": "advice.adviser",
    "Bound": "bounds",
    "Calibration": "core.search",
    "DiscreteMechanism": "mechanisms.discrete",
    "CorrelatedNoise": "correlated.noise",
    "DiscreteGaussian": "mechanisms.additive",
    "FederatedData": "data.federated_data",
    "Gaussian": "mechanisms.gaussian",
    "Guarantee": "accounting.guarantee",
    "Mechanism": "mechanisms.base",
    "Noiseless": "mechanisms.noiseless",
    "Participation": "accounting.participation",
    "Plan": "config.plan",
    "PrivateMean": "core.private_mean",
    "PrivateRecordMean": "core.record_mean",
    "RenyiBound": "certify.renyi",
    "StochasticRounding": "mechanisms.stochastic_rounding",
    "SecureRandom": "randomness",
    "SeededRandom": "randomness",
    "Skellam": "mechanisms.additive",
    "TableMechanism": "mechanisms.table_mechanism",
    "ThreatModel": "accounting.participation",
    "account": "config.account",
    "advise": "advice.adviser",
    "calibrate": "core.search",
    "calibrate_records": "core.search",
    "compose": "config.account",
    "epsilon_of_gaussian": "bounds",
    "epsilon_of_laplace": "bounds",
    "mean_from_dict": "core.from_dict",
    "mechanism_from_dict": "registry",
    "private_mean": "core.search",
    "private_record_mean": "core.search",
    "register": "registry",
    "renyi": "certify.renyi",
    "simulate": "simulation.simulate",
    "train": "simulation.train",
}
"""The module of each public name; it is loaded when it is used."""


def __getattr__(name: str) -> object:
    if name == "flower":  # `rqm.flower.private_mod` works after `import rqm`
        from importlib import import_module  # noqa: PLC0415

        return import_module("rqm.flower")
    if name not in _LAZY:
        raise AttributeError(f"module 'rqm' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    try:
        found: object = getattr(import_module(f"rqm.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        from rqm._util.imports import how_to_install  # noqa: PLC0415

        raise how_to_install(error) from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
