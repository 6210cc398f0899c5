"""Models from the Hugging Face hub, kept in the hub's own cache."""

from importlib.util import find_spec
from pathlib import Path

from carpool.engine.fetch import FetchError
from carpool.engine.report import Report, silent

IR_PATTERNS = ["*.xml", "*.bin", "*.json", "*.jinja", "*.model", "*.txt"]
CHECKPOINT_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]


def fetch_from_hub(hub_id: str, report: Report = silent) -> Path:
    """`org/name` or `org/name:FILE.gguf` -> the GGUF file, or the folder of a whole model.

    Raises `FetchError`: extra not installed, hub not reached, no such repository or file,
    several GGUF files to choose from, or nothing the engine can use.
    """
    if find_spec("huggingface_hub") is None:
        raise FetchError(
            f"{hub_id}: no such path, and a hub id needs the hub client; install it with: "
            "pip install 'carpool[hub]'"
        )
    import huggingface_hub

    repository, _, file_name = hub_id.partition(":")
    report(f"fetching {hub_id}", 0, 0)
    try:
        files = huggingface_hub.HfApi().list_repo_files(repository)
        wanted = _choose(repository, file_name, files)
        if wanted is not None:
            return Path(huggingface_hub.hf_hub_download(repository, wanted))
        is_ir = "openvino_model.xml" in files
        patterns = IR_PATTERNS if is_ir else CHECKPOINT_PATTERNS
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=patterns))
    except (OSError, huggingface_hub.errors.HfHubHTTPError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FetchError(
            f"{hub_id}: the hub cannot be reached or does not have it ({reason}); "
            "fetch the model elsewhere and give its path"
        ) from None


def _choose(repository: str, file_name: str, files: list[str]) -> str | None:
    """The one GGUF to fetch, or None for the whole repository."""
    ggufs = sorted(file for file in files if file.endswith(".gguf"))
    if file_name:
        if file_name not in files:
            raise FetchError(f"{repository} has no {file_name}; it has {_listed(ggufs)}")
        return file_name
    if "openvino_model.xml" in files:
        return None
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        raise FetchError(
            f"{repository} has several GGUF files; name one, as in "
            f"{repository}:{ggufs[0]}; it has {_listed(ggufs)}"
        )
    if any(file.endswith(".safetensors") for file in files):
        return None
    raise FetchError(f"{repository} has neither GGUF, OpenVINO IR nor safetensors files")


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "no GGUF files"
