"""From a GGUF or a Hugging Face folder to the OpenVINO IR folder that the engine loads.

The work is done in a child process: OpenVINO writes beside the file it is given, and
holds the whole model in memory until its process ends.
"""

import dataclasses
import subprocess
import sys
from importlib.metadata import version as package_version
from importlib.util import find_spec
from pathlib import Path

from carpool.engine.report import Report, silent, waiting
from carpool.errors import CarpoolError
from carpool.models.cache import ModelCache, megabytes
from carpool.models.gguf import read_gguf
from carpool.models.ir_folder import read_ir_folder
from carpool.models.resolved import (
    IR_FILES,
    MODEL_FILES,
    ResolvedModel,
    missing_files,
    read_manifest,
    write_manifest,
)
from carpool.models.spec import spec_from_gguf
from carpool.models.tokenizer_config import tokenizer_from_gguf

CONVERTER_VERSION = 3
"""Raise it when carpool.json or the folder changes; old folders are then made anew."""


class ConversionError(CarpoolError):
    """OpenVINO could not convert the model."""


def converter_version() -> str:
    return f"{CONVERTER_VERSION}-{package_version('openvino-genai')}"


def convert_gguf(
    cache: ModelCache, path: Path, sha256: str, name: str, source: str, report: Report = silent
) -> ResolvedModel:
    """Convert a GGUF whose bytes hash to `sha256`, once per cache.

    Raises `GGUFError`, `UnsupportedModel`, `CacheError` or `ConversionError`.
    """
    target = cache.converted(sha256, converter_version())
    if model := read_manifest(target):
        return model
    gguf = read_gguf(path)
    spec, tokenizer = spec_from_gguf(gguf), tokenizer_from_gguf(gguf)
    with cache.lock(target, waiting(report, name)) as lock:
        if model := read_manifest(target):
            return model
        report(f"converting {name}", 0, 0)
        cache.require_space(2 * spec.weight_bytes, f"converting {name}")
        with cache.making(target) as folder:
            link = folder / "model.gguf"
            link.symlink_to(path.absolute())
            _convert_in_child(path, link, spec.weight_bytes, lock)
            result = folder / "result"
            result.mkdir()
            for file_name in IR_FILES:
                (folder / file_name).rename(result / file_name)
            write_manifest(ResolvedModel(name, result, spec, tokenizer, source, sha256))
            cache.publish(result, target)
    return ResolvedModel(name, target, spec, tokenizer, source, sha256)


def export_huggingface(
    cache: ModelCache, source: Path, sha256: str, name: str, report: Report = silent
) -> ResolvedModel:
    """Export a Hugging Face folder with optimum-cli, once per cache.

    Raises `ConversionError` when the `export` extra is missing or the export fails, and what
    `read_ir_folder` raises for what came out.
    """
    target = cache.converted(sha256, f"{CONVERTER_VERSION}-optimum")
    if model := read_manifest(target):
        return model
    if find_spec("optimum") is None or find_spec("optimum.intel") is None:
        raise ConversionError(
            f"{source}: a Hugging Face checkpoint must be exported first; "
            "install the exporter with: pip install 'carpool[export]'"
        )
    with cache.lock(target, waiting(report, name)) as lock:
        if model := read_manifest(target):
            return model
        report(f"exporting {name}", 0, 0)
        with cache.making(target) as folder:
            result = folder / "result"
            command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino"]
            command += ["--task", "text-generation-with-past", "--weight-format", "fp16"]
            _run([*command, "--model", str(source), str(result)], source, 0, lock)
            model = read_ir_folder(result, name, str(source), sha256)
            write_manifest(model)
            cache.publish(result, target)
    return dataclasses.replace(model, folder=target)


def _convert_in_child(path: Path, link: Path, weight_bytes: int, lock: int) -> None:
    command = [sys.executable, "-m", "carpool.engine.convert", str(link)]
    # The library holds the file, the unpacked weights and the graph at once.
    _run(command, path, 4 * weight_bytes, lock)
    _require_whole(link.parent, path)


def _run(command: list[str], source: Path, needed_bytes: int, lock: int) -> None:
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, pass_fds=[lock]
    )
    if done.returncode == 0:
        return
    if done.returncode < 0:
        memory = f", it needs about {megabytes(needed_bytes)} of memory" if needed_bytes else ""
        raise ConversionError(
            f"{source}: the conversion was killed by signal {-done.returncode}{memory}"
        )
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reason = lines[-1] if lines else f"exit code {done.returncode}"
    raise ConversionError(f"{source}: OpenVINO cannot convert it: {reason}")


def _require_whole(folder: Path, source: Path) -> None:
    if missing := missing_files(folder):
        raise ConversionError(
            f"{source}: the conversion wrote no {', '.join(missing)}; is the disk full?"
        )


def main(arguments: list[str]) -> None:
    """Write the IR of one GGUF beside it."""
    import openvino_genai

    from carpool.engine.zero_points import restore_zero_points

    gguf = Path(arguments[0])
    openvino_genai.LLMPipeline(gguf, "CPU", enable_save_ov_model=True)
    restore_zero_points(gguf.with_name(MODEL_FILES[0]), gguf)


if __name__ == "__main__":
    main(sys.argv[1:])
