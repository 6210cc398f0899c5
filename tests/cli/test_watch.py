"""`carpool watch` against a scripted admin API: what it shows, and that it never stays behind."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from scripted_server import Server, Talk, scripted
from typer.testing import CliRunner

from carpool.cli import app
from carpool.watch.notice import plain
from carpool.watch.terminal.picture import Picture
from carpool.watch.terminal.reading import read_view
from carpool.watch.terminal.sparkline import sparkline

PATIENCE_S = 30.0
KEY = "cpa-abcdefghijkl-c2VjcmV0"
NAUGHTY = "Zoë <b>\x1b]0;owned\x07\u202e [red]李雷\U0001f600"


def place(name: str = "Ana", **fields):
    return {
        "model": "team-model",
        "person_id": name,
        "name": name,
        "num_seqs": 1,
        "num_tokens": 100,
        "is_waiting": False,
        "for_s": 1.0,
    } | fields


def answers(places=(), **model) -> dict:
    state = {
        "name": "team-model",
        "state": "ready",
        "max_num_seqs": 8,
        "kv_tokens": 1000,
        "in_flight": sum(not each["is_waiting"] for each in places),
        "in_flight_tokens": 610,
        "waiting": sum(each["is_waiting"] for each in places),
        "replicas": [{"name": "e", "state": "ready", "in_flight": 0}],
    }
    now = {"as_of": 1_800_000_000.0, "models": [state | model], "places": list(places)}
    return {
        "now": now | {"num_places": len(places)},
        "alerts": {
            "alerts": [
                {
                    "rule": "context_creep",
                    "severity": "warning",
                    "state": "firing",
                    "model": "team-model",
                    "subject": "Ana, key ab",
                    "summary": "prompts grew threefold",
                    "remedies": ["cap the context at 2,048 tokens"],
                }
            ],
            "destinations": [{"name": "team", "state": "failing", "last_error": "it said 404"}],
            "blind_reason": None,
        },
        "series": {
            "columns": {
                "ttft.p99": [None, None, 0.1, 0.2, 0.4, 0.8],
                "waiting.max": [0, 0, 0, 1, 2, 5],
            }
        },
        "outlook": {
            "recent": {"ttft_p50": 0.3, "ttft_p99": 0.8, "tokens_per_second": 412},
            "readings": [{"sentence": "TTFT climbs since 09:10"}],
        },
        "who": {
            "people": [
                {"person_id": "Ana", "name": "Ana", "prompt_tokens": 3e6, "output_tokens": 2e5}
                | {"share": 0.6}
            ]
        },
    }


class AdminApi:
    """A script: answers GETs out of `answers`; a name that is not there is a 503."""

    def __init__(self, contents: dict, status: int = 200) -> None:
        self.contents = contents
        self.status = status
        self.keys: list[str] = []

    def __call__(self, talk: Talk) -> None:
        path = talk.line().split()[1].partition("?")[0]
        while line := talk.line():
            if line.lower().startswith("authorization: "):
                self.keys.append(line.split()[-1])
        name = path.removeprefix("/admin/v1/")
        status, content = self.status, self.contents.get(name)
        if content is None:
            status, content = 503, {"error": {"message": "the database cannot be reached"}}
        text = json.dumps(content)
        talk.say(f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\n\r\n{text}")


def picture(contents: dict, width: int = 80, height: int = 24, trouble=None) -> list[str]:
    lines = Picture("http://x").lines(read_view(contents), width, height, trouble)
    return [line.plain for line in lines]


def run(server: Server, *arguments: str, key: str = KEY):
    url = f"http://127.0.0.1:{server.port}"
    return CliRunner().invoke(
        app, ["watch", "--url", url, *arguments], env={"CARPOOL_ADMIN_KEY": key, "COLUMNS": "100"}
    )


# ---------------------------------------------------------------------- the picture


def test_it_answers_who_how_full_and_what_is_coming():
    places = [place(), place(), place("Bo"), place("Bo", is_waiting=True)]
    lines = picture(answers(places))
    assert lines[1] == "team-model  ready  seats 3/8  waiting 1  KV 61% spoken for"
    assert lines[2] == "  AAB····· | B"
    assert lines[3].startswith("TTFT p99 ")
    assert lines[3].endswith("█ max 800 ms now 800 ms")
    assert lines[4].endswith("█ max 5")
    text = "\n".join(lines)
    assert "412 tokens/s, TTFT p50 300 ms" in text
    assert "TTFT climbs since 09:10" in text
    assert "! warning context creep (team-model, Ana, key ab): prompts grew threefold" in text
    assert "    cap the context at 2,048 tokens" in text
    assert "! cannot tell team: it said 404" in text
    assert any(line.split() == ["A", "Ana", "2", "0", "3.2M", "60%"] for line in lines)
    assert any(line.split() == ["B", "Bo", "1", "1", "-", "-"] for line in lines)


def test_a_request_of_several_sequences_takes_several_seats():
    assert picture(answers([place(num_seqs=4)]))[2] == "  AAAA····"


def test_a_person_keeps_their_letter():
    drawing = Picture("http://x")
    drawing.lines(read_view(answers([place("Ana"), place("Adam")])), 80, 24)
    lines = drawing.lines(read_view(answers([place("Adam"), place("Aha"), place("Ana")])), 80, 24)
    assert lines[2].plain == "  aHA·····"


@pytest.mark.parametrize("width", [40, 80, 201])
@pytest.mark.parametrize("height", [10, 24, 60])
@pytest.mark.parametrize("num_places", [0, 300])
def test_it_fits_whatever_there_is(width, height, num_places):
    places = [place(f"{NAUGHTY} {n}", is_waiting=n % 3 == 0) for n in range(num_places)]
    contents = answers(places, max_num_seqs=128)
    contents["alerts"]["alerts"] *= 30
    contents["now"]["models"] *= 9
    lines = Picture("http://x").lines(read_view(contents), width, height)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    text = "".join(line.plain for line in lines)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "more lines" in text


def test_what_is_not_known_is_not_shown_as_nothing():
    contents = {"now": answers()["now"]}
    contents["now"]["models"][0] |= {"max_num_seqs": None, "kv_tokens": None, "state": "loading"}
    lines = picture(contents, trouble="not all is known: the database cannot be reached")
    assert lines[1] == "not all is known: the database cannot be reached"
    assert lines[2].startswith("team-model  loading  seats 0/?  waiting 0  e ready")
    text = "\n".join(lines)
    assert "alerts are not known" in text
    assert "no alerts" not in text
    assert "the day is not known" in text


def test_a_day_without_requests_is_not_an_unknown_one():
    contents = answers()
    contents["series"]["columns"] = {"ttft.p99": [None] * 5, "waiting.max": [None] * 5}
    assert any("nothing recorded in the last 24 h" in line for line in picture(contents))


@pytest.mark.parametrize("odd", [None, 3, "x", [], [[]], {"models": 3}, {"models": [{"name": 3}]}])
def test_an_api_of_another_version_breaks_nothing(odd):
    names = ("now", "alerts", "series", "outlook", "who")
    assert picture(dict.fromkeys(names, odd))
    for inner in ("models", "places", "alerts", "destinations", "columns", "recent", "people"):
        assert picture({name: {inner: odd} for name in names})


def test_a_series_is_as_high_as_its_highest_share():
    assert sparkline([0, 1, 2, 4], 4) == "▁▃▅█"
    assert sparkline([0, 0, 0, 0, 9, 0, 0, 0], 4) == "▁▁█▁"
    assert sparkline([None, 1], 4) == "  ██"
    assert sparkline([0.0, 0.0], 2) == "▁▁"
    assert sparkline([None], 3) == "   "
    assert sparkline([], 3) == ""


# ---------------------------------------------------------------------- the verb


def test_piped_it_prints_once_without_colour():
    api = AdminApi(answers([place(NAUGHTY)]))
    with scripted(api) as server:
        done = run(server)
    assert done.exit_code == 0, done.output
    assert plain(NAUGHTY)[:20] in done.output
    assert "\x1b" not in done.output
    assert set(api.keys) == {KEY}


def test_json_is_all_that_is_known_and_what_is_not():
    contents = answers()
    del contents["who"], contents["series"]
    with scripted(AdminApi(contents)) as server:
        told = json.loads(run(server, "--json").output)
    assert told["now"] == contents["now"]
    assert "who" not in told
    assert told["trouble"] == "not all is known: the database cannot be reached"


@pytest.mark.parametrize(
    ("api", "says"),
    [
        (AdminApi(answers(), 401), "the admin key is not right"),
        (AdminApi(answers(), 404), "has no /now; is it the admin API"),
        (AdminApi(answers(), 302), "has no /now"),
        (AdminApi({}), "the database cannot be reached"),
        (AdminApi({"now": []}), "no JSON object"),
    ],
)
def test_what_is_no_admin_api_is_said_in_a_line(api, says):
    with scripted(api) as server:
        done = run(server)
    assert done.exit_code == 2
    assert says in done.output
    assert len(done.output.splitlines()) == 1


def test_a_gateway_that_is_away_is_said_in_a_line(tmp_path):
    with scripted(AdminApi({})) as server:
        pass
    done = run(server)
    assert done.exit_code == 2
    assert "the gateway is away since" in done.output


@pytest.mark.parametrize("url", ["http://10.0.0.1:8001", "http://example.org", "ftp://x", "x"])
def test_the_key_never_leaves_in_the_clear(url):
    done = CliRunner().invoke(app, ["watch", "--url", url], env={"CARPOOL_ADMIN_KEY": KEY})
    assert done.exit_code == 2
    assert "in the clear" in done.output or "is no address" in done.output


def test_the_key_comes_from_a_file_or_the_environment(tmp_path: Path):
    file = tmp_path / "key"
    file.write_text(f"{KEY}-2\n")
    api = AdminApi(answers())
    with scripted(api) as server:
        assert run(server, "--admin-key-file", str(file)).exit_code == 0
        assert set(api.keys) == {f"{KEY}-2"}
        done = run(server, key="")
        assert (done.exit_code, "CARPOOL_ADMIN_KEY holds no admin key" in done.output) == (2, True)
        done = run(server, "--admin-key-file", str(tmp_path / "no"))
        assert (done.exit_code, "cannot read" in done.output) == (2, True)
        file.write_bytes(b"\xff\xfe")
        assert run(server, "--admin-key-file", str(file)).exit_code == 2


# ---------------------------------------------------------------------- in a terminal


class Terminal:
    """`carpool watch` in a terminal of its own."""

    def __init__(self, port: int, width: int, height: int, **env: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(width, height)
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("carpool"), "watch"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # As in a terminal: what runs in the background, tests too, may ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            env=os.environ
            | {"CARPOOL_ADMIN_URL": f"http://127.0.0.1:{port}", "CARPOOL_ADMIN_KEY": KEY}
            | {"TERM": "xterm-256color"}
            | env,
        )
        os.close(slave)
        self.seen = ""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def wait_for(self, text: str) -> None:
        """Of what comes from now on."""
        start, ends_at = len(self.seen), time.monotonic() + PATIENCE_S
        while text not in self.seen[start:]:
            assert time.monotonic() < ends_at, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536).decode(errors="replace")


@contextlib.contextmanager
def terminal(port: int, width: int = 80, height: int = 24, **env: str) -> Iterator[Terminal]:
    opened = Terminal(port, width, height, **env)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()
        os.close(opened.master)


def test_in_a_terminal_it_is_live_says_when_the_gateway_is_away_and_comes_back():
    api = AdminApi(answers([place()]))
    with scripted(api) as server, terminal(server.port) as screen:
        screen.wait_for("seats 1/8")
        assert "\x1b[30;48;5;" in screen.seen  # a seat in somebody's colour
        api.contents = answers([place(), place("Bo")])
        screen.wait_for("seats 2/8")
        api.contents = {}
        screen.wait_for("away since")
        api.contents = answers([place()] * 3)
        screen.resize(120, 40)
        screen.wait_for("seats 3/8")
        screen.process.send_signal(signal.SIGINT)
        screen.wait_for("\x1b[?1049l")  # the screen of before is back; who writes is read
        assert screen.process.wait(PATIENCE_S) == 130


def test_without_colour_it_has_none():
    api = AdminApi(answers([place()]))
    with scripted(api) as server, terminal(server.port, NO_COLOR="1") as screen:
        screen.wait_for("seats 1/8")
        assert "48;5;" not in screen.seen
        assert "\x1b[31m" not in screen.seen


# ---------------------------------------------------------------------- exports


def test_rules_for_prometheus_follow_the_configuration(tmp_path):
    config = tmp_path / "carpool.toml"
    config.write_text('[[models]]\nname = "m"\n[alerts.rules.bursts]\nenabled = false\n')
    every = CliRunner().invoke(app, ["watch", "export", "prometheus"])
    fewer = CliRunner().invoke(app, ["watch", "export", "prometheus", "--config", str(config)])
    assert alerts_in(every.output) - alerts_in(fewer.output) == {"CarpoolBursts"}


def alerts_in(text: str) -> set[str]:
    groups = yaml.safe_load(text)["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def test_the_dashboard_for_grafana_is_json():
    done = CliRunner().invoke(app, ["watch", "export", "grafana"])
    assert json.loads(done.output)["title"] == "Carpool"
    assert CliRunner().invoke(app, ["watch", "export", "nagios"]).exit_code == 2
