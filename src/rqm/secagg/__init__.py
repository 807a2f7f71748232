"""Secure aggregation: the server learns the sum of the clients' integers modulo 2**b, and nothing else."""

from rqm.secagg.client import Client
from rqm.secagg.errors import Aborted, ProtocolError, Spoiled
from rqm.secagg.graph import security
from rqm.secagg.protocol import Params, new_round
from rqm.secagg.roster import Identity, Roster
from rqm.secagg.server import Server

__all__ = [
    "Aborted",
    "Client",
    "Identity",
    "Params",
    "ProtocolError",
    "Roster",
    "Server",
    "Spoiled",
    "new_round",
    "security",
]
