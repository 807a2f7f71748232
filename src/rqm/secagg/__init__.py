"""Secure aggregation: the server learns the sum of the clients' integers modulo 2**b, and nothing else.

Double masking (Bonawitz et al. 2017) on a sparse graph (Bell et al. 2020), as pure state machines:
messages in, messages out, without a clock. Five stages of a message from each client, and the
server's answers:

    client                  server
    1 KEYS       →                       two public keys
                 ←          2 PARTIES    the keys of all clients, of which each draws its neighbors
    3 SHARES     →                       two secrets, shared among the neighbors, encrypted
                 ←          4 INBOX      the shares that others have dealt to the client
    5 MASKED     →                       values + own mask ± a mask for each neighbor, modulo 2**b
                 ←          6 SURVIVORS  who is in the sum, and which neighbors have dropped out
    7 ACKS       →                       a proof that the client was told so
                 ←          8 PROOF      the proofs of the others
    9 REVEAL     →                       one share of each neighbor: of the seed of its own mask if it
                                         is in the sum, else of its key for masks with others; never both

See `docs/protocol.md` for what each side checks, and why that suffices.
"""

from rqm.secagg.client import Client
from rqm.secagg.errors import Aborted, CorruptedRound, ProtocolError
from rqm.secagg.graph import security
from rqm.secagg.parameters import Params, new_round
from rqm.secagg.roster import Identity, Roster
from rqm.secagg.server import Server

__all__ = [
    "Aborted",
    "Client",
    "CorruptedRound",
    "Identity",
    "Params",
    "ProtocolError",
    "Roster",
    "Server",
    "new_round",
    "security",
]
