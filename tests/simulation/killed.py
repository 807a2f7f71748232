"""A run of ``rqm.train`` to be killed: a script, since only a process can be."""

import sys
from pathlib import Path

import torch

import rqm
from tests.simulation.small import federation, model


def main(folder, seed, slow):
    def watch(record):
        if slow and record.round == 4:
            print("HERE", flush=True)  # a round is done and written down, and its checkpoint is not
            sys.stdin.read()  # until somebody kills this process

    result = rqm.train(
        model(),
        federation(clients=20),
        epsilon=30,
        rounds=8,
        clients=5,
        rate=0.5,
        seed=None if seed == "none" else int(seed),
        out=folder,
        progress=watch,
    )
    weights = torch.cat([p.detach().flatten() for p in result.model.parameters()])
    torch.save(weights, Path(folder) / "weights.pt")
    print(result.guarantee, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "slow")
