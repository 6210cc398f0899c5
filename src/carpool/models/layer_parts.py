"""What a layer keeps and what it weighs, by what it mixes tokens with."""

from dataclasses import dataclass
from typing import NamedTuple

from carpool.models.config_fields import ConfigFields, UnknownShape
from carpool.models.families import Mixer
from carpool.models.layer_cache import AttentionCache, LatentCache, LayerCache, StateCache


class MixerPart(NamedTuple):
    """The caches of one layer (none, one or two), its matrices, and those that every rank has
    whole."""

    caches: tuple[LayerCache, ...]
    dense: int
    latent: int = 0


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Of a config's attention."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def read_dimensions(config: ConfigFields) -> Dimensions:
    hidden_size = config.integer("hidden_size", "n_embd")
    # Without attention there are no heads to divide by: states divide by their own.
    is_attention_free = "state_size" in config
    heads = config.integer("num_heads", default=hidden_size // 64) if is_attention_free else None
    num_heads = config.integer("num_attention_heads", "n_head", default=heads)
    return Dimensions(
        hidden_size,
        num_heads,
        _num_kv_heads(config, num_heads),
        config.integer("head_dim", default=max(1, hidden_size // num_heads)),
    )


def _num_kv_heads(config: ConfigFields, num_heads: int) -> int:
    """Falcon's newer layout names groups, its older and GPT-BigCode's have one head for all."""
    if config.flag("new_decoder_architecture"):
        return config.integer("num_kv_heads", default=num_heads)
    if config.flag("multi_query"):
        return 1
    return config.integer("num_key_value_heads", default=num_heads // _group_size(config))


def _group_size(config: ConfigFields) -> int:
    """Query heads per KV head where each block says it for itself (Nemotron NAS)."""
    blocks = [block for block in config.items("block_configs") if isinstance(block, dict)]
    sizes = {block.get("attention", {}).get("n_heads_in_group") for block in blocks} - {None}
    if len(sizes) > 1:
        raise UnknownShape(
            f"{config.where}: n_heads_in_group differs between blocks: {sorted(sizes)}"
        )
    return int(sizes.pop()) if sizes else 1


def mixer_part(model_type: str, mixer: Mixer, config: ConfigFields) -> MixerPart:
    """Raises `UnknownShape` for a field that is missing or wrong."""
    match mixer:
        case Mixer.NONE:
            return MixerPart((), 0)
        case Mixer.LINEAR if model_type == "kimi_linear":
            return _delta_attention(config)
        case Mixer.LINEAR:
            return _gated_delta_net(config)
        case Mixer.CONV:
            return _short_convolution(config)
        case Mixer.MAMBA if model_type in ("jamba", "mamba", "falcon_mamba"):
            return _mamba1(config)
        case Mixer.MAMBA:
            return _mamba2(config)
        case Mixer.BOTH:
            attention, mamba = _attention(model_type, Mixer.FULL, config), _mamba2(config)
            return MixerPart(attention.caches + mamba.caches, attention.dense + mamba.dense)
        case _ if "kv_lora_rank" in config:
            return _latent_attention(config)
        case _:
            return _attention(model_type, mixer, config)


def _attention(model_type: str, mixer: Mixer, config: ConfigFields) -> MixerPart:
    size = read_dimensions(config)
    heads, kv_heads, key_dim = size.num_heads, size.num_kv_heads, size.head_dim
    value_dim = config.integer("v_head_dim", default=key_dim)
    key_is_value = False
    if model_type == "gemma4" and mixer is Mixer.FULL:
        key_dim = value_dim = config.integer("global_head_dim", default=key_dim)
        kv_heads = config.integer("num_global_key_value_heads", default=kv_heads)
        key_is_value = config.flag("attention_k_eq_v")
    has_gate = config.flag("attn_output_gate") or model_type.startswith(("qwen3_next", "qwen3_5"))
    query = heads * key_dim * (2 if has_gate else 1)
    key_value = kv_heads * (key_dim if key_is_value else key_dim + value_dim)
    dense = size.hidden_size * (query + key_value + heads * value_dim)
    window = None
    if mixer is Mixer.SLIDING:
        window = config.integer("sliding_window")
    elif mixer is Mixer.CHUNKED:
        window = config.integer("attention_chunk_size")
    cache = AttentionCache(kv_heads, key_dim, value_dim, window, mixer is Mixer.CHUNKED)
    return MixerPart((cache,), dense)


def _latent_attention(config: ConfigFields) -> MixerPart:
    """https://arxiv.org/abs/2405.04434, section 2.1."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    rank, rope = config.integer("kv_lora_rank"), config.integer("qk_rope_head_dim")
    nope, value = config.integer("qk_nope_head_dim"), config.integer("v_head_dim")
    query_rank = config.optional("q_lora_rank")
    query = heads * (nope + rope)
    dense = rank * heads * (nope + value) + heads * value * hidden
    dense += query * (query_rank or hidden)
    latent = hidden * (rank + rope) + (hidden * query_rank if query_rank else 0)
    index_dim = config.count("index_head_dim")
    if index_dim and query_rank:
        index_heads = config.integer("index_n_heads")
        latent += query_rank * index_heads * index_dim + hidden * (index_dim + index_heads)
    cache = LatentCache(rank, rope, heads, nope + rope, value, index_dim)
    return MixerPart((cache,), dense, latent)


def _gated_delta_net(config: ConfigFields) -> MixerPart:
    """https://arxiv.org/abs/2412.06464, as in Qwen3-Next."""
    hidden = config.integer("hidden_size")
    value_heads, value_dim = _pair(config, "linear_num_value_heads", "linear_value_head_dim")
    key_heads, key_dim = _pair(config, "linear_num_key_heads", "linear_key_head_dim")
    keys, values = key_heads * key_dim, value_heads * value_dim
    kernel = config.integer("linear_conv_kernel_dim")
    width = 2 * keys + values
    dense = hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden + width * kernel
    state = StateCache(
        width * (kernel - 1),
        width,
        value_heads * value_dim * key_dim,
        _bytes(config.text("mamba_ssm_dtype")),
    )
    return MixerPart((state,), dense)


def _delta_attention(config: ConfigFields) -> MixerPart:
    """Kimi Delta Attention, https://arxiv.org/abs/2510.26692."""
    hidden = config.integer("hidden_size")
    linear = config.inner("linear_attn_config") or config
    heads, head_dim = linear.integer("num_heads"), linear.integer("head_dim")
    kernel = linear.integer("short_conv_kernel_size", default=4)
    width = heads * head_dim
    dense = hidden * width * 4 + 2 * head_dim * width + hidden * heads + 3 * width * kernel
    state = StateCache(3 * width * (kernel - 1), 3 * width, heads * head_dim * head_dim, 4)
    return MixerPart((state,), dense, 2 * hidden * head_dim)


def _mamba2(config: ConfigFields) -> MixerPart:
    """https://arxiv.org/abs/2405.21060, as in Mamba 2, Nemotron-H and Falcon-H1."""
    hidden = config.integer("hidden_size")
    heads = config.integer("mamba_num_heads", "mamba_n_heads", "num_heads")
    inner = heads * config.integer("mamba_head_dim", "mamba_d_head", "head_dim")
    state_size = config.integer("ssm_state_size", "mamba_d_state", "state_size")
    groups = config.integer("n_groups", "mamba_n_groups")
    kernel = config.integer("conv_kernel", "mamba_d_conv")
    width = inner + 2 * groups * state_size
    dense = hidden * (inner + width + heads) + inner * hidden + width * kernel
    state = StateCache(
        width * (kernel - 1),
        width,
        inner * state_size,
        _bytes(config.text("mamba_ssm_cache_dtype")),
    )
    return MixerPart((state,), dense)


def _mamba1(config: ConfigFields) -> MixerPart:
    """https://arxiv.org/abs/2312.00752, as in Jamba and in Mamba itself."""
    hidden = config.integer("hidden_size")
    inner = hidden * config.integer("mamba_expand", "expand", default=2)
    if "state_size" in config:
        inner = config.integer("intermediate_size", default=inner)
    state_size = config.integer("mamba_d_state", "state_size", default=16)
    kernel = config.integer("mamba_d_conv", "conv_kernel", default=4)
    is_auto = "auto" in (config.text("mamba_dt_rank"), config.text("time_step_rank"))
    usual = -(-hidden // 16)
    rank = usual if is_auto else config.integer("mamba_dt_rank", "time_step_rank", default=usual)
    dense = hidden * 2 * inner + inner * (rank + 2 * state_size) + rank * inner
    dense += inner * (hidden + state_size + kernel)
    return MixerPart((StateCache(inner * (kernel - 1), inner, inner * state_size),), dense)


def _short_convolution(config: ConfigFields) -> MixerPart:
    """LFM2: a gated convolution over a few tokens."""
    hidden = config.integer("hidden_size")
    kernel = config.integer("conv_L_cache")
    return MixerPart((StateCache(hidden * (kernel - 1), hidden, 0),), 4 * hidden * hidden)


def _pair(config: ConfigFields, *names: str) -> tuple[int, ...]:
    return tuple(config.integer(name) for name in names)


def _bytes(dtype: str | None) -> int | None:
    return {"float32": 4, "bfloat16": 2, "float16": 2}.get(dtype or "")
