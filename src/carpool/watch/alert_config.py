"""The section [alerts] of a gateway's configuration, and the destinations that it names.

The tables have the fields of AlertsConfig and of what it holds; docs/alerts.md has an example.
"""

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from carpool.watch.alert_rules import AlertRule, RuleConfig, rules_with
from carpool.watch.chat_shapes import Shape
from carpool.watch.courier import Destination
from carpool.watch.log_lines import LogLines
from carpool.watch.mail import Mail, MailSecurity
from carpool.watch.secret_source import AlertConfigError, read_secret
from carpool.watch.severity import Severity
from carpool.watch.webhook import Webhook

_PORTS = {MailSecurity.STARTTLS: 587, MailSecurity.TLS: 465, MailSecurity.NONE: 25}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """The URL is a secret: whoever has it can write there."""

    name: str
    shape: Shape = Shape.JSON
    url_env: str | None = None
    url_file: Path | None = None
    secret_env: str | None = None
    secret_file: Path | None = None
    ca_file: Path | None = None
    min_severity: Severity = Severity.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailConfig:
    name: str
    host: str
    sender: str
    recipients: tuple[str, ...]
    security: MailSecurity = MailSecurity.STARTTLS
    port: int | None = None
    user: str | None = None
    password_env: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    min_severity: Severity = Severity.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsConfig:
    """`repeat_s`: how often an alert that goes on is told again. The log is always told."""

    repeat_s: float = 4 * 3600.0
    rules: dict[str, RuleConfig] = field(default_factory=dict)
    webhooks: tuple[WebhookConfig, ...] = ()
    emails: tuple[EmailConfig, ...] = ()

    def __post_init__(self) -> None:
        """Raises AlertConfigError."""
        if not 60 <= self.repeat_s <= 30 * 86_400:
            raise AlertConfigError(
                f"repeat_s is {self.repeat_s:g}, but must be 60 to 2592000 seconds"
            )
        rules_with(self.rules)
        names = [
            "log",
            *(hook.name for hook in self.webhooks),
            *(mail.name for mail in self.emails),
        ]
        for name in names:
            if names.count(name) > 1:
                raise AlertConfigError(f"two destinations of alerts are called {name!r:.60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSetup:
    """What a gateway needs for alerts."""

    rules: Mapping[str, AlertRule]
    repeat_s: float
    destinations: Sequence[Destination]


def set_up_alerts(config: AlertsConfig, environ: Mapping[str, str] = os.environ) -> AlertSetup:
    """Reads the secrets. Raises AlertConfigError."""
    return AlertSetup(
        rules=rules_with(config.rules),
        repeat_s=config.repeat_s,
        destinations=[
            LogLines(),
            *(_webhook(each, environ) for each in config.webhooks),
            *(_mail(each, environ) for each in config.emails),
        ],
    )


def _webhook(config: WebhookConfig, environ: Mapping[str, str]) -> Webhook:
    what = f"webhook {config.name}"
    secret = None
    if config.secret_env is not None or config.secret_file is not None:
        secret = read_secret(what, "secret", config.secret_env, config.secret_file, environ)
    return Webhook(
        name=config.name,
        shape=config.shape,
        url=read_secret(what, "url", config.url_env, config.url_file, environ),
        secret=secret,
        min_severity=config.min_severity,
        ca_file=_checked(what, config.ca_file),
    )


def _mail(config: EmailConfig, environ: Mapping[str, str]) -> Mail:
    what = f"email {config.name}"
    password = None
    if config.password_env is not None or config.password_file is not None:
        password = read_secret(what, "password", config.password_env, config.password_file, environ)
    return Mail(
        name=config.name,
        host=config.host,
        port=config.port or _PORTS[config.security],
        security=config.security,
        sender=config.sender,
        recipients=config.recipients,
        user=config.user,
        password=password,
        min_severity=config.min_severity,
        ca_file=_checked(what, config.ca_file),
    )


def _checked(what: str, ca_file: Path | None) -> Path | None:
    if ca_file is None:
        return None
    try:
        ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = error.strerror or "it holds no certificate in PEM"
        raise AlertConfigError(f"{what}: ca_file {ca_file}: {reason}") from None
    return ca_file
