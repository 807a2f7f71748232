"""Clipped gradients of records by Opacus's GradSampleModule: a script for an environment where opacus is installed.

It is started with the records of a virtual batch, the device and the clip, and carries
out one sum of clipped gradients for every line on its standard input. It answers with the seconds that took, with the
device waited for, and the most memory that it has held, in MB; at first with the sum's length, to compare.
"""
# mypy: ignore-errors

import resource
import sys
import warnings
from time import perf_counter

import torch
from opacus.grad_sample import GradSampleModule
from plain_paper_cnn import PlainPaperCNN  # beside this script
from torch.nn import functional


def main(records: int, device: str, clip: float) -> None:
    """Sum until the standard input ends."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    net = GradSampleModule(PlainPaperCNN().to(device), loss_reduction="sum")
    rng = torch.Generator().manual_seed(1)
    x = torch.rand(records, 1, 28, 28, generator=rng).to(device)
    y = torch.randint(62, (records,), generator=rng).to(device)

    def total() -> list:
        """As Opacus's optimiser clips and sums: the lengths of all records' gradients, then one product a tensor."""
        net.zero_grad(set_to_none=True)
        functional.cross_entropy(net(x), y, reduction="sum").backward()
        each = [p.grad_sample for p in net.parameters()]
        lengths = torch.stack([g.flatten(1).norm(2, dim=-1) for g in each], dim=1).norm(2, dim=1)
        factor = (clip / (lengths + 1e-6)).clamp(max=1.0)
        found = [torch.einsum("i,i...", factor, g) for g in each]
        for p in net.parameters():
            p.grad_sample = None
        return found

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    length = float(torch.cat([g.flatten() for g in total()]).norm())
    print(length, flush=True)
    for _ in sys.stdin:
        wait()
        start = perf_counter()
        total()
        wait()
        taken = perf_counter() - start
        held = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0
        print(taken, held or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
