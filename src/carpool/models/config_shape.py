"""From a config.json to the shape of the model."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from carpool.models.config_fields import ConfigFields
from carpool.models.families import Family, find_family, layer_mixers
from carpool.models.layer_cache import CacheGroup, LayerCache
from carpool.models.layer_parts import mixer_part, read_dimensions
from carpool.models.parameters import Parameters
from carpool.models.quantization import quantization_of
from carpool.models.shape import Experts, ModelShape

_TEXT_PARTS = ("text_config", "llm_config", "language_config")


def shape_from_config(values: Mapping[str, object], where: str) -> ModelShape:
    """Read a Hugging Face config.json; `where` names it in errors.

    Raises `UnknownShape` for an architecture that is not understood (by its name) and for a
    field that is missing or wrong.
    """
    whole = ConfigFields(values, where)
    config = _text_part(whole)
    model_type, family = find_family(config.text("model_type") or whole.text("model_type"), where)
    num_layers = config.integer("num_hidden_layers", "n_layer")
    mixers = layer_mixers(config, family, num_layers)
    size = read_dimensions(config)
    experts = _experts(config, family)
    mlp = _MLP(model_type, family, config, size.hidden_size, experts)
    caches: Counter[LayerCache] = Counter()
    dense = latent = replicated = expert_weights = 0
    # The last layers may use keys and values of earlier ones (Gemma 3n and 4).
    num_own = num_layers - config.count("num_kv_shared_layers")
    for index, mixer in enumerate(mixers):
        part = mixer_part(model_type, mixer, config)
        if index < num_own:
            caches.update(part.caches)
        dense += part.dense + mlp.dense_of(index)
        latent += part.latent
        replicated += 2 * size.hidden_size + mlp.router_of(index)
        expert_weights += mlp.experts_of(index)
    num_drafts = _draft_layers(config)
    vocab_size = config.integer("vocab_size")
    table = vocab_size * size.hidden_size
    is_tied = config.flag("tie_word_embeddings", whole.flag("tie_word_embeddings"))
    # Gemma 3n and 4: a small table of their own for each layer.
    own_tables = config.count("hidden_size_per_layer_input") * num_layers
    parameters = Parameters(
        embedding=table + own_tables * config.count("vocab_size_per_layer_input"),
        lm_head=0 if is_tied else table,
        dense=dense,
        experts=expert_weights,
        active_experts=experts.num_per_token / experts.num_experts if experts else 1.0,
        replicated=replicated + size.hidden_size,
        latent=latent,
        vision=_vision(whole, size.hidden_size),
        draft=num_drafts * (dense + expert_weights) // num_layers,
    )
    return ModelShape(
        model_type=model_type,
        num_layers=num_layers,
        hidden_size=size.hidden_size,
        intermediate_size=_widest(config, size.hidden_size),
        num_attention_heads=size.num_heads,
        head_dim=size.head_dim,
        vocab_size=vocab_size,
        max_model_len=config.optional("max_position_embeddings", "n_positions"),
        dtype=_dtype(config) or _dtype(whole) or "bfloat16",
        caches=tuple(CacheGroup(cache, count) for cache, count in caches.items()),
        parameters=parameters,
        experts=experts,
        quantization=quantization_of(whole) or quantization_of(config),
        num_draft_layers=num_drafts,
    )


def _widest(config: ConfigFields, hidden_size: int) -> int:
    if sizes := [each for each in config.items("intermediate_size") if isinstance(each, int)]:
        return max(sizes)
    return config.integer("intermediate_size", default=4 * hidden_size)


@dataclass(frozen=True, slots=True)
class _MLP:
    """What follows attention in a layer: a dense MLP, routed experts, or both."""

    model_type: str
    family: Family
    config: ConfigFields
    hidden_size: int
    experts: Experts | None

    def dense_of(self, layer: int) -> int:
        if not self._has_mlp(layer):
            return 0
        if self._is_moe(layer):
            return self._matrices(self._shared_size())
        if blocks := self.config.items("block_configs"):
            return self._matrices(self._block_size(blocks[layer]))
        return self._matrices(self._own_size(layer))

    def experts_of(self, layer: int) -> int:
        if self.experts is None or not self._is_moe(layer):
            return 0
        width = self.config.integer("moe_latent_size", default=self.hidden_size)
        one = self.family.mlp_matrices * width * self.experts.intermediate_size
        return self.experts.num_experts * one

    def router_of(self, layer: int) -> int:
        if self.experts is None or not self._is_moe(layer):
            return 0
        latent = self.config.optional("moe_latent_size")
        projections = 2 * self.hidden_size * latent if latent else 0
        return self.hidden_size * self.experts.num_experts + projections

    def _matrices(self, intermediate_size: int) -> int:
        return self.family.mlp_matrices * self.hidden_size * intermediate_size

    def _own_size(self, layer: int) -> int:
        """Of a dense MLP; Gemma 3n lists one for each layer."""
        if sizes := self.config.items("intermediate_size"):
            own = dict(enumerate(sizes)).get(layer)
            return ConfigFields({"intermediate_size": own}, self.config.where).integer(
                "intermediate_size"
            )
        if self.model_type == "granitemoehybrid":
            return self.config.integer("shared_intermediate_size")
        usual = None if self.model_type not in ("gpt2", "falcon") else 4 * self.hidden_size
        return self.config.integer(
            "intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size",
            default=usual,
        )  # fmt: skip

    def _block_size(self, block: object) -> int:
        """Nemotron NAS: a multiple of 256 near 2/3 of `ffn_mult` hidden sizes."""
        ffn = block.get("ffn") if isinstance(block, dict) else None
        factor = ffn.get("ffn_mult") if isinstance(ffn, dict) else None
        if not isinstance(factor, int | float):
            return 0
        return -(-int(2 * factor * self.hidden_size / 3) // 256) * 256

    def _shared_size(self) -> int:
        """Of the experts that every token passes."""
        config = self.config
        if self.model_type in ("llama4", "gemma4"):
            return config.integer("intermediate_size")
        shared = config.count("shared_expert_intermediate_size", "shared_intermediate_size")
        if shared or self.experts is None:
            return shared
        if self.model_type == "xverse":
            return 2 * self.experts.intermediate_size
        count = config.count("n_shared_experts", "num_shared_experts")
        if "moe_shared_expert_intermediate_size" in config:
            return config.integer("moe_shared_expert_intermediate_size")
        return count * self.experts.intermediate_size

    def _has_mlp(self, layer: int) -> bool:
        """Nemotron-H alternates: a layer has a mixer or an MLP."""
        if not self.family.mlp_matrices:
            return False
        pattern = self.config.text("hybrid_override_pattern")
        return pattern is None or pattern[layer] in "-E"

    def _is_moe(self, layer: int) -> bool:
        if self.experts is None or not self._has_mlp(layer):
            return False
        config = self.config
        if pattern := config.text("hybrid_override_pattern"):
            return pattern[layer] == "E"
        if "expert_layer_period" in config:
            period = config.integer("expert_layer_period")
            return layer % period == config.count("expert_layer_offset", default=period - 1)
        step = config.integer("interleave_moe_layer_step", "decoder_sparse_step", default=1)
        first_dense = config.count("first_k_dense_replace")
        is_listed = layer in config.items("mlp_only_layers")
        return layer >= first_dense and (layer + 1) % step == 0 and not is_listed


def _experts(config: ConfigFields, family: Family) -> Experts | None:
    count = config.count("n_routed_experts", "num_experts", "num_local_experts")
    if not family.moe or count <= 1:
        return None
    return Experts(
        count,
        config.integer("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
        config.integer("moe_intermediate_size", "intermediate_size"),
    )


def _text_part(config: ConfigFields) -> ConfigFields:
    """The language model of a config that also describes pictures or sound."""
    for name in _TEXT_PARTS:
        if inner := config.inner(name):
            return inner
    return config


def _vision(config: ConfigFields, hidden_size: int) -> int:
    """Weights of a vision tower, from its usual fields; a few per cent off."""
    vision = config.inner("vision_config")
    if vision is None:
        return 0
    depth = vision.optional("depth", "num_hidden_layers", "layers") or 0
    width = vision.optional("embed_dim", "hidden_size", "width") or 0
    if vision.text("model_type") == "qwen2_5_vl":
        width = vision.integer("hidden_size")
    mlp = vision.optional("intermediate_size") or 4 * width
    matrices = 3 if vision.text("hidden_act") == "silu" else 2
    return depth * (4 * width * width + matrices * width * mlp) + 4 * width * hidden_size


def _draft_layers(config: ConfigFields) -> int:
    return config.count("num_nextn_predict_layers", "mtp_num_hidden_layers")


def _dtype(config: ConfigFields) -> str | None:
    return config.text("dtype") or config.text("torch_dtype")
