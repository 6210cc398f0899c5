"""What a person may type, and what is said when nothing answers to it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.engine.convert import ConversionError
from carpool.engine.inventory import inventory, remove
from carpool.engine.resolve import UnknownModel, resolve
from carpool.errors import CarpoolError
from carpool.models.cache import ModelCache
from carpool.models.gguf import GGUFError
from carpool.models.ir_folder import IncompleteModel
from carpool.models.json_file import BadJSON
from carpool.models.spec import UnsupportedModel

MakeFolder = Callable[..., Path]


def test_an_ir_folder_is_used_where_it_lies(cache: ModelCache, ir_folder: MakeFolder) -> None:
    folder = ir_folder()
    model = resolve(str(folder), cache)
    assert (model.name, model.folder) == ("exported", folder)
    assert (model.spec.architecture, model.spec.head_dim) == ("qwen2", 2)
    assert model.tokenizer.eos_token_ids == (2,)
    assert not cache.home.exists()


def test_an_ir_folder_tells_its_weight_format(cache: ModelCache, ir_folder: MakeFolder) -> None:
    folder = ir_folder()
    (folder / "openvino_config.json").write_text(
        json.dumps({"quantization_config": {"bits": 8}, "dtype": "int8"})
    )
    assert resolve(str(folder), cache).spec.quantization == "INT8"


@pytest.mark.parametrize(
    ("file", "error", "message"),
    [
        ("openvino_model.bin", IncompleteModel, "openvino_model.bin missing or empty"),
        ("openvino_tokenizer.xml", IncompleteModel, "openvino_tokenizer.xml missing or empty"),
        ("config.json", BadJSON, "config.json: no such file"),
    ],
)
def test_an_ir_folder_that_lacks_a_file(
    cache: ModelCache, ir_folder: MakeFolder, file: str, error: type[Exception], message: str
) -> None:
    folder = ir_folder()
    (folder / file).unlink()
    with pytest.raises(error, match=message):
        resolve(str(folder), cache)


def test_an_ir_folder_of_an_unknown_architecture(cache: ModelCache, ir_folder: MakeFolder) -> None:
    with pytest.raises(UnsupportedModel, match=r"'mamba' is not supported; supported: llama"):
        resolve(str(ir_folder(model_type="mamba")), cache)


def test_a_checkpoint_needs_the_exporter(cache: ModelCache, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ConversionError, match=r"pip install 'carpool\[export\]'"):
        resolve(str(tmp_path), cache)


def test_a_folder_without_a_model(cache: ModelCache, tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="no model in this folder"):
        resolve(str(tmp_path), cache)
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(UnknownModel, match=r"it holds a\.gguf: give the path"):
        resolve(str(tmp_path), cache)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2-135m", r"no model named 'smolm2-135m' \(did you mean 'smollm2-135m'\?\)"),
        ("zzz", r"no model named 'zzz'; give one of smollm2-135m, the path"),
        ("./none.gguf", "none.gguf: no such file"),
        ("/none/such", "/none/such: no such file"),
        ("none.gguf", "none.gguf: no such file"),
        ("", "no model"),
    ],
)
def test_a_name_that_nothing_answers_to(cache: ModelCache, name: str, message: str) -> None:
    with pytest.raises(CarpoolError, match=message):
        resolve(name, cache)


def test_a_file_that_is_no_gguf(cache: ModelCache, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(GGUFError, match=r"notes\.txt: not a GGUF file"):
        resolve(str(tmp_path / "notes.txt"), cache)


def test_two_models_of_one_name_are_told_apart(
    cache: ModelCache,
    write_gguf: MakeFolder,
    tmp_path: Path,
    fake_conversion: Callable[..., None],
) -> None:
    fake_conversion()
    (tmp_path / "b").mkdir()
    for path in (write_gguf("a.gguf"), write_gguf("b/a.gguf", quantisation="Q8_0")):
        resolve(str(path), cache)
    with pytest.raises(UnknownModel, match=r"'a' names several models.*a\.gguf.*a\.gguf"):
        resolve("a", cache)


def test_inventory_and_removal(
    cache: ModelCache, write_gguf: MakeFolder, fake_conversion: Callable[..., None]
) -> None:
    fake_conversion()
    assert [(row["name"], row["status"]) for row in inventory(cache)] == [
        ("smollm2-135m", "not fetched")
    ]
    with pytest.raises(UnknownModel, match="it is empty"):
        remove(cache, "smollm2-135m")
    model = resolve(str(write_gguf()), cache)
    row = inventory(cache)[1]
    assert (row["name"], row["status"], row["quantization"]) == ("tiny", "ready", "F16")
    with pytest.raises(UnknownModel, match=r"did you mean 'tiny'\?"):
        remove(cache, "tinny")
    assert remove(cache, "tiny") == row["bytes_on_disk"] > 0
    assert not model.folder.exists()
    assert len(inventory(cache)) == 1


def test_a_cached_model_of_an_older_converter_is_made_anew(
    cache: ModelCache,
    write_gguf: MakeFolder,
    fake_conversion: Callable[..., None],
) -> None:
    fake_conversion()
    model = resolve(str(write_gguf()), cache)
    older = model.folder.with_name(f"{model.source_sha256}-0-2025.1")
    model.folder.rename(older)
    assert resolve("tiny", cache) == model
    assert resolve("tiny", cache) == model
    assert [row["name"] for row in inventory(cache)] == ["smollm2-135m", "tiny"]
