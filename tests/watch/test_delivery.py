"""Webhooks and mail, against servers on this machine that behave as servers do."""

import json
import socket
import ssl
import subprocess
from email import message_from_string, policy
from pathlib import Path

import pytest
from scripted_server import Posts, SmtpServer, http_answer, scripted

from carpool.watch.alert import Alert, AlertState, Change, ChangeKind
from carpool.watch.chat_shapes import Shape, sign_dingtalk, sign_feishu
from carpool.watch.courier import DeliveryFailed, DeliveryRefused
from carpool.watch.mail import Mail, MailSecurity
from carpool.watch.notice import Notice
from carpool.watch.severity import Severity
from carpool.watch.webhook import Webhook

NOW = 1_800_000_000.0
NAUGHTY = "Ana\r\nBcc: all@example.org\x1b[2J\u202e <!channel> @all \U0001f600"
SECRET_PATH = "/hook/T0K3N"


def notice(subject: str = NAUGHTY, **fields) -> Notice:
    alert = Alert(
        rule="context_creep",
        severity=Severity.WARNING,
        model="team-model",
        subject=subject,
        summary="prompts grew from 400 to 1,900 tokens since Monday",
        remedies=("cap the context at 2,048 tokens: 12 at once become 31", "add a GPU"),
        state=AlertState.FIRING,
        since=NOW - 600,
        fired_at=NOW,
    )
    return Notice((Change(ChangeKind.FIRING, alert),), NOW)


def webhook(port: int, **fields) -> Webhook:
    options = {"name": "team", "shape": Shape.JSON, "timeout_s": 5.0, "clock": lambda: NOW}
    options |= {"url": f"http://127.0.0.1:{port}{SECRET_PATH}?a=b"}
    return Webhook(**options | fields)


def mail(port: int, **fields) -> Mail:
    options = {
        "name": "ops",
        "host": "127.0.0.1",
        "port": port,
        "security": MailSecurity.NONE,
        "sender": "carpool@example.org",
        "recipients": ("ops@example.org", "boss@example.org"),
        "timeout_s": 5.0,
        "clock": lambda: NOW,
    }
    return Mail(**options | fields)


def sent(shape: Shape, answer: str = "", secret: str | None = None) -> tuple[str, dict]:
    """The head and the body of what a webhook of that shape gets."""
    posts = Posts(http_answer(200, answer))
    with scripted(posts) as server:
        webhook(server.port, shape=shape, secret=secret).send(notice())
    (post,) = posts.seen
    return post.head, json.loads(post.body)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A certificate of localhost with its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", path, "-out", f"{path}.crt"),
        ],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.fixture
