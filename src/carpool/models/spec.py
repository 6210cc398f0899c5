"""What a model is: its shape, its size, and whether the embedded engine can run it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from carpool.errors import CarpoolError
from carpool.models.gguf import GGUF, GGUFError

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""What openvino_genai builds a graph for from a GGUF (its gguf_modeling.cpp)."""

GGUF_MATRIX_TYPES = ("F16", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0")
"""Weight types openvino_genai 2026.4.1 loads: each was tried on a model of one layer.
F32 and BF16 matrices, the other K quants and the IQ types fail there."""

GGUF_VECTOR_TYPES = ("F32",)
"""Norms and biases."""

IR_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type` in config.json: dense decoders with one kind of attention layer."""

DEFAULT_MAX_MODEL_LEN = 2048


class UnsupportedModel(CarpoolError):
    """A whole, valid model that the embedded engine cannot run."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The shape and size of a decoder-only language model.

    `max_model_len` is the context length in tokens it was trained for, `weight_bytes`
    the size of its weights as stored, `quantization` the type most weights have.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    quantization: str
    num_parameters: int
    weight_bytes: int


def spec_from_gguf(gguf: GGUF) -> ModelSpec:
    """Read the spec from GGUF metadata.

    Raises `UnsupportedModel` for an architecture, a quantization or a split file that the
    converter cannot load, `GGUFError` when metadata that every model has is missing.
    """
    architecture = gguf.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise GGUFError(f"{gguf.path}: no general.architecture in its metadata")
    _check_gguf(gguf, architecture)
    hidden_size = _gguf_int(gguf, f"{architecture}.embedding_length")
    num_heads = _gguf_int(gguf, f"{architecture}.attention.head_count")
    _gguf_int(gguf, "general.file_type", minimum=0)
    return ModelSpec(
        architecture=architecture,
        num_layers=_gguf_int(gguf, f"{architecture}.block_count"),
        hidden_size=hidden_size,
        num_attention_heads=num_heads,
        num_key_value_heads=_gguf_int(
            gguf, f"{architecture}.attention.head_count_kv", default=num_heads
        ),
        head_dim=_gguf_int(
            gguf, f"{architecture}.attention.key_length", default=hidden_size // num_heads
        ),
        vocab_size=_gguf_vocab_size(gguf),
        max_model_len=_gguf_int(
            gguf, f"{architecture}.context_length", default=DEFAULT_MAX_MODEL_LEN
        ),
        quantization=_main_type(gguf),
        num_parameters=sum(tensor.num_elements for tensor in gguf.tensors),
        weight_bytes=sum(tensor.num_bytes for tensor in gguf.tensors),
    )


def spec_from_config(
    config: Mapping[str, object], weight_bytes: int, quantization: str, where: str
) -> ModelSpec:
    """Read the spec from a Hugging Face config.json, as an exported IR folder keeps it too.

    `where` names the file in errors. Raises `UnsupportedModel` for an unknown model_type,
    and for a field that is missing or is no positive integer.
    """
    architecture = config.get("model_type")
    if architecture not in IR_ARCHITECTURES:
        raise UnsupportedModel(
            f"{where}: architecture {architecture!r} is not supported; "
            f"supported: {', '.join(IR_ARCHITECTURES)}"
        )
    hidden_size = _config_int(config, where, "hidden_size")
    num_heads = _config_int(config, where, "num_attention_heads")
    spec = ModelSpec(
        architecture=str(architecture),
        num_layers=_config_int(config, where, "num_hidden_layers"),
        hidden_size=hidden_size,
        num_attention_heads=num_heads,
        num_key_value_heads=_config_int(config, where, "num_key_value_heads", num_heads),
        head_dim=_config_int(config, where, "head_dim", hidden_size // num_heads),
        vocab_size=_config_int(config, where, "vocab_size"),
        max_model_len=_config_int(config, where, "max_position_embeddings", DEFAULT_MAX_MODEL_LEN),
        quantization=quantization,
        num_parameters=0,
        weight_bytes=weight_bytes,
    )
    intermediate_size = _config_int(config, where, "intermediate_size")
    tied = bool(config.get("tie_word_embeddings", False))
    return _with_parameters(spec, intermediate_size, tied)


def _with_parameters(spec: ModelSpec, intermediate_size: int, tied: bool) -> ModelSpec:
    """Count the weights of a gated-MLP decoder (biases left out: under 0.1 %)."""
    query = spec.num_attention_heads * spec.head_dim
    key_value = spec.num_key_value_heads * spec.head_dim
    attention = spec.hidden_size * (2 * query + 2 * key_value)
    mlp = 3 * spec.hidden_size * intermediate_size
    layers = spec.num_layers * (attention + mlp + 2 * spec.hidden_size)
    embeddings = spec.vocab_size * spec.hidden_size * (1 if tied else 2)
    fields = {name: getattr(spec, name) for name in spec.__slots__}
    return ModelSpec(**fields | {"num_parameters": layers + embeddings + spec.hidden_size})


def _check_gguf(gguf: GGUF, architecture: str) -> None:
    if architecture not in GGUF_ARCHITECTURES:
        raise UnsupportedModel(
            f"{gguf.path}: architecture {architecture!r} is not supported; "
            f"supported in GGUF: {', '.join(GGUF_ARCHITECTURES)}"
        )
    if gguf.metadata.get(f"{architecture}.expert_count"):
        raise UnsupportedModel(
            f"{gguf.path}: architecture {architecture!r} with a mixture of experts is not "
            f"supported; supported in GGUF: dense {', '.join(GGUF_ARCHITECTURES)}"
        )
    if gguf.metadata.get("split.count", 1) != 1:
        raise UnsupportedModel(
            f"{gguf.path}: one part of a split model; join the parts with "
            "`llama-gguf-split --merge FIRST_PART OUTPUT.gguf`"
        )
    scaling = gguf.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" or any(tensor.name == "rope_freqs.weight" for tensor in gguf.tensors):
        # openvino_genai reads rope.freq_base alone: the answers would be quietly worse.
        raise UnsupportedModel(
            f"{gguf.path}: scaled rotary embeddings are not supported in GGUF; "
            "use an OpenVINO IR export of this model"
        )
    for tensor in gguf.tensors:
        supported = GGUF_VECTOR_TYPES if len(tensor.shape) == 1 else GGUF_MATRIX_TYPES
        if tensor.type.name not in supported:
            raise UnsupportedModel(
                f"{gguf.path}: quantization {tensor.type.name} (tensor {tensor.name!r}) is not "
                f"supported; supported: {', '.join(supported)}"
            )


def _gguf_int(gguf: GGUF, key: str, default: int | None = None, minimum: int = 1) -> int:
    value = gguf.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise GGUFError(f"{gguf.path}: metadata {key} is {value!r}; it must be an integer")
    return value


def _gguf_vocab_size(gguf: GGUF) -> int:
    for tensor in gguf.tensors:
        if tensor.name == "token_embd.weight" and len(tensor.shape) == 2:
            return tensor.shape[1]
    raise GGUFError(f"{gguf.path}: no tensor token_embd.weight, so not a language model")


def _main_type(gguf: GGUF) -> str:
    weights: Counter[str] = Counter()
    for tensor in gguf.tensors:
        weights[tensor.type.name] += tensor.num_elements
    return weights.most_common(1)[0][0]


def _config_int(
    config: Mapping[str, object], where: str, key: str, default: int | None = None
) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnsupportedModel(f"{where}: {key} is {value!r}; it must be a positive integer")
    return value
