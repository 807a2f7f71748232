"""The server's side: any strategy of Flower's, with every exchange of training replaced by a secure sum.

    strategy = rqm.flower.private(FedAdam(...), context, model=net)
    strategy.start(grid, arrays)

The wrapped strategy keeps its own `start`, configuration, schedules and server step. It works with a grid that takes
its training messages, runs a private round, and returns one reply: the mean of all clients, of weight 1.
"""

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast, final

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower_strategies
from flwr.serverapp.strategy import Result, Strategy

from rqm.flower.arrays import TrainedArrays
from rqm.flower.federation_folder import app_name
from rqm.flower.grid import IsolatingGrid
from rqm.flower.private_run import PrivateGrid, PrivateRun, adapted
from rqm.flower.run_settings import Settings
from rqm.secagg import Roster

log = logging.getLogger("flwr")


def private(
    strategy: Strategy,
    context: Context,
    *,
    model: Any = None,
    trainable: Sequence[str] | None = None,
    average_buffers: bool = False,
    roster: Path | str | None = None,
    key: Path | None = None,
    witness: str | Path | None = None,
) -> "PrivateStrategy":
    """Make a strategy private: the server sees only sums, and every user has (ε, δ) against it.

    The settings are those of `[tool.flwr.app.config.rqm]`; see `Settings`. Nodes are chosen here, at random; what the
    strategy chooses is ignored. Ledger and model are kept in the folder of the federation, see `FederationFolder`.

    Args:
        strategy: A strategy that needs only the mean of the clients' updates, such as FedAvg, FedAdam or FedProx.
        context: The ServerApp's context.
        model: The PyTorch module that is trained. Parameters that do not require gradients, and buffers, are never
            changed and never sent back.
        trainable: The names of the arrays that are trained, instead of `model`.
        average_buffers: Whether the module's floating-point buffers are averaged under the same ε.
        roster: The file that the nodes' policies name. Clients then sign their keys and cannot be impersonated. None:
            the file that the environment variable RQM_ROSTER names, if there is one.
        key: See `rqm.ledger.budget_guard.Guard`.
        witness: See `Guard`.

    Returns:
        The private strategy; call its `start` as before.

    Raises:
        ValueError: If the settings are wrong, or the strategy needs single updates.
    """
    refuse_strategy(strategy)
    settings = Settings.from_run_config(context.run_config)
    roster = roster or os.environ.get("RQM_ROSTER")
    return PrivateStrategy(
        strategy,
        settings,
        federation=settings.federation or app_name(),
        choose=lambda arrays: TrainedArrays.of(arrays, model, trainable, buffers=average_buffers),
        roster=None if roster is None else Roster.read(Path(roster)),
        key=key,
        witness=witness,
    )


def refuse_strategy(strategy: Strategy) -> None:
    """Refuse a strategy that cannot work with the mean of all clients alone.

    Args:
        strategy: The strategy.

    Raises:
        ValueError: If it needs single updates, or adds noise itself.
    """
    kinds = [kind.__name__ for kind in type(strategy).__mro__ if kind.__module__.startswith(flower_strategies.__name__)]
    for name in kinds:
        # Strategies of Flower's that compare the updates, or losses, of single clients.
        needs_single_updates = (
            *("FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan", "QFedAvg"),
            *("FedXgbBagging", "FedXgbCyclic"),
        )
        if name in needs_single_updates:
            raise ValueError(
                f"{name}: needs the updates of single clients, which a secure sum hides; use FedAvg or FedAdam"
            )
        # Strategies of Flower's whose names begin so add noise, or clip, themselves.
        adds_noise = "DifferentialPrivacy"
        if name.startswith(adds_noise):
            raise ValueError(f"{name}: clips or adds noise itself; wrap the strategy that it wraps")
    if "FedAvg" not in kinds:
        log.info("rqm: %s gets one reply a round: the mean of all clients, of weight 1", type(strategy).__name__)


@final
class PrivateStrategy(Strategy):
    """A strategy of Flower's that sees only the mean of each round. Made by `private`.

    Attributes:
        strategy: The wrapped strategy.
        settings: The settings of the run.
        run: The run in progress, or the last one.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: Settings,
        *,
        federation: str,
        choose: Callable[[ArrayRecord], TrainedArrays] = TrainedArrays.of,
        roster: Roster | None = None,
        key: Path | None = None,
        witness: str | Path | None = None,
    ) -> None:
        """Prepare a run; see `private`.

        Args:
            strategy: The wrapped strategy.
            settings: The settings of the run.
            federation: The name of those who are protected.
            choose: Returns which arrays of a model are trained.
            roster: The public keys of all clients.
            key: See `Guard`.
            witness: See `Guard`.
        """
        self.strategy, self.settings, self.federation = strategy, settings, federation
        self.choose, self.roster, self.key, self.witness = choose, roster, key, witness
        self.run: PrivateRun | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "strategy":  # not there while the object is copied
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run the strategy's own `start`, with a private round for each exchange of training.

        Args:
            grid: Flower's grid.
            *args: What the strategy's `start` takes.
            **kwargs: The same by name. `num_rounds` is the settings' number of rounds if not given.

        Returns:
            What the strategy's `start` returns.

        Raises:
            ValueError: If there are more or fewer rounds than are accounted for.
            RunFailedError: If the run cannot begin, must stop, or releases nothing.
        """
        signature = inspect.signature(self.strategy.start)
        arguments = signature.bind_partial(grid, *args, **kwargs).arguments
        if "num_rounds" in signature.parameters:
            rounds = arguments.get("num_rounds")
            if rounds is None:
                kwargs["num_rounds"] = self.settings.rounds
            elif rounds != self.settings.rounds:
                raise ValueError(
                    f"num_rounds = {rounds}: must be {self.settings.rounds}, which the settings account for "
                    "(rqm.rounds, or num-server-rounds)"
                )
        run = self.run = PrivateRun(
            self.settings,
            self.federation,
            cast(Grid, IsolatingGrid(grid)),
            self.choose,
            roster=self.roster,
            key=self.key,
            witness=self.witness,
        )
        try:
            with adapted(self.strategy, run):
                result = self.strategy.start(cast(Grid, PrivateGrid(grid, run)), *args, **kwargs)
            run.finish()
        finally:
            run.close()
        return result

    # -- what Flower's Strategy asks for; the wrapped strategy's own `start` calls its own methods -------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See the wrapped strategy."""
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """See the wrapped strategy."""
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See the wrapped strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """See the wrapped strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """See the wrapped strategy."""
        self.strategy.summary()
