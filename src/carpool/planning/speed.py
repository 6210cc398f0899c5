"""How fast an engine steps: t(n) = W + H * n, by what is read and what is multiplied.

A decode step reads the weights once for all n sequences and each sequence's keys and
values; a prefill multiplies every weight with every token. Real kernels reach a share of
the peaks: the ranges below are assumed, wide enough for what people measure, with no more
digits than that.
"""

from collections.abc import Callable
from dataclasses import dataclass

from carpool.hardware.device import Device
from carpool.models.shape import ModelShape
from carpool.models.weight_format import Scope
from carpool.planning.calibration import Calibration
from carpool.planning.errors import PlanError
from carpool.planning.figure import Figure, Known
from carpool.planning.memory import Weights
from carpool.planning.settings import Settings
from carpool.planning.speculation import tokens_per_step

BANDWIDTH_SHARE = (0.55, 0.75, 0.9)
"""Of the peak bandwidth that decoding reaches: low, usual, high."""
FLOPS_SHARE = (0.3, 0.5, 0.7)
"""Of the peak FLOPS that a prefill reaches."""
STEP_SECONDS = (0.0005, 0.001, 0.004)
"""Of a step that is neither reading nor multiplying: scheduling, launches, sampling."""
MEASURED_SPREAD = (1.1, 1.0, 0.9)
"""Of step times that were measured: from one day to the next."""
HOST_LINK_GBS = (12.0, 20.0, 45.0)
"""Of weights in the host's memory: over PCIe 3, 4 and 5 with 16 lanes, less what is lost; the
processor's own memory, where it multiplies with them, is no faster. Assumed."""
DRAFT_STEP_SECONDS = 0.0005
"""Of a pass of a draft model beside its reading; assumed."""
PARALLEL_SHARE = 0.85
"""Of a further device's speed that tensor parallelism leaves, between cards in one machine."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a step with so many sequences, tokens per second of one stream, of all, and
    seconds until the first token of a prompt."""

    num_seqs: int
    step_seconds: Figure
    tokens_per_second: Figure
    total_tokens_per_second: Figure
    first_token_seconds: Figure


@dataclass(frozen=True, slots=True)
class Speed:
    """Of a model on devices. Bytes and FLOPS are of all devices together. Step times that were
    `measured` go before those of bytes and FLOPS."""

    weight_bytes: float
    expert_bytes: float
    expert_share: float
    bytes_per_seq: float
    active_parameters: float
    bandwidth: float
    flops: float
    measured: Calibration | None = None
    host_bytes: float = 0.0
    """Of each device's weights, those that a step fetches from the host's memory."""
    draft_bytes: float = 0.0
    """Weights of the draft model, read once for each token that it drafts."""
    num_draft_tokens: int = 0

    def read_bytes(self, num_seqs: float) -> float:
        """In a step: of routed experts those that some sequence needs."""
        touched: float = 1 - (1 - self.expert_share) ** num_seqs
        return self.weight_bytes + self.expert_bytes * touched + self.bytes_per_seq * num_seqs

    def step_seconds(self, num_seqs: float, guess: int = 1) -> float:
        """`guess` 0 is the slow end, 1 the usual, 2 the fast end."""
        if self.measured is not None:
            return self.measured.step_seconds(num_seqs) * MEASURED_SPREAD[guess]
        read = self.read_bytes(num_seqs) / (self.bandwidth * BANDWIDTH_SHARE[guess])
        rows = num_seqs * (1 + self.num_draft_tokens)
        multiply = 2 * self.active_parameters * rows / (self.flops * FLOPS_SHARE[guess])
        fetch = self._fetch_seconds(guess)
        return max(read, multiply) + fetch + self._draft_seconds(guess) + STEP_SECONDS[2 - guess]

    def _fetch_seconds(self, guess: int) -> float:
        return self.host_bytes / (HOST_LINK_GBS[guess] * 1e9)

    def _draft_seconds(self, guess: int) -> float:
        one = self.draft_bytes / (self.bandwidth * BANDWIDTH_SHARE[guess])
        return self.num_draft_tokens * (one + DRAFT_STEP_SECONDS)

    def tokens_per_step(self, guess: int = 1) -> float:
        """Of one sequence; what was measured is of tokens already."""
        if self.measured is not None:
            return 1.0
        return tokens_per_step(self.num_draft_tokens, guess)

    def prefill_seconds(self, num_tokens: float, guess: int = 1) -> float:
        if self.measured is not None:
            return self.measured.prefill_seconds(num_tokens) * MEASURED_SPREAD[guess]
        multiply = 2 * self.active_parameters * num_tokens / (self.flops * FLOPS_SHARE[guess])
        read = (self.weight_bytes + self.expert_bytes) / (self.bandwidth * BANDWIDTH_SHARE[guess])
        return max(multiply, read) + self._fetch_seconds(guess) + STEP_SECONDS[2 - guess]

    def service_seconds(self, num_seqs: int, prompt_tokens: float, output_tokens: int) -> float:
        """A request from first to last token among `num_seqs`: while others prefill, it waits,
        so each of them costs everybody a prefill."""
        alone = self.prefill_seconds(prompt_tokens)
        steps = output_tokens / self.tokens_per_step()
        return num_seqs * alone + steps * self.step_seconds(num_seqs)

    def pace(self, num_seqs: int, prompt_tokens: float) -> Pace:
        def around(seconds: Callable[[int], float]) -> Figure:
            return Figure(seconds(1), seconds(2), seconds(0), self.known)

        step = around(lambda guess: self.step_seconds(num_seqs, guess))
        first = around(
            lambda guess: (
                self.prefill_seconds(prompt_tokens, guess) + self.step_seconds(num_seqs, guess)
            )
        )
        slow, usual, fast = (self.tokens_per_step(guess) for guess in range(3))
        rate = Figure(usual / step.value, slow / step.high, fast / step.low, self.known)
        return Pace(num_seqs, step, rate, rate.scaled(num_seqs), first)

    @property
    def known(self) -> Known:
        return Known.ASSUMED if self.measured is None else Known.MEASURED

    @property
    def sweet_spot(self) -> int:
        """Sequences from which on one more costs the others as much as sharing the weights
        saves: keys and values take as long to read as the weights, or multiplying as long as
        reading; as measured, where H n is more than W."""
        if self.measured is not None and self.measured.step_per_seq_s > 0:
            return max(1, int(self.measured.step_fixed_s / self.measured.step_per_seq_s))
        most = 1
        fixed = self.weight_bytes + self.expert_bytes
        for num_seqs in (2**power for power in range(12)):
            reads = self.bytes_per_seq * num_seqs / fixed
            read = self.read_bytes(num_seqs) / (self.bandwidth * BANDWIDTH_SHARE[1])
            multiply = 2 * self.active_parameters * num_seqs / (self.flops * FLOPS_SHARE[1])
            if reads > 1 or multiply > read:
                break
            most = num_seqs
        return most


