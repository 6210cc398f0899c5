"""How many go before a person's requests, as the waiting room counts them."""

from carpool.gateway.live_state import Place
from carpool.gateway.standing import standing_of
from carpool.gateway.ticket import Ticket
from carpool.gateway.waiting_room import QueueLimits, WaitingRoom
from carpool.store.lane import Lane


def place(person_id, lane=Lane.INTERACTIVE, model="m", is_waiting=True):
    return Place(
        request_id="r", model=model, person_id=person_id, name=person_id, lane=lane, num_seqs=1,
        num_tokens=9, is_waiting=is_waiting, for_s=0.0,
    )  # fmt: skip


def positions(person_id, places):
    return [position for _, position in standing_of(person_id, places)]


def test_whoever_has_less_waiting_goes_first_and_other_queues_do_not_count():
    places = [
        place("ana", is_waiting=False),
        *[place("ben")] * 3,
        *[place("ana")] * 2,
        place("cleo", Lane.BATCH),
        *[place("dan", model="other")] * 4,
    ]
    assert positions("ana", places) == [1, 3]
    assert positions("ben", places) == [1, 3, 4]
    assert positions("cleo", places) == [5]
    assert positions("dan", places) == [0, 1, 2, 3]
    assert positions("nobody", places) == []


def test_it_is_what_the_one_who_came_last_was_told():
    room = WaitingRoom(QueueLimits())
    places = []
    for number, person_id in enumerate("ababcacbbca"):
        lane = Lane.BATCH if number % 4 == 3 else Lane.INTERACTIVE
        ticket = Ticket(
            request_id=str(number), person_id=person_id, num_prompt_tokens=1, num_output_tokens=1,
            lane=lane,
        )  # fmt: skip
        told = room.num_before(ticket)
        room.add(ticket)
        places.append(place(person_id, lane))
        assert positions(person_id, places)[-1] == told
