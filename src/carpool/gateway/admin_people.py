"""The admin API's people."""

import asyncio
import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carpool.gateway.admin_fields import (
    NewPersonFields,
    NoQuery,
    PersonFields,
    RemovalQuery,
    read_fields,
    read_query,
)
from carpool.gateway.changes import Changes
from carpool.store.key_store import KeyStore, PersonChanges
from carpool.store.person import Person
from carpool.store.person_view import person_view


class AdminPeople:
    """`{person}` is a person's id or name."""

    def __init__(self, store: KeyStore, changes: Changes) -> None:
        self._store = store
        self._changes = changes

    def routes(self) -> list[Route]:
        one = "/people/{person}"
        return [
            Route("/people", self.list_people, methods=["GET"]),
            Route("/people", self.add, methods=["POST"]),
            Route(one, self.show, methods=["GET"]),
            Route(one, self.change, methods=["PATCH"]),
            Route(one, self.remove, methods=["DELETE"]),
        ]

    async def list_people(self, request: Request) -> Response:
        read_query(request, NoQuery)
        snapshot = await asyncio.to_thread(self._store.snapshot)
        now = time.time()
        views = [person_view(person, snapshot.keys, now) for person in snapshot.people.values()]
        return JSONResponse({"people": views})

    async def show(self, request: Request) -> Response:
        read_query(request, NoQuery)
        return await self._answer(await self._person(request))

    async def add(self, request: Request) -> Response:
        fields = await read_fields(request, NewPersonFields)
        person = await self._changes.make(
            request,
            lambda: self._store.add_person(fields.name, fields.weight, fields.limits()),
            lambda added: f"added person {added.person_id}",
            fields.model_dump(exclude_unset=True),
        )
        return await self._answer(person, 201)

    async def change(self, request: Request) -> Response:
        fields = await read_fields(request, PersonFields)
        person_id = (await self._person(request)).person_id
        changes: PersonChanges = {"limits": fields.limit_changes()}
        if "name" in fields.model_fields_set:
            changes["name"] = fields.name
        if "weight" in fields.model_fields_set:
            changes["weight"] = fields.weight
        person = await self._changes.make(
            request,
            lambda: self._store.change_person(person_id, **changes),
            lambda changed: f"changed person {person_id}",
            fields.model_dump(exclude_unset=True),
        )
        return await self._answer(person)

    async def remove(self, request: Request) -> Response:
        with_keys = read_query(request, RemovalQuery).revoke_keys == "true"
        person_id = (await self._person(request)).person_id
        person = await self._changes.make(
            request,
            lambda: self._store.remove_person(person_id, with_keys=with_keys),
            lambda removed: f"removed person {person_id}",
            {"revoke_keys": with_keys},
        )
        return JSONResponse(person_view(person, (), time.time()))

    async def _person(self, request: Request) -> Person:
        return await asyncio.to_thread(self._store.person_called, request.path_params["person"])

    async def _answer(self, person: Person, status: int = 200) -> Response:
        keys = await asyncio.to_thread(self._store.list_keys)
        return JSONResponse(person_view(person, keys, time.time()), status)
