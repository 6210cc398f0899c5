"""The load generator against the mock engine, and what it makes of broken answers."""

import asyncio

import pytest

from benchmarks import rig_load
from benchmarks.rig_engine import CHUNK, MODEL, RigEngine
from benchmarks.rig_load import StampReader, run_requests, run_streams


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(rig_load, "WARM_UP_S", 0.05)
    monkeypatch.setattr(rig_load, "STREAM_S", 0.2)
    monkeypatch.setattr(rig_load, "NUM_STREAMS", 8)


async def floor(load, **options):
    async with RigEngine() as engine:
        return await load(engine.port, MODEL, "", 0.3, **options)


def test_stamps_are_found_whichever_way_the_bytes_are_cut():
    data = b"".join(CHUNK % stamp for stamp in (1, 22, 333))
    for size in (1, 7, len(CHUNK % 1), len(data)):
        reader = StampReader()
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        assert [stamp for piece in pieces for stamp in reader.stamps(piece)] == [1, 22, 333]


def test_as_many_requests_as_can_be():
    found = asyncio.run(floor(run_requests))
    assert found.per_s > 200
    assert found.num_failed == 0
    assert 0 < found.latency_ms.p50 <= found.latency_ms.p99


def test_as_many_requests_as_wanted():
    found = asyncio.run(floor(run_requests, per_s=100))
    assert 50 < found.per_s < 150
    assert found.num_failed == 0


def test_every_stream_has_its_pace():
    found = asyncio.run(floor(run_streams))
    assert found.chunks_per_s == pytest.approx(8 * 50, rel=0.5)
    assert found.num_cut == 0
    assert 0 <= found.delay_ms.p50 <= found.delay_ms.p99


class BrokenServer(asyncio.Protocol):
    """Refuses the first request of a connection and cuts the second."""

    def connection_made(self, transport):
        self.transport = transport
        self.is_first = True

    def data_received(self, data):
        if self.is_first:
            self.transport.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}")
        else:
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{")
            self.transport.close()
        self.is_first = False


@pytest.mark.parametrize("load", [run_requests, run_streams])
def test_refused_and_cut_answers_are_failures(load):
    async def run():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(BrokenServer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await load(port, MODEL, "", 0.3)

    found = asyncio.run(run())
    if load is run_requests:
        assert found.per_s == 0
        assert found.num_failed > 16
    else:
        assert found.chunks_per_s == 0
        assert found.num_cut >= 8
