"""The architectures that are understood, and how each lays out its layers.

What a `model_type` means is taken from its modeling file in
https://github.com/huggingface/transformers (and vLLM's for those that are not there). A
type that is not listed is refused: a wrong guess at attention is off by factors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from carpool.models.config_fields import ConfigFields, UnknownShape


class Mixer(StrEnum):
    """What a layer mixes tokens with."""

    FULL = "full_attention"
    SLIDING = "sliding_attention"
    CHUNKED = "chunked_attention"
    LINEAR = "linear_attention"
    MAMBA = "mamba"
    CONV = "conv"
    BOTH = "attention_beside_mamba"
    NONE = "none"


_LAYER_TYPES = {
    "full_attention": Mixer.FULL,
    "attention": Mixer.FULL,
    "sliding_attention": Mixer.SLIDING,
    "chunked_attention": Mixer.CHUNKED,
    "linear_attention": Mixer.LINEAR,
    "conv": Mixer.CONV,
    "mamba": Mixer.MAMBA,
}


@dataclass(frozen=True, slots=True)
class Family:
    """`mixers` lays out the layers where the config has no `layer_types`. `mlp_matrices` is 3
    for gated MLPs, 2 for plain ones, 0 without any; `moe` says that layers may have routed
    experts."""

    mixers: Callable[[ConfigFields, int], list[Mixer]]
    mlp_matrices: int = 3
    moe: bool = False


def layer_mixers(config: ConfigFields, family: Family, num_layers: int) -> list[Mixer]:
    """One per layer. Raises `UnknownShape` for a layer type without a name here."""
    names = config.items("layer_types")
    if not names:
        return family.mixers(config, num_layers)
    if len(names) != num_layers:
        raise UnknownShape(
            f"{config.where}: layer_types has {len(names)} entries, num_hidden_layers is "
            f"{num_layers}; they must agree"
        )
    for name in names:
        if not isinstance(name, str) or name not in _LAYER_TYPES:
            raise UnknownShape(
                f"{config.where}: layer type {name!r} is not understood; "
                f"understood: {', '.join(_LAYER_TYPES)}"
            )
    return [_LAYER_TYPES[str(name)] for name in names]


def _all_full(config: ConfigFields, num_layers: int) -> list[Mixer]:
    return [Mixer.FULL] * num_layers


def _all_mamba(config: ConfigFields, num_layers: int) -> list[Mixer]:
    return [Mixer.MAMBA] * num_layers


def _all_sliding(config: ConfigFields, num_layers: int) -> list[Mixer]:
    return [Mixer.SLIDING if "sliding_window" in config else Mixer.FULL] * num_layers


def _qwen(config: ConfigFields, num_layers: int) -> list[Mixer]:
    """The first layers are full, if a window is used at all."""
    if not config.flag("use_sliding_window") or "sliding_window" not in config:
        return [Mixer.FULL] * num_layers
    first = config.count("max_window_layers", default=num_layers)
    return [Mixer.SLIDING if index >= first else Mixer.FULL for index in range(num_layers)]


def _every(period: int, others: Mixer) -> Callable[[ConfigFields, int], list[Mixer]]:
    """Every `period`-th layer attends to everything (or as the config says)."""

    def mixers(config: ConfigFields, num_layers: int) -> list[Mixer]:
        every = config.integer("full_attention_interval", "sliding_window_pattern", default=period)
        return [Mixer.FULL if (i + 1) % every == 0 else others for i in range(num_layers)]

    return mixers


def _llama4(config: ConfigFields, num_layers: int) -> list[Mixer]:
    """Layers without rotary positions are full."""
    rotary = config.items("no_rope_layers")
    if rotary:
        return [Mixer.CHUNKED if is_rotary else Mixer.FULL for is_rotary in rotary]
    return _every(4, Mixer.CHUNKED)(config, num_layers)


def _jamba(config: ConfigFields, num_layers: int) -> list[Mixer]:
    period, offset = config.integer("attn_layer_period"), config.count("attn_layer_offset")
    return [Mixer.FULL if i % period == offset else Mixer.MAMBA for i in range(num_layers)]


def _nemotron_h(config: ConfigFields, num_layers: int) -> list[Mixer]:
    letters = {"M": Mixer.MAMBA, "*": Mixer.FULL, "-": Mixer.NONE, "E": Mixer.NONE}
    pattern = config.text("hybrid_override_pattern") or ""
    if len(pattern) != num_layers or not set(pattern) <= set(letters):
        raise UnknownShape(
            f"{config.where}: hybrid_override_pattern is {pattern!r}; it must have a letter "
            f"of {''.join(letters)} for each of {num_layers} layers"
        )
    return [letters[letter] for letter in pattern]


def _kimi_linear(config: ConfigFields, num_layers: int) -> list[Mixer]:
    linear = config.inner("linear_attn_config")
    if linear is None or not linear.items("full_attn_layers"):
        raise UnknownShape(f"{config.where}: no linear_attn_config.full_attn_layers")
    full = linear.items("full_attn_layers")
    return [Mixer.FULL if i + 1 in full else Mixer.LINEAR for i in range(num_layers)]


def _nemotron_nas(config: ConfigFields, num_layers: int) -> list[Mixer]:
    blocks = config.items("block_configs")
    attention = [block.get("attention") for block in blocks if isinstance(block, dict)]
    if len(attention) != num_layers or not all(isinstance(a, dict) for a in attention):
        raise UnknownShape(f"{config.where}: block_configs must describe {num_layers} layers")
    return [
        Mixer.NONE if a.get("no_op") or a.get("replace_with_linear") else Mixer.FULL
        for a in attention
        if isinstance(a, dict)
    ]


def _mllama(config: ConfigFields, num_layers: int) -> list[Mixer]:
    """Cross-attention layers keep the picture, whose size does not grow with the text."""
    cross = config.items("cross_attention_layers")
    return [Mixer.NONE if i in cross else Mixer.FULL for i in range(num_layers)]


def _both(config: ConfigFields, num_layers: int) -> list[Mixer]:
    return [Mixer.BOTH] * num_layers


_DENSE = Family(_all_full)
_PLAIN = Family(_all_full, mlp_matrices=2)
_ATTENTION_FREE = Family(_all_mamba, mlp_matrices=0)
_MOE = Family(_all_full, moe=True)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "granite", "glm", "glm4", "gemma", "phi3small", "olmo2"), _DENSE),
    **dict.fromkeys(("smollm3", "llava_next", "internvl_chat", "exaone", "exaone4"), _DENSE),
    **dict.fromkeys(("cohere", "olmo", "olmo3", "stablelm", "seed_oss", "internlm2"), _DENSE),
    **dict.fromkeys(("opt", "phi", "gpt2", "gpt_neox", "gpt_bigcode", "falcon"), _PLAIN),
    **dict.fromkeys(("nemotron", "arcee", "apertus"), _PLAIN),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), _ATTENTION_FREE),
    **dict.fromkeys(("mistral", "ministral", "mistral3", "phi3"), Family(_all_sliding)),
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"), Family(_qwen)),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_vl_moe"), Family(_qwen, moe=True)),
    **dict.fromkeys(("mixtral", "phimoe"), Family(_all_sliding, moe=True)),
    **dict.fromkeys(("minimax_m2", "glm4_moe", "xverse", "olmoe", "granitemoe"), _MOE),
    "granitemoehybrid": _MOE,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_vl"), _MOE),
    **dict.fromkeys(("kimi_k25", "glm_moe_dsa", "glm4_moe_lite"), _MOE),
    "starcoder2": Family(_all_sliding, mlp_matrices=2),
    "gemma2": Family(_every(2, Mixer.SLIDING)),
    "gemma3": Family(_every(6, Mixer.SLIDING)),
    "gemma3n": Family(_every(5, Mixer.SLIDING)),
    "gemma4": Family(_every(6, Mixer.SLIDING), moe=True),
    "cohere2": Family(_every(4, Mixer.SLIDING)),
    "gpt_oss": Family(_every(2, Mixer.SLIDING), moe=True),
    "llama4": Family(_llama4, moe=True),
    "mllama": Family(_mllama),
    "qwen3_next": Family(_every(4, Mixer.LINEAR), moe=True),
    "qwen3_5": Family(_every(4, Mixer.LINEAR)),
    "qwen3_5_moe": Family(_every(4, Mixer.LINEAR), moe=True),
    "jamba": Family(_jamba, moe=True),
    "nemotron_h": Family(_nemotron_h, mlp_matrices=2, moe=True),
    "nemotron-nas": Family(_nemotron_nas),
    "kimi_linear": Family(_kimi_linear, moe=True),
    "lfm2": Family(_all_full),
    "falcon_h1": Family(_both),
}

_PART_OF = ("_text", "_text_model", "_language_model")


def find_family(model_type: str | None, where: str) -> tuple[str, Family]:
    """The type without "_text" and the like, and its family. Raises `UnknownShape`."""
    name = model_type or ""
    for ending in _PART_OF:
        name = name.removesuffix(ending)
    if name not in FAMILIES:
        raise UnknownShape(
            f"{where}: architecture {model_type!r} (model_type) is not understood, so its memory "
            f"cannot be planned; understood: {', '.join(sorted(FAMILIES))}"
        )
    return name, FAMILIES[name]