def speed_of(
    shape: ModelShape,
    weights: Weights,
    settings: Settings,
    device: Device,
    bytes_per_seq: float,
    draft: Weights | None = None,
) -> Speed:
    """`bytes_per_seq` are the keys and values of one sequence, on one rank."""
    ranks = settings.tensor_parallel
    parallel = 1 + (ranks - 1) * PARALLEL_SHARE
    sizes = weights.bytes
    has_experts = shape.experts is not None
    share = shape.parameters.active_experts if has_experts else 1.0
    # Of the tables, a step reads the one of outputs whole.
    output = 0.5 if shape.parameters.lm_head else 1.0
    return Speed(
        weight_bytes=sizes.dense + sizes.replicated + sizes.latent + sizes.tables * output,
        expert_bytes=sizes.experts,
        expert_share=share,
        bytes_per_seq=bytes_per_seq * ranks,
        active_parameters=shape.parameters.active,
        bandwidth=device.bandwidth_gbs * 1e9 * parallel,
        flops=_flops(device, weights) * parallel,
        host_bytes=settings.host_offload,
        draft_bytes=_draft_bytes(shape, weights, draft) if settings.num_draft_tokens else 0.0,
        num_draft_tokens=settings.num_draft_tokens,
    )


def _draft_bytes(shape: ModelShape, weights: Weights, draft: Weights | None) -> float:
    """Of a model of its own, or of the layers that a model has for it."""
    if draft is not None:
        return draft.bytes.total
    sizes = weights.bytes
    layer = sizes.dense + sizes.experts * shape.parameters.active_experts
    return shape.num_draft_layers * layer / shape.num_layers


CPU_TFLOPS = 1.0
"""Of a CPU without a figure: AVX2 or AVX-512 on some tens of cores."""


def _flops(device: Device, weights: Weights) -> float:
    """Dense FLOPS of the type that is multiplied in: 8-bit formats where the device has it."""
    is_8_bit = weights.format.scope is Scope.MATRICES and round(weights.format.bits) == 8
    if is_8_bit and weights.format.name == "fp8" and device.fp8_tflops:
        return device.fp8_tflops * 1e12
    if is_8_bit and weights.format.name == "int8" and device.int8_tops:
        return device.int8_tops * 1e12
    if device.fp16_tflops:
        return device.fp16_tflops * 1e12
    if device.is_cpu:
        return CPU_TFLOPS * 1e12
    raise PlanError(f"{device.name}: no FLOPS in the catalogue; give --tflops")
