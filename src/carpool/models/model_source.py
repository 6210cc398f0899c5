"""A model to plan for, from what a person has: a folder, a file or a name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from carpool.errors import CarpoolError
from carpool.models.catalogue import did_you_mean
from carpool.models.config_shape import shape_from_config
from carpool.models.gguf_shape import read_split_gguf, shape_from_gguf
from carpool.models.json_file import read_json
from carpool.models.published_models import PublishedModel, find_published, published_names
from carpool.models.resolved import MANIFEST, read_manifest
from carpool.models.safetensors import read_folder_headers
from carpool.models.shape import ModelShape
from carpool.models.stored_weights import StoredTensor, StoredWeights, count_weights


class NoSuchModel(CarpoolError):
    """Neither a path nor a name that is known; the message offers what there is."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`stored` is None where only the shape is known and weights have to be estimated;
    `source` says where the shape is from, for people; `is_assumed` that it is from nowhere."""

    name: str
    shape: ModelShape
    stored: StoredWeights | None
    source: str
    is_assumed: bool = False


def of_catalogue(published: PublishedModel) -> ModelSource:
    shape, source = published.shape, published.source
    return ModelSource(published.id, shape, None, source, published.is_assumed)


def find_model(name: str, fetch_config: Callable[[str], Path | None]) -> ModelSource:
    """`name`: the path of a config.json, of a folder with one (with safetensors or OpenVINO
    files beside it or not) or of a GGUF file, a name of the catalogue, or `org/name` on the
    hub, whose config `fetch_config` brings (None if it cannot).

    Raises `CarpoolError`s only; each says what to do.
    """
    path = Path(name).expanduser()
    if path.exists():
        return read_model(path)
    if published := find_published(name):
        return of_catalogue(published)
    is_path = name.startswith((".", "/", "~")) or name.endswith((".gguf", ".json"))
    if is_path:
        raise NoSuchModel(f"{path}: no such file or folder")
    if name.count("/") == 1 and (config := fetch_config(name)):
        shape = shape_from_config(read_json(config), f"{name}: config.json")
        return ModelSource(name, shape, None, "config.json on the hub")
    hint = did_you_mean(name, [known.lower() for known in published_names()])
    raise NoSuchModel(
        f"no model named {name!r}{hint}; give the path of its config.json, folder or GGUF file, "
        "or a name of the catalogue (carpool plan --models lists it)"
    )


def read_model(path: Path) -> ModelSource:
    """From a file or folder. Raises `CarpoolError`s only."""
    if path.suffix == ".gguf":
        return _from_gguf(path)
    if path.is_file():
        return ModelSource(
            path.parent.absolute().name, _shape(path), None, f"{path.name}, weights estimated"
        )
    if (path / MANIFEST).is_file() and (model := read_manifest(path)):
        return _from_manifest(path, model.name)
    return _from_folder(path)


def _from_gguf(path: Path) -> ModelSource:
    parts = read_split_gguf(path)
    shape = shape_from_gguf(parts[0])
    tensors = [
        StoredTensor(tensor.name, tensor.type.name, tensor.num_bytes, tensor.num_elements)
        for part in parts
        for tensor in part.tensors
    ]
    stored = count_weights(tensors, shape.num_layers)
    return ModelSource(path.stem, shape, stored, "GGUF tensor table")


def _from_folder(folder: Path) -> ModelSource:
    config = folder / "config.json"
    if not config.is_file():
        ggufs = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f"; it holds {', '.join(ggufs)}: give the path of one" if ggufs else ""
        raise NoSuchModel(f"{folder}: no config.json in this folder{hint}")
    shape, name = _shape(config), folder.absolute().name
    weights = folder / "openvino_model.bin"
    if weights.is_file():
        stored = _one_file(weights)
        return ModelSource(name, shape, stored, "config.json and openvino_model.bin")
    headers = read_folder_headers(folder)
    if not headers:
        return ModelSource(name, shape, None, "config.json, weights estimated")
    tensors = [
        StoredTensor(tensor.name, tensor.dtype, tensor.num_bytes, _product(tensor.shape))
        for tensor in headers
    ]
    stored = count_weights(tensors, shape.num_layers)
    return ModelSource(name, shape, stored, "config.json and safetensors headers")


def _from_manifest(folder: Path, name: str) -> ModelSource:
    """A folder that Carpool converted: its spec is in carpool.json."""
    model = read_manifest(folder)
    if model is None:
        raise NoSuchModel(f"{folder}: {MANIFEST} is not whole; convert the model again")
    spec = model.spec
    query = 2 * spec.num_attention_heads * spec.head_dim
    attention = spec.hidden_size * (query + 2 * spec.num_key_value_heads * spec.head_dim)
    tables = spec.vocab_size * spec.hidden_size
    mlp = max(1, (spec.num_parameters - tables) // spec.num_layers - attention)
    config = {
        "model_type": spec.architecture,
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": max(1, mlp // (3 * spec.hidden_size)),
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_model_len,
        "tie_word_embeddings": True,
    }
    shape = shape_from_config(config, str(folder / MANIFEST))
    return ModelSource(name, shape, _one_file(folder / "openvino_model.bin"), MANIFEST)


def _one_file(weights: Path) -> StoredWeights:
    size = weights.stat().st_size
    return count_weights([StoredTensor("all", "OpenVINO IR", size, 0)], 1)


def _shape(config: Path) -> ModelShape:
    return shape_from_config(read_json(config), str(config))


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product
