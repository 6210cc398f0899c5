"""How many bits a weight takes, by the format it is stored in.

Formats quantise the matrices of attention and MLP (and the experts); tables of tokens,
norms and vision towers stay in the model's own type, except in GGUF files, where the mix
is over all weights.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from carpool.errors import CarpoolError
from carpool.models.parameters import Parameters


class Scope(StrEnum):
    """Which weights a format applies to."""

    MATRICES = "matrices"
    EXPERTS = "experts"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """`bits` of a quantised weight, scales included; the rest has the model's own type.
    `source` says where the figure is from."""

    name: str
    bits: float
    scope: Scope
    source: str
    expert_padding: int = 1
    """Kernels want the experts' width in multiples of this many weights."""
    is_for_experts: bool = False
    """In a model with experts, they alone are quantised."""

    @property
    def has_fp4_kernels(self) -> bool:
        """4-bit floats are multiplied by kernels that need no buffers for fused experts."""
        return self.name in ("mxfp4", "nvfp4")

    def applies_to(self, scope: Scope, has_experts: bool) -> bool:
        """Whether matrices (or experts) have these bits."""
        if self.scope is Scope.ALL:
            return True
        if self.scope is Scope.EXPERTS or (self.is_for_experts and has_experts):
            return scope is Scope.EXPERTS
        return True


_NATIVE = "size of the type"
_SCALES = "bits of the weight and of a 16-bit scale (and zero point) per group"
_GGUF = "https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md, Llama 3.1 8B"


def _matrices(name: str, bits: float, source: str = _SCALES) -> WeightFormat:
    return WeightFormat(name, bits, Scope.MATRICES, source)


def _gguf(name: str, bits: float) -> WeightFormat:
    return WeightFormat(name, bits, Scope.ALL, _GGUF)


FORMATS = {
    format.name: format
    for format in (
        WeightFormat("fp32", 32, Scope.ALL, _NATIVE),
        WeightFormat("bf16", 16, Scope.ALL, _NATIVE),
        WeightFormat("fp16", 16, Scope.ALL, _NATIVE),
        _matrices("fp8", 8.0 + 32 / 128**2, "a scale for each 128 x 128 weights"),
        _matrices("int8", 8.03),
        _matrices("awq", 4 + 20 / 128),
        _matrices("gptq", 4 + 20 / 128),
        _matrices("w4a16", 4 + 16 / 128),
        _matrices("bnb-nf4", 4.127, "https://arxiv.org/abs/2305.14314, double quantisation"),
        WeightFormat(
            "nvfp4",
            4.5,
            Scope.MATRICES,
            "an 8-bit scale for each 16 weights; of MoE models, ModelOpt quantises the experts",
            is_for_experts=True,
        ),
        WeightFormat(
            "mxfp4",
            4.25,
            Scope.EXPERTS,
            "an 8-bit scale for each 32 weights; experts alone (gpt-oss)",
            expert_padding=256,
        ),
        WeightFormat("int4-experts", 4.5, Scope.EXPERTS, "groups of 32; experts alone (Kimi K2)"),
        WeightFormat("int8-experts", 8.03, Scope.EXPERTS, _SCALES),
        _gguf("F32", 32.0),
        _gguf("BF16", 16.0),
        _gguf("F16", 16.0),
        _gguf("Q8_0", 8.5),
        _gguf("Q6_K", 6.56),
        _gguf("Q5_K_M", 5.70),
        _gguf("Q5_K_S", 5.57),
        _gguf("Q4_K_M", 4.89),
        _gguf("Q4_K_S", 4.67),
        _gguf("Q4_1", 5.06),
        _gguf("Q4_0", 4.66),
        _gguf("IQ4_XS", 4.46),
        _gguf("Q3_K_L", 4.30),
        _gguf("Q3_K_M", 4.00),
        _gguf("Q3_K_S", 3.64),
        _gguf("IQ3_M", 3.76),
        _gguf("Q2_K", 3.16),
        _gguf("IQ2_M", 2.93),
    )
}

_ALIASES = {
    "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "auto": "bf16",
    "fp8_e4m3": "fp8", "fbgemm_fp8": "fp8", "w8a8": "int8", "experts_int8": "int8-experts",
    "int8": "int8", "awq_marlin": "awq", "awq-int4": "awq", "gptq_marlin": "gptq",
    "gptq-int4": "gptq", "gptq-int8": "int8", "auto-round": "gptq", "auto-round-int4": "gptq",
    "int4": "w4a16", "4bit": "w4a16", "compressed-tensors-int4": "w4a16",
    "compressed-tensors-int8": "int8", "bitsandbytes": "bnb-nf4",
    "bitsandbytes-int4": "bnb-nf4", "bnb": "bnb-nf4", "bnb-int8": "int8",
    "bitsandbytes-int8": "int8", "nf4": "bnb-nf4", "modelopt_fp4": "nvfp4",
    "modelopt_nvfp4": "nvfp4",
}  # fmt: skip


class UnknownFormat(CarpoolError):
    """A weight format without a size here."""


_GROUPS = re.compile(r"(awq|gptq|auto-round)-int(\d)(?:-g(-?\d+))?")


def find_format(name: str) -> WeightFormat:
    """By the name of the format or of its method; "gptq-int4-g64" has groups of 64 weights.
    Raises `UnknownFormat`."""
    wanted = _ALIASES.get(name.lower(), name)
    for known, format in FORMATS.items():
        if known.lower() == wanted.lower():
            return format
    if groups := _GROUPS.fullmatch(name.lower()):
        bits, size = int(groups[2]), int(groups[3] or 128)
        # A scale of 16 bits and a zero point for each group; -1 is a whole row.
        overhead = (16 + bits) / size if size > 0 else 0.01
        method = "awq" if groups[1] == "awq" else "gptq"
        own = method if bits == 4 else f"{method}-int{bits}"
        return WeightFormat(own, bits + overhead, Scope.MATRICES, _SCALES)
    raise UnknownFormat(
        f"weight format {name!r} is not known; give one of {', '.join(FORMATS)} with --weights"
    )


def dtype_bits(dtype: str) -> int:
    """Of a type by its name in config.json."""
    return int(find_format(dtype).bits)


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes by how engines split them: tables and matrices over tensor-parallel ranks,
    experts over those or over expert-parallel ones, `replicated` and `latent` not at all."""

    tables: float
    dense: float
    experts: float
    replicated: float
    latent: float
    vision: float

    @property
    def total(self) -> float:
        return self.tables + self.dense + self.experts + self.replicated + self.latent + self.vision


def weight_bytes(
    parameters: Parameters, format: WeightFormat, dtype: str, expert_width: int | None = None
) -> WeightBytes:
    """Estimate from counts. `expert_width` is the intermediate size of an expert, which
    kernels of some formats round up. Format: see `WeightFormat`."""
    own = format.bits if format.scope is Scope.ALL else dtype_bits(dtype)
    has_experts = parameters.experts > 0
    dense = format.bits if format.applies_to(Scope.MATRICES, has_experts) else own
    experts = format.bits if format.applies_to(Scope.EXPERTS, has_experts) else own
    padding = 1.0
    if expert_width and format.expert_padding > 1:
        step = format.expert_padding
        padding = -(-expert_width // step) * step / expert_width
    return WeightBytes(
        tables=(parameters.embedding + parameters.lm_head) * own / 8,
        dense=parameters.dense * dense / 8,
        experts=parameters.experts * experts * padding / 8,
        replicated=parameters.replicated * own / 8,
        latent=parameters.latent * dense / 8,
        vision=parameters.vision * own / 8,
    )
