"""Converting a GGUF to the engine's folder: once, whole, and with errors that name the file."""

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.engine.convert import ConversionError, converter_version
from carpool.engine.resolve import resolve
from carpool.models.cache import CacheError, ModelCache
from carpool.models.resolved import ResolvedModel, missing_files, read_manifest
from carpool.models.spec import GGUF_MATRIX_TYPES, UnsupportedModel

Write = Callable[..., Path]
Fake = Callable[..., None]


@pytest.mark.parametrize("quantisation", GGUF_MATRIX_TYPES)
def test_every_supported_quantization_converts(
    cache: ModelCache, write_gguf: Write, quantisation: str
) -> None:
    path = write_gguf(quantisation=quantisation)
    model = resolve(str(path), cache)
    assert (model.name, model.spec.quantization) == ("tiny", quantisation)
    assert missing_files(model.folder) == []
    assert not list(path.parent.glob("openvino*")), "nothing is written beside the user's file"


def test_a_second_resolve_reads_what_the_first_made(cache: ModelCache, write_gguf: Write) -> None:
    path = write_gguf()
    first = resolve(str(path), cache)
    said: list[str] = []
    second = resolve(str(path), cache, lambda what, done, total: said.append(what))
    assert (second, said) == (first, [])
    assert resolve("tiny", cache) == first, "by name, too"
    path.rename(path.with_name("other.gguf"))
    assert resolve(str(path.with_name("other.gguf")), cache).folder == first.folder


def test_manifest_and_files_survive_a_round_trip(cache: ModelCache, write_gguf: Write) -> None:
    model = resolve(str(write_gguf()), cache)
    assert read_manifest(model.folder) == model
    assert model.tokenizer.chat_template == "{{ messages }}"
    assert model.tokenizer.eos_token_ids == (0,)


SCRIPT = """
import sys
from carpool.engine.resolve import resolve
print("up", flush=True)
sys.stdin.readline()
model = resolve(sys.argv[1], report=lambda what, done, total: print(what, flush=True))
print("folder", model.folder, flush=True)
"""


def test_two_processes_convert_once(cache: ModelCache, write_gguf: Write) -> None:
    path = write_gguf()
    environ = os.environ | {"CARPOOL_HOME": str(cache.home)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(path)],
            env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert sum("converting" in output for output in outputs) == 1
    folders = {output.splitlines()[-1] for output in outputs}
    assert folders == {f"folder {folder}" for folder in (cache.home / "converted").iterdir()}


def damage(folder: Path, what: str) -> None:
    if what == "no manifest":
        (folder / "carpool.json").unlink()
    elif what == "cut manifest":
        (folder / "carpool.json").write_text((folder / "carpool.json").read_text()[:100])
    elif what == "older format":
        fields = json.loads((folder / "carpool.json").read_text())
        (folder / "carpool.json").write_text(json.dumps(fields | {"format": 0}))
    else:
        (folder / what).write_bytes(b"")


@pytest.mark.parametrize(
    "what", ["no manifest", "cut manifest", "older format", "openvino_model.bin"]
)
def test_a_half_made_folder_is_never_used(
    cache: ModelCache, write_gguf: Write, fake_conversion: Fake, what: str
) -> None:
    path = write_gguf()
    fake_conversion()
    folder = resolve(str(path), cache).folder
    damage(folder, what)
    leftover = folder.parent / f".tmp-{folder.name}-1"
    leftover.mkdir()
    assert read_manifest(folder) is None
    assert cache.models() == []
    again = resolve(str(path), cache)
    assert read_manifest(again.folder) == again
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_interrupted_conversion_leaves_nothing(
    cache: ModelCache, write_gguf: Write, fake_conversion: Fake
) -> None:
    fake_conversion(error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        resolve(str(write_gguf()), cache)
    assert list((cache.home / "converted").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"returncode": 1, "stderr": "Traceback\n\nRuntimeError: no such op\n"}, "no such op"),
        ({"returncode": 1}, "exit code 1"),
        ({"returncode": -9}, "killed by signal 9, it needs about .* MB of memory"),
        ({"skip": ("openvino_model.bin",)}, "wrote no openvino_model.bin; is the disk full"),
    ],
)
def test_failed_conversion_says_why(
    cache: ModelCache,
    write_gguf: Write,
    fake_conversion: Fake,
    options: dict[str, object],
    message: str,
) -> None:
    path = write_gguf()
    fake_conversion(**options)
    with pytest.raises(ConversionError, match=rf"tiny\.gguf: .*{message}"):
        resolve(str(path), cache)
    assert list((cache.home / "converted").iterdir()) == []


def test_unsupported_models_are_refused_before_conversion(
    cache: ModelCache, write_gguf: Write
) -> None:
    with pytest.raises(UnsupportedModel, match="phi3"):
        resolve(str(write_gguf(architecture="phi3")), cache)
    assert not (cache.home / "converted").exists()


def test_a_full_disk_is_seen_first(
    cache: ModelCache, write_gguf: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = types.SimpleNamespace(free=0)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(CacheError, match=r"converting tiny needs 2 MB of disk, .* make room"):
        resolve(str(write_gguf()), cache)


@pytest.mark.model
def test_the_demo_model(resolved_model: ResolvedModel) -> None:
    assert resolved_model.folder.name.endswith(converter_version())
    spec = resolved_model.spec
    assert (spec.num_parameters, spec.max_model_len) == (134_515_008, 8192)
    assert (spec.num_layers, spec.num_key_value_heads, spec.head_dim) == (30, 3, 64)
    tokenizer = resolved_model.tokenizer
    assert (tokenizer.eos_token_ids, tokenizer.eos_token) == ((2, 0), "<|im_end|>")
    assert tokenizer.chat_template is not None
    assert len(tokenizer.special_token_ids) == 17
