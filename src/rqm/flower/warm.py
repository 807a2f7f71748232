"""A process that has loaded what a message needs, and forks one for each: read by lines, from the SuperExec beside it.

Flower starts a process for every message, which first loads Flower, torch and compiled loops, for seconds. Here that is
loaded once. Each message still has a process of its own, a copy of this one, which ends with its answer; this one never
sees a message, a key or a node's data, and so no copy begins with any. It ends when the SuperExec does.
"""

import atexit
import gc
import json
import os
import signal
import sys
import threading
import traceback
from importlib import import_module
from typing import NoReturn

NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""By this torch finds out whether there is a GPU without taking it up."""
NEEDED = (
    "flwr.supernode.cli.flwr_clientapp",
    "flwr.supernode.runtime.run_clientapp",
    "httpcore",
    "rqm.flower",
    "rqm.flower.encoding",
    "rqm.kernels.cpu",
    "rqm.kernels.packing",
    "dp_accounting.pld.privacy_loss_distribution",
)
"""What the processes of messages load, one or the other."""


def load() -> None:
    """Load what messages need. No thread may be left running, and nothing on a GPU, which no copy could go on with."""
    os.environ.setdefault(NVML, "1")
    for name in NEEDED:
        import_module(name)
    import numpy as np  # noqa: PLC0415

    from rqm.kernels.packing import pack  # noqa: PLC0415
    from rqm.mechanisms.rqm import RQM  # noqa: PLC0415
    from rqm.randomness import SecureRandom  # noqa: PLC0415
    from rqm.secagg.masking import MIN_COMPILED_BYTES, SECRET_BYTES, add_mask, lane  # noqa: PLC0415

    zeros = RQM().encode_sum([[0.0, 0.0]], SecureRandom())  # compiled loops are loaded when they are first called
    pack(zeros, 4)
    for bits in (8, 16, 32):
        add_mask(np.zeros(MIN_COMPILED_BYTES, dtype=lane(bits)), bytes(SECRET_BYTES), 1)
    if sys.modules["torch"].cuda.is_initialized():
        raise RuntimeError("the GPU is in use")


def serve() -> None:
    """Answer every line, a command line of ``flwr-clientapp``, by a process of its own; until there are no more."""
    gc.collect()
    gc.freeze()  # so that the copies share these pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with open(0, "rb", buffering=0, closefd=False) as lines:  # a copy finds nothing of the lines that follow its own
        for line in lines:
            if os.fork() == 0:
                _answer(json.loads(line))


def _answer(arguments: list[str]) -> NoReturn:
    """In the copy: be ``flwr-clientapp``, and end."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.stdin = open(os.devnull)  # noqa: SIM115 (until it ends)
        os.dup2(sys.stdin.fileno(), 0)
        fresh()
        sys.argv = ["flwr-clientapp", *arguments]
        from flwr.supernode.cli.flwr_clientapp import flwr_clientapp  # noqa: PLC0415 (loaded by now)

        flwr_clientapp()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:  # as multiprocessing ends its processes: taking down thousands of modules costs more than most messages
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fresh() -> None:
    """Let no two copies draw the same numbers. Secrets are the operating system's, whatever forks; this is for apps."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


if __name__ == "__main__":
    try:
        load()
        serve()
    except KeyboardInterrupt:
        pass
