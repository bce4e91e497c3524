"""FedAvg, FedDF and DENSE on the same holders and partitions: federated, WITHOUT privacy.

Holders train the student's own architecture on their records and send the weights. What comes out
of these runs has no guarantee at all; it shows what privacy costs.
"""

import copy
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedtranscribe.config import BaselineSettings, FederationSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, QuorumError
from fedtranscribe.flower.over_flower import Address
from fedtranscribe.methods.baselines import dense, distil, train_locally
from fedtranscribe.models import Classifier, Generator
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.results.parts import Accuracy, Federation, StatedGuarantee
from fedtranscribe.results.progress import Report
from fedtranscribe.results.result import Result
from fedtranscribe.results.run_directory import RunDirectory

log = logging.getLogger(__name__)

Evaluate = Callable[[Classifier], float]

_ARRAYS, _CONFIG, _METRICS = "arrays", "config", "metrics"


def baseline_result(settings: FederationSettings, run: RunDirectory, accuracy: Accuracy) -> Result:
    """The result of a baseline, in the form of a private run's: its ε is null."""
    return Result(
        method=settings.method,
        run=run.run_id,
        rows=0,
        guarantee=no_guarantee(settings),
        federation=Federation(
            holders=settings.holders,
            trust="everybody: holders send networks that were trained without privacy",
        ),
        data=settings.data,
        public_data=settings.public_data if settings.method == "feddf" else None,
        accuracy=accuracy,
        settings=json.loads(settings.model_dump_json(exclude_none=True)),
    )


def no_guarantee(settings: FederationSettings) -> StatedGuarantee:
    """What a baseline costs."""
    return StatedGuarantee(
        epsilon=None,
        delta=settings.delta,
        unit=Unit(settings.unit),
        adjacency=Adjacency.ZERO_OUT,
        accountant=None,
        published=None,
        private=False,
    )


def expect_unlabelled(method: str, public: object | None) -> None:
    """Refuse a method that distils on public images where there are none."""
    if method == "feddf" and public is None:
        raise ConfigError(
            "Expected public-data with method=feddf: it distils on unlabelled images."
        )


# ---------------------------------------------------------------- at a holder


def answer_training(
    message: Message, network: Classifier, images: ImageSet, settings: BaselineSettings, seed: int
) -> Message:
    """A ClientApp's reply to `train`: the weights it was sent, trained on its own records."""
    config = message.content.config_records[_CONFIG]
    network.load_state_dict(message.content.array_records[_ARRAYS].to_torch_state_dict())
    rng = torch.Generator().manual_seed(seed * 10_007 + int(str(config["server-round"])))
    train_locally(network, images, settings, int(str(config["steps"])), rng)
    content = RecordDict(
        {
            _ARRAYS: ArrayRecord(_on_cpu(network)),
            _METRICS: MetricRecord({"num-examples": len(images)}),
        }
    )
    return Message(content, reply_to=message)


def holder_of(message: Message) -> int:
    """Which of its node's holders a `train` message is for."""
    return int(str(message.content.config_records[_CONFIG]["holder"]))


# ---------------------------------------------------------------- at the server


class HolderFedAvg(FedAvg):
    """Flower's FedAvg, but with a message per holder, since a node may play several."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        self._addresses = addresses

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message for every holder."""
        return [
            Message(
                RecordDict(
                    {
                        _ARRAYS: arrays,
                        _CONFIG: ConfigRecord(
                            {**config, "server-round": server_round, "holder": number}
                        ),
                    }
                ),
                dst_node_id=node,
                message_type="train",
            )
            for node, number in self._addresses
        ]