def tls(certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


# ---------------------------------------------------------------------- webhooks


def test_generic_json_has_the_alert_field_by_field():
    head, body = sent(Shape.JSON)
    assert head.startswith(f"POST {SECRET_PATH}?a=b HTTP/1.1")
    (alert,) = body["alerts"]
    assert body["version"] == 1
    assert alert["change"] == "firing"
    assert alert["rule"] == "context_creep"
    assert alert["severity"] == "warning"
    assert alert["fired_at"] == NOW
    assert alert["remedies"][1] == "add a GPU"
    assert len(alert["fingerprint"]) == 16


def test_slack_gets_text_that_calls_nobody():
    _, body = sent(Shape.SLACK, "ok")
    assert body["text"].startswith("Carpool [warning] firing: context creep (team-model, Ana")
    assert "<" not in body["text"]
    assert "cap the context at 2,048 tokens" in body["text"]


def test_mattermost_gets_text_that_calls_nobody():
    _, body = sent(Shape.MATTERMOST, "ok")
    assert "@all" not in body["text"]
    assert "context creep" in body["text"]


def test_feishu_gets_a_signed_post():
    _, body = sent(Shape.FEISHU, '{"code": 0, "msg": "success", "data": {}}', secret="s3cret")
    assert body["timestamp"] == "1800000000"
    assert body["sign"] == sign_feishu("s3cret", "1800000000")
    post = body["content"]["post"]["zh_cn"]
    assert post["title"].startswith("Carpool: firing: context creep")
    assert [line[0]["tag"] for line in post["content"]] == ["text"] * 3


def test_dingtalk_gets_a_signed_text():
    head, body = sent(Shape.DINGTALK, '{"errcode": 0, "errmsg": "ok"}', secret="s3cret")
    target = head.splitlines()[0].split()[1]
    assert target.startswith(f"{SECRET_PATH}?a=b&timestamp=1800000000000&sign=")
    assert body["msgtype"] == "text"
    assert "context creep" in body["text"]["content"]


def test_signatures_are_those_of_the_services():
    """Worked out with openssl: key and text change places between the two."""
    assert sign_feishu("test", "1599360473") == "NVcdmaRhTlOqmXksontxmKEP4AYWAMD5VOczwSqarks="
    assert sign_dingtalk("test", "1599360473") == "7eFsL+dabjOFLb68/A1HbJdOq99+fiadrjdp4D7KY3Y="


@pytest.mark.parametrize("shape", list(Shape))
def test_no_message_has_a_control_character_or_a_mark_that_turns_text(shape):
    answer = '{"code": 0, "errcode": 0}'
    text = json.dumps(sent(shape, answer)[1], ensure_ascii=False)
    texts = [value for value in _strings(json.loads(text)) if "context" in value or "Ana" in value]
    assert texts
    if shape is not Shape.JSON:
        assert all(value.replace("\n", "").replace("@\u200b", "@").isprintable() for value in texts)
    assert "\U0001f600" in text


def _strings(value):
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for each in value for text in _strings(each)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (http_answer(500), DeliveryFailed, "500"),
        (http_answer(429, headers=["retry-after: 77"]), DeliveryFailed, "429"),
        (http_answer(404), DeliveryRefused, "404"),
        (http_answer(302, headers=["location: http://127.0.0.1/"]), DeliveryRefused, "redirect"),
        ("what?\r\n\r\n", DeliveryFailed, "HTTP"),
        ("", DeliveryFailed, "127.0.0.1"),
    ],
)
def test_a_webhook_that_does_not_take_it(answer, error, says):
    with scripted(Posts(answer)) as server, pytest.raises(error, match=says) as caught:
        webhook(server.port).send(notice())
    assert "T0K3N" not in str(caught.value)
    if "429" in answer:
        assert caught.value.retry_after_s == 77


@pytest.mark.parametrize(
    ("shape", "answer", "error", "says"),
    [
        (Shape.FEISHU, '{"code": 19021, "msg": "sign match fail"}', DeliveryRefused, "19021"),
        (Shape.FEISHU, '{"code": 11232, "msg": "frequency"}', DeliveryFailed, "11232"),
        (Shape.DINGTALK, '{"errcode": 310000, "errmsg": "sign"}', DeliveryRefused, "310000"),
        (Shape.DINGTALK, '{"errcode": 130101, "errmsg": "too fast"}', DeliveryFailed, "130101"),
        (Shape.DINGTALK, "<html>", DeliveryRefused, "no dingtalk answer"),
        (Shape.FEISHU, "[" * 5000, DeliveryRefused, "no feishu answer"),
        (Shape.FEISHU, "[]", DeliveryRefused, "no feishu answer"),
    ],
)
def test_services_that_refuse_with_status_200_are_understood(shape, answer, error, says):
    with scripted(Posts(http_answer(200, answer))) as server, pytest.raises(error, match=says):
        webhook(server.port, shape=shape).send(notice())


def test_a_webhook_that_never_answers_is_left(unused_port):
    with scripted(lambda talk: talk.hang()) as server, pytest.raises(DeliveryFailed, match="time"):
        webhook(server.port, timeout_s=0.2).send(notice())
    with pytest.raises(DeliveryFailed, match="refused"):
        webhook(unused_port).send(notice())


def test_a_webhook_that_answers_a_byte_now_and_then_is_left():
    def drip(talk):
        talk.say("HTTP/1.1 200 OK\r\nx: ")
        talk.drip("y")

    with scripted(drip) as server, pytest.raises(DeliveryFailed):
        webhook(server.port, timeout_s=0.3).send(notice())


def test_a_certificate_that_nobody_knows_is_not_taken(tls, certificate):
    posts = Posts(http_answer(200))
    with scripted(posts, tls) as server:
        url = f"https://localhost:{server.port}{SECRET_PATH}"
        with pytest.raises(DeliveryFailed, match=r"no TLS with localhost: .*certificate"):
            webhook(0, url=url).send(notice())
        webhook(0, url=url, ca_file=certificate).send(notice())
        wrong = url.replace("localhost", "127.0.0.1")
        with pytest.raises(DeliveryFailed, match="no TLS with"):
            webhook(0, url=wrong, ca_file=certificate).send(notice())
    assert len(posts.seen) == 1


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# ---------------------------------------------------------------------- mail


