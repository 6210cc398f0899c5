"""What an operator sees on /metrics."""

from gateway_process import MODEL, ScriptedEngine, gateway_process, until
from metrics_doc import documented, shown
from mock_engine import chat_events, event, json_reply, sse_reply, usage


def test_the_manual_has_every_metric_and_no_other(gateway):
    gateway.visitor.ask()
    assert shown(gateway.metrics()) == documented(is_gateway=True)


def test_labels_are_of_a_closed_set(gateway):
    """Whatever clients send: nothing of it makes a series."""
    ada = gateway.add_person()
    before = gateway.metrics()
    for number in range(5):
        ada.ask(model=f"no-{number}", user=f"u{number}", headers={"x-team": f"t{number}"})
        gateway.http.get(f"/path-{number}")
        gateway.http.post("/v1/chat/completions", headers={"authorization": f"Bearer {number}"})
    assert ada.person_id not in gateway.metrics()
    assert ada.key_id not in gateway.metrics()
    new = gateway.metrics().count("\n") - before.count("\n")
    assert new <= 2  # outcomes that had not occurred


def test_a_stream_is_counted_once_it_has_ended(gateway, engine):
    names = ("prompt", "cached", "output")
    before = [gateway.metric("tokens_total", model=MODEL, kind=name) for name in names]
    ttft = gateway.metric("time_to_first_token_seconds_count", model=MODEL)
    tpot = gateway.metric("time_per_output_token_seconds_count", model=MODEL)
    events = chat_events(["a", "b"], has_usage=False)
    engine.script = sse_reply(
        [*events[:-1], event({"choices": [], "usage": usage(11, 2, cached=4)}), events[-1]]
    )
    with gateway.visitor.stream() as response:
        response.read()
    until(lambda: gateway.metric("time_to_first_token_seconds_count", model=MODEL) == ttft + 1)
    assert gateway.metric("time_per_output_token_seconds_count", model=MODEL) == tpot + 1
    after = [gateway.metric("tokens_total", model=MODEL, kind=name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [11, 4, 2]


def test_a_whole_answer_has_no_time_to_first_token(gateway):
    ttft = gateway.metric("time_to_first_token_seconds_count", model=MODEL)
    tpot = gateway.metric("time_per_output_token_seconds_count", model=MODEL)
    durations = gateway.metric("request_duration_seconds_count", model=MODEL)
    gateway.visitor.ask()
    until(lambda: gateway.metric("request_duration_seconds_count", model=MODEL) == durations + 1)
    assert gateway.metric("time_to_first_token_seconds_count", model=MODEL) == ttft
    assert gateway.metric("time_per_output_token_seconds_count", model=MODEL) == tpot


def test_what_is_taken_shows_and_is_back_afterwards(gateway, engine):
    with engine.holding():
        running = gateway.visitor.start(max_tokens=100)
        until(lambda: len(engine.asked) == 1)
        assert gateway.metric("requests_in_flight", model=MODEL) == 1
        assert gateway.metric("replica_requests_in_flight", model=MODEL) == 1
        assert 0 < gateway.metric("kv_tokens_reserved", model=MODEL) < 1_000_000
        assert gateway.metric("kv_tokens", model=MODEL) == 1_000_000
        assert gateway.metric("seats", model=MODEL) == 16
    running.result()
    until(lambda: gateway.is_idle)
    assert gateway.metric("kv_tokens_reserved", model=MODEL) == 0
    assert gateway.metric("replica_requests_in_flight", model=MODEL) == 0


def test_a_refusal_before_any_model_has_no_models_name(gateway):
    before = gateway.metric("requests_total", model="", outcome="bad_key")
    gateway.http.post("/v1/chat/completions")
    assert gateway.metric("requests_total", model="", outcome="bad_key") == before + 1


def test_an_engine_that_fails_is_seen_to(tmp_path):
    with (
        ScriptedEngine().serving() as engine,
        gateway_process(engine.url, tmp_path) as gateway,
    ):
        assert gateway.metric("replica_state", state="ready") == 1
        assert gateway.metric("breaker_state", state="closed") == 1
        engine.script = json_reply({"error": {"message": "broken"}}, 503)
        ada = gateway.add_person()
        for _ in range(3):
            ada.ask()
        assert gateway.metric("breaker_state", state="closed") == 0
        assert gateway.metric("replica_state", state="ready") == 1


def test_the_keys_are_fresh_and_the_loop_is_watched(gateway):
    assert 0 <= gateway.metric("keys_age_seconds") < 5
    until(lambda: gateway.metric("event_loop_lag_seconds_count") > 0)