def run_baseline(
    name: Literal["fedavg", "feddf", "dense"],
    grid: Grid,
    addresses: Sequence[Address],
    student: Classifier,
    generator: Generator,
    settings: BaselineSettings,
    *,
    public: torch.Tensor | None,
    rng: torch.Generator,
    timeout: float,
    evaluate: Evaluate | None,
    report: Report,
) -> None:
    """Train the student in place by one of the baselines.

    Args:
        name: which one.
        grid: reaches the holders.
        addresses: of the holders.
        student: its architecture and first weights are every holder's.
        generator: for DENSE.
        settings: the same total of local steps for all three.
        public: FedDF's unlabelled images, uint8 [n, ch, s, s].
        rng: of the server's side.
        timeout: seconds to wait for a round's networks.
        evaluate: accuracy on declared-public images, or None where it may not be told.
        report: receives progress, as in `progress.jsonl`.
    """
    expect_unlabelled(name, public)

    def tell(stage: str, done: int, total: int) -> None:
        line: dict[str, Any] = {"stage": stage, "done": done, "total": total}
        report(line if evaluate is None else line | {"accuracy": evaluate(student)})

    if name == "fedavg":
        _fedavg(grid, addresses, student, settings, timeout, tell)
        return
    networks, examples = _collect(grid, addresses, student, settings, timeout)
    tell("networks of the holders", len(networks), len(addresses))
    # Both start from the mean of the networks, as FedDF does.
    load_mean(student, networks, examples)
    if name == "feddf":
        assert public is not None  # expect_unlabelled refuses that
        distil(student, networks, public, settings, settings.distil_steps, rng)
        tell("distillation", 1, 1)
    else:
        dense(student, generator, networks, settings, rng, tell)


def _fedavg(
    grid: Grid,
    addresses: Sequence[Address],
    student: Classifier,
    settings: BaselineSettings,
    timeout: float,
    tell: Callable[[str, int, int], None],
) -> None:
    def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        student.load_state_dict(arrays.to_torch_state_dict())
        if server_round:
            tell("rounds of FedAvg", server_round, settings.rounds)
        return None

    result = HolderFedAvg(addresses).start(
        grid,
        ArrayRecord(_on_cpu(student)),
        num_rounds=settings.rounds,
        timeout=timeout,
        train_config=ConfigRecord({"steps": settings.local_steps}),
        evaluate_fn=evaluated,
    )
    if not result.train_metrics_clientapp:
        raise QuorumError("No holder sent a network in any round; see the log.")
    student.load_state_dict(result.arrays.to_torch_state_dict())


def _collect(
    grid: Grid,
    addresses: Sequence[Address],
    student: Classifier,
    settings: BaselineSettings,
    timeout: float,
) -> tuple[list[Classifier], list[int]]:
    """A network and its count of examples per holder that answers.

    Each is trained for as many steps as FedAvg's rounds take together.
    """
    config = ConfigRecord({"steps": settings.local_steps * settings.rounds})
    messages = HolderFedAvg(addresses).configure_train(
        1, ArrayRecord(_on_cpu(student)), config, grid
    )
    networks, examples = [], []
    for reply in grid.send_and_receive(messages, timeout=timeout):
        if reply.has_error():
            log.warning("node %s failed (code %s)", reply.metadata.src_node_id, reply.error.code)
            continue
        network = copy.deepcopy(student)
        network.load_state_dict(reply.content.array_records[_ARRAYS].to_torch_state_dict())
        networks.append(network)
        examples.append(int(reply.content.metric_records[_METRICS]["num-examples"]))  # type: ignore[arg-type]
    if not networks:
        raise QuorumError("No holder sent a network; see the log.")
    return networks, examples


def load_mean(student: Classifier, networks: Sequence[Classifier], examples: Sequence[int]) -> None:
    """Give the student the networks' mean weights, each counted by its examples, as FedAvg does."""
    states = [network.state_dict() for network in networks]
    weights = [count / sum(examples) for count in examples]
    student.load_state_dict(
        {
            key: sum(
                (w * state[key].float() for w, state in zip(weights, states, strict=True)),
                start=torch.zeros_like(value, dtype=torch.float32),
            ).to(value.dtype)
            for key, value in states[0].items()
        }
    )


def _on_cpu(network: Classifier) -> dict[str, torch.Tensor]:
    return {key: value.detach().cpu() for key, value in network.state_dict().items()}
