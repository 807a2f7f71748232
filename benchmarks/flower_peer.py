"""A round of Flower's SecAgg+: a script for an environment where flwr is installed.

It is started with the numbers of clients, of coordinates, of levels and of shares. Flower's own workflow of the server
and modifier of the clients do everything; the network is left out, and with it all serialisation but that of the
vectors. It carries out one round for every line on its standard input and answers with a line: the seconds that it
took, the bytes that the clients sent, and whether the sum was right.
"""
# mypy: ignore-errors

import logging
import sys
from time import perf_counter
from types import SimpleNamespace

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.common import recorddict_compat as compat
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow, WorkflowState
from flwr.supercore.task_identity import TaskIdentity

logging.disable(logging.CRITICAL)
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1


def answer(vector):
    """What a client's training gives: one vector of floats."""
    fit = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 1, {})
    return compat.fitres_to_recorddict(fit, keep_input=False)


class Grid:
    """A network of clients in this process."""

    def __init__(self, answers) -> None:
        self.answers, self.sent = answers, 0
        self.contexts = {node: SimpleNamespace(state=RecordDict()) for node in answers}

    def send_and_receive(self, messages, timeout=None):
        """Hand every message to its client, and return the replies."""
        return [self._exchange(message) for message in messages]

    def _exchange(self, message):
        node, records = message.metadata.dst_node_id, message.content.config_records
        content = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord(dict(records[RECORD_KEY_CONFIGS]))})  # as if sent
        delivered = Message(
            content, dst_node_id=node, message_type=message.metadata.message_type, group_id=message.metadata.group_id
        )
        reply = secaggplus_mod(
            delivered, self.contexts[node], lambda message, _: Message(self.answers[node], reply_to=message)
        )
        for value in reply.content.config_records[RECORD_KEY_CONFIGS].values():
            parts = value if isinstance(value, list) else [value]
            self.sent += sum(len(entry) if isinstance(entry, bytes) else 8 for entry in parts)
        return reply


class Strategy:
    """Chooses everybody, and keeps the sum."""

    def __init__(self, clients) -> None:
        self.clients, self.total = clients, None

    def configure_fit(self, *_):
        """Ask every client."""
        return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in range(self.clients)]

    def aggregate_fit(self, _round, results, _failures):
        """Take the mean that the workflow has computed."""
        (self.total,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


def main(clients, count, levels, shares) -> None:
    """One round for every line."""
    size = 1 << (levels - 1).bit_length()
    vectors = np.random.default_rng(0).integers(0, levels, size=(clients, count))
    expected = vectors.sum(axis=0)
    while True:
        strategy = Strategy(clients)
        grid = Grid({node: answer(vectors[node].astype(np.float64)) for node in range(clients)})
        state = RecordDict(
            {
                MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: 1}),
                MAIN_PARAMS_RECORD: compat.parameters_to_arrayrecord(Parameters([], ""), True),
            }
        )
        context = SimpleNamespace(
            state=state, strategy=strategy, client_manager=SimpleNamespace(num_available=lambda: clients)
        )
        workflow = SecAggPlusWorkflow(
            shares,
            max(2, 2 * shares // 3),
            max_weight=1.0,
            clipping_range=float(size),
            quantization_range=2 * size,
        )
        print("ready", flush=True)
        if not sys.stdin.readline():
            return
        start, workflow_state = perf_counter(), WorkflowState()
        for stage in ("setup", "share_keys", "collect_masked_vectors", "unmask"):
            if not getattr(workflow, f"{stage}_stage")(grid, context, workflow_state):
                raise RuntimeError(stage)
        seconds = perf_counter() - start
        right = bool(
            (np.rint(strategy.total * clients) == expected).all() or (np.rint(strategy.total) == expected).all()
        )
        print(seconds, grid.sent, right, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