def mailed(smtp: SmtpServer, **fields):
    with scripted(smtp) as server:
        mail(server.port, **fields).send(notice())
    (text,) = smtp.mails
    return message_from_string(text, policy=policy.default)


def test_a_mail_says_what_and_what_to_do():
    message = mailed(SmtpServer())
    assert message["from"] == "carpool@example.org"
    assert message["to"] == "ops@example.org, boss@example.org"
    assert message["auto-submitted"] == "auto-generated"
    assert message["message-id"].endswith("@example.org>")
    text = message.get_content()
    assert "prompts grew from 400 to 1,900 tokens" in text
    assert "- cap the context at 2,048 tokens" in text
    assert "\U0001f600" in text


def test_no_name_writes_headers_or_moves_a_cursor():
    message = mailed(SmtpServer())
    assert message["bcc"] is None
    assert message["subject"].isprintable()
    assert "\x1b" not in message.get_content()
    assert "\u202e" not in message.get_content()


def test_a_mail_goes_by_starttls_with_a_password(tls, certificate):
    smtp = SmtpServer(starttls=tls)
    secure = {"host": "localhost", "security": MailSecurity.STARTTLS, "ca_file": certificate}
    message = mailed(smtp, **secure, user="carpool", password="pa55")
    assert message["subject"].startswith("Carpool: firing")
    assert smtp.commands.index("STARTTLS") < next(
        number for number, line in enumerate(smtp.commands) if line.startswith("AUTH")
    )


def test_a_mail_goes_by_tls(tls, certificate):
    smtp = SmtpServer()
    secure = {"host": "localhost", "security": MailSecurity.TLS, "ca_file": certificate}
    with scripted(smtp, tls) as server:
        mail(server.port, **secure).send(notice())
        with pytest.raises(DeliveryFailed, match="no TLS with"):
            mail(server.port, **secure | {"ca_file": None}).send(notice())
    assert len(smtp.mails) == 1


def test_without_starttls_no_password_leaves():
    smtp = SmtpServer()
    secure = {"host": "localhost", "security": MailSecurity.STARTTLS}
    with scripted(smtp) as server, pytest.raises(DeliveryFailed, match="offers no starttls"):
        mail(server.port, **secure, user="carpool", password="pa55").send(notice())
    assert not any(line.startswith("AUTH") for line in smtp.commands)


@pytest.mark.parametrize("where", ["GREETING", "DRIP", "EHLO", "MAIL", "RCPT", "DATA"])
def test_a_mail_server_that_hangs_is_left(where):
    with (
        scripted(SmtpServer(hangs_at=where)) as server,
        pytest.raises(DeliveryFailed, match=r"127\.0\.0\.1"),
    ):
        mail(server.port, timeout_s=0.3).send(notice())


def test_a_mail_that_was_taken_is_delivered_whatever_comes_then():
    smtp = SmtpServer(hangs_at="QUIT")
    with scripted(smtp) as server:
        mail(server.port, timeout_s=0.3).send(notice())
    assert len(smtp.mails) == 1


@pytest.mark.parametrize(
    ("command", "answer", "error"),
    [
        ("MAIL", "451 later", DeliveryFailed),
        ("MAIL", "550 never", DeliveryRefused),
        ("RCPT", "450 greylisted", DeliveryFailed),
        ("RCPT", "550 nobody here", DeliveryRefused),
        ("DATA", "554 spam", DeliveryRefused),
        ("AUTH", "535 wrong", DeliveryFailed),
    ],
)
def test_a_mail_server_that_does_not_take_it(command, answer, error):
    smtp = SmtpServer(refusals={command: answer})
    with scripted(smtp) as server, pytest.raises(error, match=answer.split()[0]) as caught:
        mail(server.port, user="carpool", password="pa55").send(notice())
    assert "pa55" not in str(caught.value)


def test_no_secret_is_in_what_is_printed_of_a_destination():
    shown = repr([webhook(1), mail(1, user="carpool", password="pa55")])
    assert "T0K3N" not in shown
    assert "pa55" not in shown
