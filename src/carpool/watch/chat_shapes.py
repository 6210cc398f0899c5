"""The bodies that chat services take at their webhooks, and what their answers mean.

Slack: docs.slack.dev/messaging/sending-messages-using-incoming-webhooks; Mattermost:
developers.mattermost.com/integrate/webhooks/incoming; Feishu (Lark): open.feishu.cn, "custom
bot"; DingTalk: open.dingtalk.com, "custom robot". Names in a message come from clients: nothing
in it calls anybody, or is a link.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import urlencode

from carpool.watch.notice import Notice, lines, title


class Shape(StrEnum):
    JSON = "json"
    SLACK = "slack"
    MATTERMOST = "mattermost"
    FEISHU = "feishu"
    DINGTALK = "dingtalk"


class Outgoing(NamedTuple):
    """A body, and what is added to the URL's query."""

    body: dict[str, Any]
    query: str = ""


class Told(NamedTuple):
    """What an answer of status 2xx says. `is_busy`: too much was sent, later it may go."""

    is_taken: bool
    is_busy: bool = False
    code: int | None = None


def outgoing(shape: Shape, notice: Notice, secret: str | None, now: float) -> Outgoing:
    """`secret` signs the message, where the service can ask for that."""
    match shape:
        case Shape.JSON:
            return Outgoing(_generic(notice))
        case Shape.SLACK:
            return Outgoing({"text": _slack_escaped(_text(notice)), "unfurl_links": False})
        case Shape.MATTERMOST:
            return Outgoing({"text": _mattermost_escaped(_text(notice))})
        case Shape.FEISHU:
            return Outgoing(_feishu(notice) | _feishu_signature(secret, now))
        case Shape.DINGTALK:
            content = {"content": _text(notice)}
            return Outgoing({"msgtype": "text", "text": content}, _dingtalk_query(secret, now))


def told(shape: Shape, body: bytes) -> Told:
    """Feishu and DingTalk answer 200 whatever they think of a message; their code says it."""
    if shape not in _CODES:
        return Told(True)
    name, busy = _CODES[shape]
    try:
        answer = json.loads(body)
        code = answer[name] if name in answer else answer.get("StatusCode", 0)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return Told(False)
    if type(code) is not int:
        return Told(False)
    return Told(code == 0, code in busy, code)


_CODES: Mapping[Shape, tuple[str, frozenset[int]]] = {
    Shape.FEISHU: ("code", frozenset({9499, 11232})),
    Shape.DINGTALK: ("errcode", frozenset({130101, 410100, -1})),
}
"""The field that is 0 for a message that was taken, and its values for too many of them."""


def sign_feishu(secret: str, timestamp: str) -> str:
    """The HMAC of nothing, by a key made of both."""
    return _signature(key=f"{timestamp}\n{secret}", text="")


def sign_dingtalk(secret: str, timestamp: str) -> str:
    return _signature(key=secret, text=f"{timestamp}\n{secret}")


def _signature(key: str, text: str) -> str:
    digest = hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode("ascii")


def _feishu_signature(secret: str | None, now: float) -> dict[str, str]:
    if secret is None:
        return {}
    timestamp = str(int(now))
    return {"timestamp": timestamp, "sign": sign_feishu(secret, timestamp)}


def _dingtalk_query(secret: str | None, now: float) -> str:
    if secret is None:
        return ""
    timestamp = str(int(now * 1000))
    return urlencode({"timestamp": timestamp, "sign": sign_dingtalk(secret, timestamp)})


def _text(notice: Notice) -> str:
    """Begins with "Carpool", by which a room may know what is meant for it. Of one alert, a title
    would say what its line says."""
    if len(notice.changes) == 1:
        return "Carpool " + "\n".join(lines(notice))
    return "\n".join([title(notice), *lines(notice)])


def _feishu(notice: Notice) -> dict[str, Any]:
    """A post: its texts, unlike those of a plain message, are never read as markup."""
    content = [[{"tag": "text", "text": line}] for line in lines(notice)]
    post = {"zh_cn": {"title": title(notice), "content": content}}
    return {"msg_type": "post", "content": {"post": post}}


def _slack_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _mattermost_escaped(text: str) -> str:
    """@channel calls everybody unless something stands between; the others are Markdown."""
    for mark in "\\`*_~#|[]<>!":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("@", "@\u200b")


def _generic(notice: Notice) -> dict[str, Any]:
    return {
        "version": 1,
        "title": title(notice),
        "text": "\n".join(lines(notice)),
        "alerts": [
            {
                "change": change.kind.value.replace(" ", "_"),
                "fingerprint": change.alert.fingerprint,
                **{name: value for name, value in asdict(change.alert).items() if name in _SHOWN},
            }
            for change in notice.changes
        ],
    }


_SHOWN = frozenset(
    {
        *("rule", "severity", "model", "subject", "summary", "remedies", "state"),
        *("since", "fired_at", "resolved_at"),
    }
)
