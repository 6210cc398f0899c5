"""From a word or an address to an engine, and engines that nobody here started."""

import pytest

from carpool.backends.address import Address, BackendAddressError
from carpool.backends.backend import BackendKind, BackendState, BackendUnreachable
from carpool.backends.capacity_facts import CapacityFacts
from carpool.backends.create import UnknownBackend, attach, is_url, launch
from carpool.scheduling.capacity import Capacity, Provenance

KINDS = ["embedded", "vllm", "sglang", "llama.cpp", "ollama"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_launched_by_its_name(kind, tmp_path):
    backend = launch(kind, "main", "m", run_folder=tmp_path, max_num_seqs=4, max_model_len=2048)
    assert (backend.kind.value, backend.name) == (kind, "main")
    words = [*backend.command().argv, *backend.command().env.values()]
    assert "4" in words
    assert {"2048", "8192"} & set(words)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_attached_to_by_its_name_and_an_address(kind):
    backend = attach("main", f"{kind}+http://gpu:8000/v1", model="m", api_key="k")
    assert (backend.kind.value, backend.address) == (kind, Address("gpu", 8000))
    assert backend.command() is None


def test_an_address_alone_is_any_server():
    assert attach("main", "https://ai.example/api/v1").kind is BackendKind.REMOTE
    assert [is_url(text) for text in ("http://gpu", "vllm+http://gpu", "vllm")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("word", ["tgi", "remote", ""])
def test_what_is_no_engine_is_refused(word, tmp_path):
    with pytest.raises(UnknownBackend):
        launch(word, "main", "m", run_folder=tmp_path)


def test_an_address_of_no_engine_is_refused():
    with pytest.raises(UnknownBackend, match="tgi"):
        attach("main", "tgi+http://gpu")
    with pytest.raises(BackendAddressError):
        attach("main", "ftp://gpu")


def probe(within, answering, status, body="{}"):
    async def run():
        async with answering({"/v1/models": (status, body)}) as port:
            backend = attach("main", f"http://127.0.0.1:{port}", model="b", api_key="secret")
            return await backend.probe(), await backend.read_capacity()

    return within(run())


MODELS = '{"data": [{"id": "a", "context_length": 1000}, {"id": "b", "context_length": 131072}]}'


def test_a_remote_server_is_told_apart_by_its_model(within, answering):
    state, capacity = probe(within, answering, 200, MODELS)
    assert state is BackendState.READY
    assert capacity == Capacity(64, 64 * 131072, 131072, Provenance.PREDICTED)


@pytest.mark.parametrize("status", [404, 405, 429])
def test_one_without_a_list_of_models_is_there_all_the_same(within, answering, status):
    assert probe(within, answering, status)[0] is BackendState.READY


@pytest.mark.parametrize("status", [401, 403, 500, 502, 503])
def test_one_that_cannot_serve_is_not(within, answering, status):
    with pytest.raises(BackendUnreachable) as refused:
        probe(within, answering, status)
    assert "secret" not in str(refused.value)
    assert ("is its key right?" in str(refused.value)) == (status in (401, 403))


def test_what_a_person_set_goes_before_all_else(within, answering):
    async def run():
        async with answering({"/v1/models": (200, MODELS)}) as port:
            known = CapacityFacts(8, 5000, 4000)
            backend = attach("main", f"http://127.0.0.1:{port}", known=known)
            return await backend.read_capacity()

    assert within(run()) == Capacity(8, 5000, 4000, Provenance.REPORTED)
