"""The whole picture as lines, for a terminal of 80 by 24 and up. What does not fit is counted."""

import time
from collections.abc import Sequence

from rich.text import Text

from carpool.watch.terminal.people_marks import PeopleMarks
from carpool.watch.terminal.reading import Day, Model, OpenAlert, Seat, View
from carpool.watch.terminal.sparkline import highest, sparkline

MIN_WIDTH, MIN_HEIGHT = 40, 10
MAX_SEAT_ROWS = 3
_STATE_STYLES = {"ready": "green", "loading": "yellow", "draining": "yellow", "down": "bold red"}
_SEVERITY_STYLES = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
EMPTY_SEAT = "·"


class Picture:
    """Keeps people's marks from one drawing to the next."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._marks = PeopleMarks()

    def lines(
        self, view: View | None, width: int, height: int, trouble: str | None = None
    ) -> list[Text]:
        """At most `height` lines of `width` cells. `trouble`: why the view is not up to date."""
        width, height = max(width, MIN_WIDTH), max(height, MIN_HEIGHT)
        found = [self._head(view, is_old=trouble is not None)]
        if trouble is not None:
            found.append(Text(trouble, style="bold red"))
        if view is not None:
            self._marks.see((seat.person_id, seat.name) for seat in view.seats)
            found += self._body(view, width, height - len(found))
        for line in found:
            line.truncate(width, overflow="ellipsis")
        return found[:height]

    def _head(self, view: View | None, is_old: bool) -> Text:
        text = Text("Carpool ", style="bold")
        text.append(self._url, style="dim")
        if view is not None:
            moment = time.strftime("%H:%M:%S", time.localtime(view.as_of))
            text.append(f"  as of {moment}" if is_old else f"  {moment}", style="dim")
        return text

    def _body(self, view: View, width: int, height: int) -> list[Text]:
        """Models and the day first; alerts and people share what is left."""
        models = [line for model in view.models for line in self._model(model, view.seats, width)]
        day = _day(view.day, width)
        left = height - len(day)
        top = _fitting(models, max(3, left * 2 // 3)) + day
        alerts = _alerts(view)
        people = self._people(view)
        left = height - len(top)
        num_people = min(len(people), max(left - len(alerts), left // 2, 0))
        return (
            top
            + _fitting(alerts, left - num_people)
            + _fitting(people, left - min(len(alerts), left - num_people))
        )

    # ------------------------------------------------------------------ a model

    def _model(self, model: Model, seats: Sequence[Seat], width: int) -> list[Text]:
        text = Text(model.name, style="bold")
        text.append(f"  {model.state}", style=_STATE_STYLES.get(model.state, ""))
        text.append(f"  seats {model.in_flight}/{_known(model.seats)}")
        text.append(f"  waiting {model.waiting}", style="yellow" if model.waiting else "")
        if model.kv_tokens:
            text.append(f"  KV {model.kv_reserved / model.kv_tokens:.0%} spoken for")
        if len(model.engines) > 1 or model.state != "ready":
            for name, state, _ in model.engines:
                text.append(f"  {name} ")
                text.append(state, style=_STATE_STYLES.get(state, ""))
        own = [seat for seat in seats if seat.model == model.name]
        return [text, *self._seats(model, own, width)]

    def _seats(self, model: Model, seats: Sequence[Seat], width: int) -> list[Text]:
        """Blocks for those in flight, empty seats, and the queue behind a bar; of many, each
        block is several."""
        riding = [seat for seat in seats if not seat.is_waiting for _ in range(seat.num_seqs)]
        waiting = [seat for seat in seats if seat.is_waiting]
        num_empty = max(0, (model.seats or 0) - len(riding))
        total = len(riding) + num_empty + len(waiting)
        room = (width - 4) * MAX_SEAT_ROWS
        each = max(1, -(-total // room))
        text = Text("  ")
        for seat in riding[::each]:
            self._block(text, seat)
        text.append(EMPTY_SEAT * (num_empty // each), style="dim")
        if waiting:
            text.append(" | ")
            for seat in waiting[::each]:
                self._block(text, seat)
        if each > 1:
            text.append(f" (each is {each})", style="dim")
        return _folded(text, width) if total else []

    def _block(self, text: Text, seat: Seat) -> None:
        mark = self._marks.of(seat.person_id)
        text.append(mark.letter, style=mark.style)

    # ------------------------------------------------------------------ people

    def _people(self, view: View) -> list[Text]:
        """Those who are there now, then those who have used most of the day."""
        now: dict[str, list[Seat]] = {}
        for seat in view.seats:
            now.setdefault(seat.person_id, []).append(seat)
        uses = {use.person_id: use for use in view.uses}
        names = {seat.person_id: seat.name for seat in view.seats}
        here = sorted(now, key=lambda each: (-len(now[each]), names[each]))
        gone = [use.person_id for use in view.uses if use.person_id not in now]
        if not here and not gone:
            return []
        rows = [Text(f"{'who':<24}{'in flight':>10}{'waiting':>9}{'tokens 24 h':>13}{'share':>7}",
                     style="dim")]  # fmt: skip
        for person_id in (*here, *gone):
            use, seats = uses.get(person_id), now.get(person_id, [])
            mark = self._marks.of(person_id) if seats else None
            text = Text(mark.letter if mark else " ", style=mark.style if mark else "")
            name = Text(f" {names.get(person_id) or (use.name if use else '?')}")
            name.truncate(23, overflow="ellipsis", pad=True)
            text.append_text(name)
            waiting = sum(seat.is_waiting for seat in seats)
            text.append(f"{len(seats) - waiting:>10}{waiting:>9}", style="")
            tokens = "-" if use is None else _short(use.tokens)
            share = "-" if use is None or use.share is None else f"{use.share:.0%}"
            text.append(f"{tokens:>13}{share:>7}", style="")
            rows.append(text)
        return rows


def _day(day: Day | None, width: int) -> list[Text]:
    if day is None:
        return [Text("the day is not known", style="yellow")]
    room = max(10, width - 34)
    rows = []
    for name, values, now in (
        ("TTFT p99", day.ttft_p99, day.ttft_p99_now),
        ("queue", day.waiting, None),
    ):
        if highest(values) is None:
            rows.append(Text(f"{name:<9} nothing recorded in the last 24 h", style="dim"))
            continue
        text = Text(f"{name:<9}")
        text.append(sparkline(values, room), style="cyan")
        is_time = name != "queue"
        text.append(f" max {_seconds(highest(values)) if is_time else _known(highest(values))}")
        if now is not None:
            text.append(f" now {_seconds(now)}")
        rows.append(text)
    if day.rate_now is not None or day.ttft_p50_now is not None:
        rate = "-" if day.rate_now is None else f"{day.rate_now:,.0f}"
        rows.append(Text(f"now      {rate} tokens/s, TTFT p50 {_seconds(day.ttft_p50_now)}"))
    rows += [Text(f"trend    {trend}") for trend in day.trends[:2]]
    return rows


def _alerts(view: View) -> list[Text]:
    rows = []
    if view.blind is not None:
        rows.append(Text(f"! alerts cannot all be judged: {view.blind}", style="yellow"))
    rows += [Text(f"! {trouble}", style="bold red") for trouble in view.undelivered]
    firing = [alert for alert in view.alerts or () if alert.state == "firing"]
    pending = [alert for alert in view.alerts or () if alert.state == "pending"]
    for alert in firing:
        rows.append(_alert(alert))
        rows += [Text(f"    {remedy}") for remedy in alert.remedies[:1]]
    rows += [_alert(alert) for alert in pending]
    if view.alerts is None:
        return [*rows, Text("alerts are not known", style="yellow")]
    return rows or [Text("no alerts", style="green")]


def _alert(alert: OpenAlert) -> Text:
    style = _SEVERITY_STYLES.get(alert.severity, "")
    text = Text("! " if alert.state == "firing" else "? ", style=style)
    text.append(f"{alert.severity} {alert.rule}", style=style)
    text.append(f" ({alert.where})" if alert.where else "")
    text.append(f": {alert.summary}")
    return text


def _fitting(rows: list[Text], room: int) -> list[Text]:
    """With the number of those that are left out."""
    if len(rows) <= room:
        return rows
    if room <= 0:
        return []
    return [*rows[: room - 1], Text(f"  and {len(rows) - room + 1} more lines", style="dim")]


def _folded(text: Text, width: int) -> list[Text]:
    """In lines of that width, the later ones indented like the first."""
    rest = text[2:]
    step = width - 4
    cuts = range(step, len(rest.plain), step)
    return [Text("  ").append_text(part) for part in rest.divide(cuts)]


def _known(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:,.0f} ms" if value < 1 else f"{value:,.1f} s"


def _short(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"
