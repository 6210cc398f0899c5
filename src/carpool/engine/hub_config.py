"""The config.json of a model on the hub, without its weights."""

from importlib.util import find_spec
from pathlib import Path

from carpool.engine.fetch import FetchError


def fetch_config(hub_id: str) -> Path:
    """The file in the hub's own cache. Raises `FetchError` where there is no client, no
    network or no such repository."""
    ways_out = (
        "give the path of its config.json or folder, or a name of the catalogue "
        "(carpool plan --models lists it)"
    )
    if find_spec("huggingface_hub") is None:
        raise FetchError(
            f"{hub_id}: not in the catalogue, and the hub needs a client: "
            f"pip install 'carpool[hub]'; or {ways_out}"
        )
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(hub_id, "config.json"))
    except (OSError, huggingface_hub.errors.HfHubHTTPError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FetchError(
            f"{hub_id}: the hub cannot be reached or does not have it ({reason}); {ways_out}"
        ) from None
