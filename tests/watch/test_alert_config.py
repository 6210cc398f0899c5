"""The section [alerts]: what it takes, and what it says of what it does not take."""

from pathlib import Path

import pytest

from carpool.gateway.config_file import ConfigFileError, read_config
from carpool.watch.alert_config import AlertsConfig, EmailConfig, WebhookConfig, set_up_alerts
from carpool.watch.alert_rules import DEFAULT_RULES
from carpool.watch.mail import Mail, MailSecurity
from carpool.watch.secret_source import AlertConfigError
from carpool.watch.severity import Severity
from carpool.watch.webhook import Webhook

MODEL = '[[models]]\nname = "m"\n'
URL = "https://hooks.example.org/services/T0K3N"


def read(tmp_path: Path, text: str) -> AlertsConfig:
    path = tmp_path / "carpool.toml"
    path.write_text(MODEL + text)
    return read_config(path).alerts


def test_without_a_section_the_log_is_told_by_the_usual_rules(tmp_path):
    setup = set_up_alerts(read(tmp_path, ""))
    assert [each.name for each in setup.destinations] == ["log"]
    assert setup.rules == DEFAULT_RULES


def test_a_whole_section(tmp_path):
    password = tmp_path / "password"
    password.write_text("pa55\n")
    config = read(
        tmp_path,
        f"""
        [alerts]
        repeat_s = 600
        [alerts.rules.ttft_climb]
        for_s = 60
        severity = "critical"
        [alerts.rules.bursts]
        enabled = false
        [[alerts.webhooks]]
        name = "team"
        shape = "feishu"
        url_env = "FEISHU_URL"
        secret_env = "FEISHU_SECRET"
        min_severity = "info"
        [[alerts.emails]]
        name = "ops"
        host = "smtp.example.org"
        sender = "carpool@example.org"
        recipients = ["ops@example.org"]
        user = "carpool"
        password_file = "{password}"
        """,
    )
    setup = set_up_alerts(config, {"FEISHU_URL": URL, "FEISHU_SECRET": "s3cret"})
    log, team, ops = setup.destinations
    assert (log.name, setup.repeat_s) == ("log", 600)
    assert isinstance(team, Webhook)
    assert (team.url, team.secret, team.min_severity) == (URL, "s3cret", Severity.INFO)
    assert isinstance(ops, Mail)
    assert (ops.port, ops.password, ops.min_severity) == (587, "pa55", Severity.WARNING)
    assert setup.rules["ttft_climb"].for_s == 60
    assert setup.rules["ttft_climb"].resolve_s == DEFAULT_RULES["ttft_climb"].resolve_s
    assert "bursts" not in setup.rules
    assert "T0K3N" not in repr(config)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[alerts]\nrepeat_s = 1", "repeat_s is 1, but must be 60"),
        ("[alerts]\nwho = 1", "there is no setting alerts.who"),
        ("[alerts.rules.typo]\nfor_s = 1", "there is no rule 'typo'; there are: model_down"),
        ("[alerts.rules.bursts]\nfor_s = -1", "for_s is -1, but must be 0 to 604800"),
        ("[alerts.rules.bursts]\nfor_s = nan", "for_s is nan"),
        ("[[alerts.webhooks]]\nname = 'log'", "two destinations of alerts are called 'log'"),
        ("[[alerts.webhooks]]\nname = 'a'\nshape = 'irc'", "shape"),
        ("[[alerts.webhooks]]\nname = 'a'\nurl = 'https://x/T0K3N'", "there is no setting"),
        ("[[alerts.emails]]\nname = 'a'", "host is missing"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, text, says):
    with pytest.raises(ConfigFileError, match=r"carpool\.toml") as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "T0K3N" not in str(caught.value)


def hook(**fields) -> AlertsConfig:
    return AlertsConfig(webhooks=(WebhookConfig(**{"name": "team", "url_env": "URL"} | fields),))


def email(**fields) -> AlertsConfig:
    options = {"name": "ops", "host": "mail.example.org", "sender": "a@example.org"}
    return AlertsConfig(emails=(EmailConfig(**options | {"recipients": ("b@c.org",)} | fields),))


@pytest.mark.parametrize(
    ("config", "environ", "says"),
    [
        (hook(), {}, "webhook team: the environment variable URL, its url, is empty"),
        (hook(url_env=None), {}, "webhook team: give url_env or url_file, one of them"),
        (hook(url_file=Path("x")), {}, "webhook team: give url_env or url_file, one of them"),
        (hook(url_env=None, url_file=Path("/no/T")), {}, "webhook team: cannot read /no/T"),
        (hook(), {"URL": "T0K3N"}, "webhook team: its URL must be https://host/path"),
        (hook(), {"URL": "https://[T0K3N"}, "webhook team: its URL must be https://host/path"),
        (hook(), {"URL": "https://h:T0K3N/"}, "webhook team: its URL must be https://host/path"),
        (hook(), {"URL": "http://h/T0K3N"}, "must be https: without TLS anybody"),
        (hook(), {"URL": "https://h/T0K3N x"}, "holds a space"),
        (hook(), {"URL": "https://u:T0K3N@h/"}, "must have no user name"),
        (hook(), {"URL": "https://h/\nT0K3N"}, "holds more than one line"),
        (hook(secret_env="S"), {"URL": URL, "S": "T0K3N"}, "json takes no signing secret"),
        (hook(ca_file=Path("/no/ca")), {"URL": URL}, "webhook team: ca_file /no/ca"),
        (email(recipients=()), {}, "email ops has no recipients"),
        (email(recipients=("a@b\nBcc: c@d",)), {}, "is no address"),
        (email(sender="nobody"), {}, "email ops: 'nobody' is no address"),
        (email(security=MailSecurity.NONE), {}, 'security = "none" is for a server'),
        (email(user="a"), {}, "user and its password go together"),
        (email(user="a", password_env="P"), {}, "environment variable P, its password, is empty"),
    ],
)  # fmt: skip
def test_destinations_that_cannot_be_are_said_at_the_start(config, environ, says):
    with pytest.raises(AlertConfigError) as caught:
        set_up_alerts(config, environ)
    assert says in str(caught.value)
    assert "T0K3N" not in str(caught.value)
