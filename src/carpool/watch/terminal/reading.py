"""What the admin API answers, read with care: a gateway may be older or newer than this."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carpool.watch.notice import plain


@dataclass(frozen=True, slots=True)
class Seat:
    """Of a request, in flight or waiting. It takes `num_seqs` seats."""

    model: str
    person_id: str
    name: str
    num_seqs: int
    num_tokens: int
    is_waiting: bool


@dataclass(frozen=True, slots=True)
class Model:
    """None is not known."""

    name: str
    state: str
    seats: int | None
    kv_tokens: int | None
    kv_reserved: int
    in_flight: int
    waiting: int
    engines: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class OpenAlert:
    severity: str
    state: str
    rule: str
    where: str
    summary: str
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Day:
    """Series over the last 24 hours: seconds and requests, None in gaps."""

    ttft_p99: tuple[float | None, ...] = ()
    waiting: tuple[float | None, ...] = ()
    tokens_per_second: tuple[float | None, ...] = ()
    trends: tuple[str, ...] = ()
    ttft_p50_now: float | None = None
    ttft_p99_now: float | None = None
    rate_now: float | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """Of a person over the last 24 hours."""

    person_id: str
    name: str
    tokens: float
    share: float | None


@dataclass(frozen=True, slots=True)
class View:
    """`as_of`: Unix seconds. `alerts` and `day` are None where they are not known. Texts are
    plain: one line, nothing that a terminal would obey."""

    as_of: float
    models: tuple[Model, ...]
    seats: tuple[Seat, ...]
    num_places: int
    alerts: tuple[OpenAlert, ...] | None = None
    undelivered: tuple[str, ...] = ()
    blind: str | None = None
    day: Day | None = None
    uses: tuple[Use, ...] = ()


def read_view(answers: Mapping[str, Any]) -> View:
    """`answers` to now, alerts, series, outlook and who, by these names; those that are not there
    are not known."""
    now, alerts = _object(answers.get("now")), _object(answers.get("alerts"))
    places = [_seat(_object(each)) for each in _list(now.get("places"))]
    people = _list(_object(answers.get("who")).get("people"))
    return View(
        as_of=_number(now.get("as_of")) or 0.0,
        models=tuple(_model(_object(each)) for each in _list(now.get("models"))),
        seats=tuple(places),
        num_places=_count(now.get("num_places")) or len(places),
        alerts=_alerts(alerts) if "alerts" in answers else None,
        undelivered=tuple(_undelivered(alerts)),
        blind=_text(alerts.get("blind_reason")) or None,
        day=_day(answers) if "series" in answers else None,
        uses=tuple(_use(_object(each)) for each in people),
    )


def _model(fields: Mapping[str, Any]) -> Model:
    replicas = [_object(each) for each in _list(fields.get("replicas"))]
    return Model(
        name=_text(fields.get("name")),
        state=_text(fields.get("state")),
        seats=_count(fields.get("max_num_seqs")),
        kv_tokens=_count(fields.get("kv_tokens")),
        kv_reserved=_count(fields.get("in_flight_tokens")) or 0,
        in_flight=_count(fields.get("in_flight")) or 0,
        waiting=_count(fields.get("waiting")) or 0,
        engines=tuple(
            (_text(each.get("name")), _text(each.get("state")), _count(each.get("in_flight")) or 0)
            for each in replicas
        ),
    )


def _seat(fields: Mapping[str, Any]) -> Seat:
    return Seat(
        model=_text(fields.get("model")),
        person_id=_text(fields.get("person_id")),
        name=_text(fields.get("name")) or "?",
        num_seqs=max(1, _count(fields.get("num_seqs")) or 1),
        num_tokens=_count(fields.get("num_tokens")) or 0,
        is_waiting=fields.get("is_waiting") is True,
    )


def _alerts(alerts: Mapping[str, Any]) -> tuple[OpenAlert, ...]:
    return tuple(_alert(_object(each)) for each in _list(alerts.get("alerts")))


def _alert(fields: Mapping[str, Any]) -> OpenAlert:
    where = [_text(fields.get(name)) for name in ("model", "subject")]
    return OpenAlert(
        severity=_text(fields.get("severity")),
        state=_text(fields.get("state")),
        rule=_text(fields.get("rule")).replace("_", " "),
        where=", ".join(part for part in where if part),
        summary=_text(fields.get("summary")),
        remedies=tuple(_text(each) for each in _list(fields.get("remedies"))),
    )


def _undelivered(alerts: Mapping[str, Any]) -> list[str]:
    found = []
    for each in map(_object, _list(alerts.get("destinations"))):
        if each.get("state") == "failing":
            name, error = _text(each.get("name")), _text(each.get("last_error"))
            found.append(f"cannot tell {name}: {error}")
    return found


def _day(answers: Mapping[str, Any]) -> Day:
    series, outlook = _object(answers.get("series")), _object(answers.get("outlook"))
    columns, recent = _object(series.get("columns")), _object(outlook.get("recent"))
    readings = [_object(each) for each in _list(outlook.get("readings"))]
    return Day(
        ttft_p99=_numbers(columns.get("ttft.p99")),
        waiting=_numbers(columns.get("waiting.max")),
        tokens_per_second=_numbers(columns.get("tokens_per_second")),
        trends=tuple(_text(each.get("sentence")) for each in readings),
        ttft_p50_now=_number(recent.get("ttft_p50")),
        ttft_p99_now=_number(recent.get("ttft_p99")),
        rate_now=_number(recent.get("tokens_per_second")),
    )


def _use(fields: Mapping[str, Any]) -> Use:
    tokens = (_number(fields.get(name)) or 0.0 for name in ("prompt_tokens", "output_tokens"))
    return Use(
        person_id=_text(fields.get("person_id")),
        name=_text(fields.get("name")) or "?",
        tokens=sum(tokens),
        share=_number(fields.get("share")),
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: Any) -> str:
    return plain(value) if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e18 else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or number < 0 else int(number)


def _numbers(value: Any) -> tuple[float | None, ...]:
    return tuple(_number(each) for each in _list(value))
