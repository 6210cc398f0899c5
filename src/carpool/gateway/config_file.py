"""The models of a gateway and its alerts, from a TOML file.

    [[models]]
    name = "qwen3-8b"
    aliases = ["fast"]
    when_down = "fallback"
    backends = [{engine = "vllm+http://10.0.0.5:8000"}, {engine = "vllm+http://10.0.0.6:8000"}]
    fallback = {url = "https://api.example.com/v1", model = "Qwen/Qwen3-8B", api_key_env = "KEY"}

    [[alerts.webhooks]]
    name = "team"
    shape = "slack"
    url_env = "SLACK_URL"

The tables have the fields of ModelConfig, AlertsConfig and of what they hold.
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic_core import ErrorDetails

from carpool.errors import CarpoolError
from carpool.gateway.model_config import BackendConfig, FallbackConfig, ModelConfig
from carpool.gateway.upstream_errors import Timeouts
from carpool.gateway.waiting_room import QueueLimits
from carpool.store.limits import Limits
from carpool.watch.alert_config import AlertsConfig, EmailConfig, WebhookConfig
from carpool.watch.alert_rules import RuleConfig


class ConfigFileError(CarpoolError):
    """The file cannot be read, or says something that cannot be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """All that is served, and who is told when it does not go well."""

    models: tuple[ModelConfig, ...]
    alerts: AlertsConfig = field(default_factory=AlertsConfig)


_TABLES = (
    *(GatewayConfig, ModelConfig, BackendConfig, FallbackConfig, QueueLimits, Timeouts, Limits),
    *(AlertsConfig, RuleConfig, WebhookConfig, EmailConfig),
)
for _table in _TABLES:
    with_config(ConfigDict(extra="forbid"))(_table)
_ADAPTER = TypeAdapter(GatewayConfig)


def read_config(path: Path) -> GatewayConfig:
    """Raises ConfigFileError, which names the field, its value and what it must be."""
    try:
        with path.open("rb") as file:
            fields = tomllib.load(file)
    except OSError as error:
        raise ConfigFileError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"{path} is no TOML: {error}") from None
    try:
        config = _ADAPTER.validate_python(fields)
    except ValidationError as error:
        raise ConfigFileError(f"{path}: {_told(error.errors()[0])}") from None
    except CarpoolError as error:
        raise ConfigFileError(f"{path}: {error}") from None
    if not config.models:
        raise ConfigFileError(f"{path} names no model; give at least one [[models]]")
    _check_names(path, config)
    return config


def _told(error: ErrorDetails) -> str:
    field = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Input should be ")
    match error["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"there is no setting {field}"
        case "missing":
            return f"{field} is missing"
        case _:
            return f"{field} is {error['input']!r:.100}, but must be {message}"


def _check_names(path: Path, config: GatewayConfig) -> None:
    seen: set[str] = set()
    for model in config.models:
        for name in (model.name, *model.aliases):
            if name in seen:
                raise ConfigFileError(f"{path}: two models are called {name!r}")
            seen.add(name)
