"""Several models and several engines behind one gateway."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gateway_process import ScriptedEngine, gateway_process, until
from mock_engine import chat_events, json_reply, sse_reply

BIG, SMALL = "big-model", "small-model"
TOO_MUCH = "Why not? " * 600_000


@pytest.fixture
def engines():
    with contextlib.ExitStack() as running:
        made = [ScriptedEngine(max_num_seqs=16) for _ in range(3)]
        for engine, models in zip(made, ((BIG,), ("org/Big",), (SMALL, "another")), strict=True):
            engine.models = models
            engine.process = running.enter_context(contextlib.ExitStack())
            engine.process.enter_context(engine.serving())
        yield made


@pytest.fixture
def house(engines, tmp_path):
    first, second, third = (engine.url for engine in engines)
    config = f"""
        [[models]]
        name = "{BIG}"
        aliases = ["fast"]
        backends = [{{engine = "{first}"}}, {{engine = "{second}", kv_tokens = 2000}}]
        [[models]]
        name = "{SMALL}"
        backends = [{{engine = "{third}", max_num_seqs = 3}}]
        when_down = "refuse"
    """
    with gateway_process("", tmp_path, config=config) as gateway:
        yield gateway


def test_each_model_has_its_engines_and_each_engine_its_own_name_for_it(house, engines):
    ada = house.add_person()
    assert {model["id"] for model in ada.get("/v1/models").json()["data"]} == {BIG, "fast", SMALL}
    assert ada.ask(model=SMALL).status_code == 200
    assert [request.json["model"] for request in engines[2].asked] == [SMALL]
    answers = [ada.ask(model="fast") for _ in range(4)]
    assert {answer.json()["model"] for answer in answers} == {"fast"}
    names = {request.json["model"] for engine in engines[:2] for request in engine.asked}
    assert names <= {BIG, "org/Big"}
    assert house.metric("seats", model=BIG) == 32
    assert house.metric("seats", model=SMALL) == 3


def test_a_burst_is_spread_over_the_replicas_and_counted_until_it_ends(house, engines):
    ada = house.add_person()
    first, second, _ = engines
    with first.holding(), second.holding():
        burst = [ada.start(model=BIG) for _ in range(20)]
        until(lambda: len(first.asked) + len(second.asked) == 20)
        assert (len(first.asked), len(second.asked)) == (10, 10)
    assert {answer.result().status_code for answer in burst} == {200}
    until(lambda: house.is_idle)


def test_clients_that_leave_are_off_the_load_of_their_engines(house, engines):
    ada = house.add_person()
    first, second, _ = engines
    first.script = second.script = sse_reply(chat_events(["word "] * 4), stall_after=2)
    for _ in range(60):
        with ada.stream(model=BIG) as response:
            next(response.iter_bytes())
    until(lambda: house.is_idle)
    first.forget()
    second.forget()
    with first.holding(), second.holding():
        burst = [ada.start(model=BIG) for _ in range(20)]
        until(lambda: len(first.asked) + len(second.asked) == 20)
        assert (len(first.asked), len(second.asked)) == (10, 10)
    assert {answer.result().status_code for answer in burst} == {200}


def test_the_engine_with_less_to_do_is_asked(house, engines):
    ada = house.add_person()
    first, second, _ = engines
    with first.holding(), second.holding() as released:
        burst = [ada.start(model=BIG) for _ in range(8)]
        until(lambda: (len(first.asked), len(second.asked)) == (4, 4))
        released.set()
        until(lambda: house.num_in_flight == 4)
        assert {ada.ask(model=BIG).status_code for _ in range(6)} == {200}
        assert (len(first.asked), len(second.asked)) == (4, 10)
    assert {answer.result().status_code for answer in burst} == {200}


def test_alike_prompts_go_where_their_prefix_is_known(house, engines):
    ada = house.add_person()
    for number in range(6):
        system = {"role": "system", "content": "You are a chess player. " * 60}
        question = {"role": "user", "content": f"Move {number}?"}
        assert ada.ask(model=BIG, messages=[system, question]).status_code == 200
    assert sorted(len(engine.asked) for engine in engines[:2]) == [0, 6]


def test_one_replica_carries_on_alone_and_the_other_is_found_again(house, engines):
    ada = house.add_person()
    first, second, _ = engines
    port = int(first.url.rpartition(":")[2])
    first.process.close()
    assert {ada.ask(model=BIG).status_code for _ in range(6)} == {200}
    until(lambda: house.metric("seats", model=BIG) == 16)
    assert len(second.asked) == 6
    first.process.enter_context(first.serving(port))
    until(lambda: house.metric("seats", model=BIG) == 32)


def test_what_fits_into_no_single_replica_is_refused_with_the_largest(house, engines):
    refused = house.add_person().ask(model=BIG, messages=[{"role": "user", "content": TOO_MUCH}])
    assert refused.status_code == 413
    assert "1,000,000" in refused.json()["error"]["message"]


def test_one_model_that_is_down_leaves_the_other_alone(house, engines):
    ada = house.add_person()
    engines[2].process.close()
    until(lambda: not house.http.get("/ready").json()["models"][SMALL])
    assert house.http.get("/ready").status_code == 200
    assert ada.ask(model=SMALL).status_code == 503
    assert ada.ask(model=BIG).status_code == 200


def test_what_others_have_at_the_engine_is_left_to_them(tmp_path):
    with (
        ScriptedEngine(max_num_seqs=8).serving() as engine,
        gateway_process(engine.url, tmp_path) as gateway,
    ):
        assert gateway.metric("seats") == 8
        engine.load = (5, 0)
        until(lambda: gateway.metric("seats") == 3)
        engine.load = (0, 0)
        until(lambda: gateway.metric("seats") == 8)


def test_an_engine_with_several_models_needs_to_be_told_which(engines, tmp_path):
    engines[2].models = ("one", "two")
    log = tmp_path / "log"
    command = [Path(sys.executable).with_name("carpool"), "serve", "team", "--port", "0"]
    command += ["--backend", engines[2].url, "--database", f"sqlite:///{tmp_path}/a.db"]
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        until(lambda: "(one, two); say which with --backend-model" in log.read_text())
        process.terminate()
        assert process.wait() == 0


def test_a_cap_by_a_name_that_the_engine_does_not_know_is_given_by_one_that_it_does(tmp_path):
    with ScriptedEngine(max_num_seqs=8).serving() as engine:
        url = engine.url.replace("sglang+", "ollama+")
        with gateway_process(url, tmp_path, "--backend-model", "llama") as gateway:
            ada = gateway.add_person()
            assert ada.ask(max_completion_tokens=9).status_code == 200
            assert ada.ask(max_completion_tokens=9, max_tokens=7).status_code == 200
            first, second = (request.json for request in engine.asked)
            assert (first["max_tokens"], second["max_tokens"]) == (9, 7)
            assert "max_completion_tokens" not in {*first, *second}


def test_the_key_of_an_engine_goes_to_it_and_the_keys_of_people_do_not(tmp_path):
    with ScriptedEngine().serving() as engine:
        options = ("--backend-key-env", "ENGINE_KEY")
        env = {"ENGINE_KEY": "sk-engine"}
        with gateway_process(engine.url, tmp_path, *options, env=env) as gateway:
            ada = gateway.add_person()
            assert ada.ask().status_code == 200
            [request] = engine.asked
            assert request.headers["authorization"] == "Bearer sk-engine"
            assert ada.key not in str(request)


def test_a_config_that_says_nothing_sensible_is_one_line(tmp_path):
    config = '[[models]]\nname = "a"\nbacknds = []\n'
    one_line = pytest.raises(AssertionError, match=r"there is no setting models\.0\.backnds")
    with one_line, gateway_process("", tmp_path, config=config):
        pass


def test_an_error_of_the_engine_is_not_tried_elsewhere(house, engines):
    ada = house.add_person()
    for engine in engines[:2]:
        engine.script = json_reply({"error": {"message": "no"}}, 500)
    assert ada.ask(model=BIG).status_code == 500
    assert sum(len(engine.asked) for engine in engines[:2]) == 1


def refusal_to_serve(tmp_path, *arguments):
    command = [Path(sys.executable).with_name("carpool"), "serve", *arguments, "--port", "0"]
    command += ["--database", f"sqlite:///{tmp_path}/a.db"]
    env = os.environ | {"PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    return done.stderr.splitlines()[-1]


def test_an_engine_that_is_not_installed_is_said_and_not_waited_for(tmp_path):
    line = refusal_to_serve(tmp_path, "llama3", "--backend", "ollama", "--force")
    assert line.startswith("carpool: llama3 cannot be served: cannot run ollama")


@pytest.mark.model
def test_an_engine_that_does_not_take_its_arguments_is_said_and_not_started_again(
    tmp_path, resolved_model
):
    line = refusal_to_serve(tmp_path, str(resolved_model.folder), "--force", "--", "--no-such")
    assert "cannot be served" in line
    assert "--no-such" in line
