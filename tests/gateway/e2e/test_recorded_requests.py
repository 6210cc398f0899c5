"""The text of requests is kept for those who agreed, and for nobody else."""

import json
import time

from gateway_process import GatewayProcess, Person, until

from carpool.store.recorded_requests import RecordedRequest, RecordedRequestStore


def recorded(gateway: GatewayProcess, person: Person) -> list[RecordedRequest]:
    return RecordedRequestStore(gateway.store.database).find(key_ids=[person.key_id])


def ask(person: Person, text: str) -> None:
    assert person.ask(messages=[{"role": "user", "content": text}]).status_code == 200


def test_only_who_agreed_is_recorded(gateway, engine) -> None:
    ada, ben = gateway.add_people(2)
    gateway.store.change_key(ada.key_id, record_until=time.time() + 3600)

    def is_recorded() -> bool:
        ask(ada, f"My key is {ada.key}.")
        return bool(recorded(gateway, ada))

    ask(ben, "Hello")
    until(is_recorded)
    first = recorded(gateway, ada)[0]
    assert first.person_id == ada.person_id
    content = json.loads(first.body)["messages"][0]["content"]
    assert content.startswith("My key is cp-")
    assert ada.key not in first.body
    assert recorded(gateway, ben) == []


def test_a_refused_request_and_an_expired_consent_are_not_recorded(gateway, engine) -> None:
    ada, ben = gateway.add_people(2)
    gateway.store.change_key(ada.key_id, record_until=time.time() - 1)
    gateway.store.change_key(ben.key_id, record_until=time.time() + 3600)

    def is_recorded() -> bool:
        assert ben.ask(max_tokens=10**9, content=b"{}").status_code == 400
        ask(ben, "Hello")
        return bool(recorded(gateway, ben))

    ask(ada, "Hello")
    until(is_recorded)
    bodies = [json.loads(each.body) for each in recorded(gateway, ben)]
    assert all(body["messages"][0]["content"] == "Hello" for body in bodies)
    assert recorded(gateway, ada) == []
