import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.gateway.json_object import JsonObject, JsonObjectError

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), values, max_size=6)
indents = st.sampled_from([None, 0, 2])


def test_a_changed_field_leaves_every_other_byte_alone():
    raw = '{ "model" : "fast",\n "x": [1.0e2, "é \\u00e9"],"n":1e400 }'.encode()

    changed = JsonObject.parse(raw).changed({"model": "Qwen/Qwen3"})

    assert changed == raw.replace(b'"fast"', b'"Qwen/Qwen3"')


def test_a_missing_field_is_added_in_front():
    assert JsonObject.parse(b'{"a": 1}').changed({"b": {"c": True}}) == b'{"b":{"c":true},"a": 1}'
    assert JsonObject.parse(b" { } ").changed({"b": 1}) == b' {"b":1 } '


def test_nothing_to_change_gives_the_same_bytes():
    raw = b'  {"model":"a" , "b":2}\n'
    assert JsonObject.parse(raw).changed({"model": "a"}) is raw
    assert JsonObject.parse(raw).changed({}, {"missing": "x"}) is raw


@pytest.mark.parametrize(
    ("raw", "values", "renames", "removals", "expected"),
    [
        (b'{"a":1, "b":2}', {}, {"a": "c"}, (), b'{"c":1, "b":2}'),
        (b'{"a":1, "b":2}', {"c": 9}, {"a": "c"}, (), b'{"c":9, "b":2}'),
        (b'{"a":1, "b":2}', {}, {"a": "b"}, (), b'{"b":1}'),
        (b'{"a":1, "b":2}', {}, {}, ("a",), b'{ "b":2}'),
        (b'{"a":1, "b":2}', {}, {}, ("b",), b'{"a":1}'),
        (b'{"a":1, "b":2}', {}, {}, ("a", "b"), b"{}"),
        (b'{"a":1, "b":2}', {"b": 5}, {}, ("a",), b'{ "b":5}'),
    ],
)
def test_fields_are_renamed_and_removed(raw, values, renames, removals, expected):
    assert JsonObject.parse(raw).changed(values, renames, removals) == expected


@given(objects, indents, objects, st.lists(st.text(), max_size=3))
def test_a_change_means_what_it_says(fields, indent, changes, removals):
    raw = json.dumps(fields, indent=indent).encode()
    kept = {name: value for name, value in fields.items() if name not in removals}
    changes = {name: value for name, value in changes.items() if name not in removals}

    item = JsonObject.parse(raw)

    assert item.fields == fields
    assert json.loads(item.changed(changes, {}, removals)) == {**kept, **changes}


@given(objects, indents, objects)
def test_a_nested_object_is_replaced_in_place(inner, indent, new):
    raw = json.dumps({"id": 1, "inner": inner, "last": []}, indent=indent).encode()
    item = JsonObject.parse(raw)

    nested = item.nested("inner")

    assert nested is not None
    assert item.with_nested("inner", nested.raw) == raw
    replaced = json.loads(item.with_nested("inner", json.dumps(new).encode()))
    assert replaced == {"id": 1, "inner": new, "last": []}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'"text"',
        b"{",
        b'{"a"}',
        b'{"a":}',
        b'{"a":1,}',
        b'{"a":1} {"b":2}',
        b"{a:1}",
        b'{"a":1 "b":2}',
        b'{"a":"\xff"}',
        b'{"a":' + b"[" * 200_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
    ids=lambda raw: repr(raw[:16]),
)
def test_what_is_no_object_is_refused(raw):
    with pytest.raises(JsonObjectError):
        JsonObject.parse(raw)


def test_a_field_named_twice_is_refused_since_an_engine_may_read_the_other():
    with pytest.raises(JsonObjectError, match="'model' is given twice"):
        JsonObject.parse(b'{"model":"allowed","mod\\u0065l":"other"}')


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_in_json_is_refused(name):
    with pytest.raises(JsonObjectError, match=f"it holds {name}$"):
        JsonObject.parse(b'{"a": [%s]}' % name.encode())
