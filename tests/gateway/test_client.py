import asyncio

import pytest

from carpool.gateway.client import Client, ClientGone


def test_what_is_awaited_ends_when_the_client_goes(run, new_client):
    async def scenario():
        asgi = new_client()
        with Client(asgi.receive, asgi.send) as client:
            asyncio.get_running_loop().call_soon(asgi.go)
            with pytest.raises(ClientGone), client.interrupting():
                await asyncio.Event().wait()
            assert client.is_gone
            assert asyncio.current_task().cancelling() == 0
            with pytest.raises(ClientGone), client.interrupting():
                pytest.fail("nothing is begun for a client that is gone")

    run(scenario())


def test_outside_of_it_nothing_is_interrupted(run, new_client):
    async def scenario():
        asgi = new_client()
        with Client(asgi.receive, asgi.send) as client:
            with client.interrupting():
                await asyncio.sleep(0)
            asgi.go()
            while not client.is_gone:
                await asyncio.sleep(0)

    run(scenario())


def test_a_cancellation_from_elsewhere_stays_one(run, new_client):
    async def serve(asgi):
        with Client(asgi.receive, asgi.send) as client, client.interrupting():
            await asyncio.Event().wait()

    async def scenario():
        asgi = new_client()
        task = asyncio.create_task(serve(asgi))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())


def test_a_client_that_has_everything_may_go(run, new_client):
    async def scenario():
        asgi = new_client()
        with Client(asgi.receive, asgi.send) as client:
            with client.interrupting():
                await client.start(200, [])
                await client.finish(b"all")
                asgi.go()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert not client.is_gone

    run(scenario())


def test_a_send_that_fails_is_a_client_that_is_gone(run, new_client):
    async def send(message):
        raise OSError("closed")

    async def scenario():
        with Client(new_client().receive, send) as client:
            with pytest.raises(ClientGone):
                await client.start(200, [])
            assert client.is_gone

    run(scenario())


def test_who_goes_while_its_request_is_being_ended_is_ended_once(run, new_client):
    async def scenario():
        with Client(new_client().receive, new_client().send) as client:

            def end_and_go():
                client.interrupt(ValueError("revoked"))
                client.interrupt(ClientGone())

            asyncio.get_running_loop().call_soon(end_and_go)
            with pytest.raises(ValueError, match="revoked"), client.interrupting():
                await asyncio.Event().wait()
            assert asyncio.current_task().cancelling() == 0

    run(scenario())
