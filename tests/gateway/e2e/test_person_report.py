"""What people hear of themselves, with their key alone."""

from gateway_process import MODEL, until


def test_a_person_hears_of_their_limits_their_use_and_their_place(gateway, engine):
    ada = gateway.add_person(max_in_flight=1, daily_tokens=9000)
    assert ada.ask(max_tokens=30).status_code == 200
    gateway.row(ada)
    with engine.holding():
        answers = [ada.start(max_tokens=9) for _ in range(3)]
        until(lambda: len(ada.get("/v1/me").json()["waiting"]) == 2)
        told = ada.get("/v1/me")
        assert told.headers["cache-control"] == "no-store"
        me = told.json()
        assert (me["key"]["max_in_flight"], me["key"]["daily_tokens"]) == (1, 9000)
        assert [each["model"] for each in me["in_flight"]] == [MODEL]
        assert [each["position"] for each in me["waiting"]] == [0, 1]
        assert me["models"][0]["name"] == MODEL
    assert {each.result().status_code for each in answers} == {200}
    used = ada.get("/v1/me/usage").json()
    assert used["today"]["key"] == used["today"]["person"] >= 30
    assert [day["num_failed"] for day in used["days"]] == [0]
    for secret in (ada.key, ada.new.key.secret_sha256.hex()):
        assert secret not in told.text


def test_without_a_key_nobody_hears_anything_and_others_hear_of_themselves_alone(gateway, engine):
    ada, ben = gateway.add_people(2)
    with engine.holding():
        answer = ada.start()
        until(lambda: ada.get("/v1/me").json()["in_flight"])
        assert ben.get("/v1/me").json()["in_flight"] == []
    assert answer.result().status_code == 200
    for path in ("/v1/me", "/v1/me/usage"):
        assert gateway.http.get(path).status_code == 401
        assert gateway.http.post(path, headers=ada.headers).status_code == 404


def test_the_pages_are_there_for_anybody_and_empty(gateway):
    for path in ("/chat", "/me"):
        page = gateway.http.get(path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        again = gateway.http.get(path, headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert gateway.http.head("/pages/chat.js").status_code == 200
    assert gateway.http.get("/pages/dashboard.html").status_code == 404
