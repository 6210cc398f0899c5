"""`carpool lab batching`: what a shared engine is worth on this machine, measured."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import openvino

from carpool.engine.chat_template import ChatTemplate, ChatTemplateError
from carpool.engine.executor import Executor, ExecutorConfig
from carpool.engine.loader import LoadedModel, load_model
from carpool.engine.options import EngineOptions
from carpool.engine.report import Report
from carpool.engine.resolve import default_cache, resolve
from carpool.engine.tokenizer import Tokenizer
from carpool.engine.weights import prepare_weights
from carpool.lab.batching import batching_findings, measure_batching
from carpool.lab.findings import Findings
from carpool.lab.games import GAMES
from carpool.lab.kv_memory import measure_memory, memory_findings
from carpool.lab.lab_engine import LabEngine, LabError, Progress, answer_all
from carpool.lab.shared_prefix import fleet_findings, measure_fleet
from carpool.lab.workload import Lengths, mixed_workload

MAX_MODEL_LEN = 4096
"""Tokens of context that the experiments need at most."""
WARM_UP = 4
"""Requests that are answered before anything is measured: OpenVINO prepares some things at
their first use, and the first run would pay for it."""


BUSY_SHARE = 0.3
"""Share of the processors that others may use before the figures suffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSize:
    """How much is measured. `seats` are `max_num_seqs` of static and continuous batching;
    `kv_tokens` and `max_tokens` are for the KV memory, `seconds` and `num_games` for the
    fleet."""

    num_requests: int
    lengths: Lengths
    seats: int
    kv_tokens: int
    max_tokens: int
    seconds: int
    num_games: int


FULL = LabSize(
    num_requests=40,
    lengths=Lengths(),
    seats=16,
    kv_tokens=2048,
    max_tokens=256,
    seconds=20,
    num_games=len(GAMES),
)
QUICK = LabSize(
    num_requests=4,
    lengths=Lengths(
        short_prompt=(4, 12), short_output=(2, 4), long_prompt=(24, 32), long_output=(12, 16)
    ),
    seats=2,
    kv_tokens=128,
    max_tokens=64,
    seconds=1,
    num_games=1,
)


@dataclass(frozen=True, slots=True)
class LabReport:
    """`load_average` is how many threads the machine ran in the minute before, on average."""

    model: str
    machine: str
    seed: int
    load_average: float
    findings: tuple[Findings, ...]

    @property
    def warning(self) -> str | None:
        """What to think of figures from a machine that had other things to do."""
        num_cpus = os.cpu_count() or 1
        if self.load_average <= BUSY_SHARE * num_cpus:
            return None
        return (
            f"The machine was busy before the lab began (load average {self.load_average:.1f} on "
            f"{num_cpus} CPUs): if other programs are running, the figures are low and uneven."
        )


def load_for_lab(name: str, report: Report) -> LoadedModel:
    """Have `name` ready and load it. Raises CarpoolError."""
    cache = default_cache()
    model = resolve(name, cache, report)
    options = EngineOptions(max_model_len=min(MAX_MODEL_LEN, model.spec.max_model_len))
    config = ExecutorConfig.from_options(options)
    path = prepare_weights(cache, model, options.weights, config, report)
    report(f"loading {model.name}", 0, 0)
    return load_model(model, path, options)


def run_lab(
    loaded: LoadedModel,
    name: str,
    size: LabSize,
    seed: int,
    progress: Callable[[str], Progress],
) -> LabReport:
    """All experiments, one after another, on one executor. Raises CarpoolError.

    `progress` is told the name of each run, and gives what is to be told how far it is.
    """
    load_average = os.getloadavg()[0]
    executor, config = loaded.executor, loaded.scheduler_config
    vocabulary = _ordinary_tokens(loaded.tokenizer)
    requests = mixed_workload(seed, size.num_requests, vocabulary, size.lengths)
    answer_all(LabEngine(executor, config), requests[:WARM_UP], progress("warming up"))
    seats = dataclasses.replace(config, max_num_seqs=size.seats)
    batching = measure_batching(executor, seats, requests, progress)
    open_ended = mixed_workload(seed, size.num_requests, vocabulary, size.lengths, size.max_tokens)
    num_blocks = min(config.num_blocks, config.num_blocks_for(size.kv_tokens))
    small = dataclasses.replace(config, num_blocks=num_blocks)
    memory = measure_memory(executor, small, open_ended, progress)
    games = GAMES[: size.num_games]
    encode = partial(_encode_chat, loaded.tokenizer, loaded.chat_template)
    fleet = measure_fleet(
        executor, config, games, size.seconds, encode, loaded.tokenizer.decode, progress
    )
    return LabReport(
        name,
        _machine(executor),
        seed,
        load_average,
        (
            batching_findings(batching, requests),
            memory_findings(memory, open_ended, executor.bytes_per_block / executor.block_size),
            fleet_findings(fleet, games, size.seconds),
        ),
    )


def _ordinary_tokens(tokenizer: Tokenizer) -> range:
    """Ids to make prompts of: the first ones in a row that are not special."""
    special, end = tokenizer.special_token_ids, tokenizer.vocab_size
    first = next(token_id for token_id in range(end) if token_id not in special)
    return range(first, min((other for other in special if other > first), default=end))


def _encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate | None, system: str, user: str
) -> Sequence[int]:
    """Token ids of a chat; of the plain texts if the model has no template. Raises LabError."""
    if template is None:
        return tokenizer.encode(f"{system}\n\n{user}", add_special_tokens=True)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    try:
        text = template.render(messages)
    except ChatTemplateError:
        # Some models know no system role: there, the rules are what the user says first.
        try:
            text = template.render([{"role": "user", "content": f"{system}\n\n{user}"}])
        except ChatTemplateError as error:
            raise LabError(f"the model cannot be asked for a move: {error}") from error
    return tokenizer.encode(text, add_special_tokens=True)


def _machine(executor: Executor) -> str:
    processor = openvino.Core().get_property("CPU", "FULL_DEVICE_NAME")
    config = executor.config
    return (
        f"{processor}, {os.cpu_count()} CPUs, computing in {config.dtype}, "
        f"KV cache in {config.kv_cache_dtype}"
    )
