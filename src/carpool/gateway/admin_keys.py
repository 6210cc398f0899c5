"""The admin API's keys."""

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carpool.gateway.admin_error import AdminError
from carpool.gateway.admin_fields import (
    KeyFields,
    KeysQuery,
    NewKeyFields,
    NoFields,
    NoQuery,
    parse_time,
    read_fields,
    read_query,
)
from carpool.gateway.changes import Changes
from carpool.store.errors import NotFound
from carpool.store.key import Key
from carpool.store.key_store import KeyChanges, KeyStore, NewKey
from carpool.store.key_view import key_view
from carpool.store.lane import Lane
from carpool.store.person import Person


class AdminKeys:
    """Answers that make a key have its text, this once, as `key`."""

    def __init__(self, store: KeyStore, changes: Changes) -> None:
        self._store = store
        self._changes = changes

    def routes(self) -> list[Route]:
        one = "/keys/{key_id}"
        return [
            Route("/keys", self.list_keys, methods=["GET"]),
            Route("/keys", self.add, methods=["POST"]),
            Route(one, self.show, methods=["GET"]),
            Route(one, self.change, methods=["PATCH"]),
            Route(f"{one}/rotate", self.rotate, methods=["POST"]),
            Route(f"{one}/revoke", self.revoke, methods=["POST"]),
        ]

    async def list_keys(self, request: Request) -> Response:
        called = read_query(request, KeysQuery).person
        snapshot = await asyncio.to_thread(self._store.snapshot)
        wanted = None
        if called is not None:
            wanted = (await asyncio.to_thread(self._store.person_called, called)).person_id
        now = time.time()
        views = [
            key_view(key, snapshot.people[key.person_id], now)
            for key in snapshot.keys
            if wanted is None or key.person_id == wanted
        ]
        return JSONResponse({"keys": views})

    async def show(self, request: Request) -> Response:
        read_query(request, NoQuery)
        return await self._answer(await asyncio.to_thread(self._store.get_key, _key_id(request)))

    async def add(self, request: Request) -> Response:
        fields = await read_fields(request, NewKeyFields)
        person = await self._owner(fields.person)
        expires_at = parse_time("expires_at", fields.expires_at)

        def add() -> NewKey:
            return self._store.add_key(
                person.person_id,
                fields.label if "label" in fields.model_fields_set else person.name,
                models=fields.models,
                limits=fields.limits(),
                lane=Lane(fields.lane),
                is_private=fields.is_private,
                expires_at=expires_at,
            )

        new = await self._changes.make(
            request,
            add,
            lambda new: f"added key {new.key.key_id} of person {person.person_id}",
            fields.model_dump(exclude_unset=True),
        )
        return _answer_new(new, person, 201)

    async def change(self, request: Request) -> Response:
        fields = await read_fields(request, KeyFields)
        key_id, changes = _key_id(request), _changes(fields)
        key = await self._changes.make(
            request,
            lambda: self._store.change_key(key_id, **changes),
            lambda changed: f"changed key {key_id}",
            fields.model_dump(exclude_unset=True),
        )
        return await self._answer(key)

    async def rotate(self, request: Request) -> Response:
        await read_fields(request, NoFields)
        key_id = _key_id(request)
        new = await self._changes.make(
            request, lambda: self._store.rotate(key_id), lambda rotated: f"rotated key {key_id}"
        )
        person = await asyncio.to_thread(self._store.get_person, new.key.person_id)
        return _answer_new(new, person)

    async def revoke(self, request: Request) -> Response:
        await read_fields(request, NoFields)
        key_id = _key_id(request)
        key = await self._changes.make(
            request, lambda: self._store.revoke(key_id), lambda revoked: f"revoked key {key_id}"
        )
        return await self._answer(key)

    async def _owner(self, called: str) -> Person:
        try:
            return await asyncio.to_thread(self._store.person_called, called)
        except NotFound as error:
            message = f"person: {error}; add them first, with POST /admin/v1/people"
            raise AdminError(422, "invalid_field", message, param="person") from None

    async def _answer(self, key: Key) -> Response:
        person = await asyncio.to_thread(self._store.get_person, key.person_id)
        return JSONResponse(key_view(key, person, time.time()))


def _key_id(request: Request) -> str:
    key_id: str = request.path_params["key_id"]
    return key_id


def _answer_new(new: NewKey, person: Person, status: int = 200) -> Response:
    view: dict[str, Any] = {"key": new.text} | key_view(new.key, person, time.time())
    return JSONResponse(view, status)


def _changes(fields: KeyFields) -> KeyChanges:
    """Of what the body names. Raises InvalidField."""
    given = fields.model_fields_set
    changes: KeyChanges = {"limits": fields.limit_changes()}
    if "label" in given:
        changes["name"] = fields.label
    if "models" in given:
        changes["models"] = fields.models
    if "lane" in given:
        changes["lane"] = Lane(fields.lane)
    if "is_private" in given:
        changes["is_private"] = fields.is_private
    if "expires_at" in given:
        changes["expires_at"] = parse_time("expires_at", fields.expires_at)
    return changes
