"""The database: made once by whoever comes first, and honest about what is wrong with it."""

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from carpool.store.database import Database, default_database_url, open_database
from carpool.store.errors import DatabaseAway, StoreError
from carpool.store.key_store import KeyStore
from carpool.store.person import Person
from carpool.store.schema import metadata


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"CARPOOL_HOME": "/a", "XDG_DATA_HOME": "/b"}, "sqlite:////a/carpool.db"),
        ({"XDG_DATA_HOME": "/b"}, "sqlite:////b/carpool/carpool.db"),
        ({}, f"sqlite:///{Path.home()}/.local/share/carpool/carpool.db"),
    ],
)
def test_the_default_is_a_file_in_the_home(environ: dict[str, str], url: str) -> None:
    assert default_database_url(environ) == url


def test_the_default_works_in_a_folder_with_odd_characters(tmp_path: Path) -> None:
    home = tmp_path / "a b%20c?d#e"
    open_database(None, {"CARPOOL_HOME": str(home)})
    assert (home / "carpool.db").is_file()


def test_migrations_lead_to_the_schema_and_may_run_again(database: Database) -> None:
    database.migrate()
    with database.read() as connection:
        context = MigrationContext.configure(connection)
        differences = [
            difference
            for difference in compare_metadata(context, metadata)
            if difference[0] != "remove_table" or difference[1].name != "alembic_version"
        ]
    assert differences == []


def test_people_and_keys_of_an_older_carpool_stay_as_they_were(
    url: str,
) -> None:
    old = Database(url)
    old.migrate("0001")
    with old.write() as connection:
        connection.execute(text("INSERT INTO people VALUES ('ana', 'Ana', 2.5)"))
    old.close()
    new = Database(url)
    new.migrate()
    keys = KeyStore(new)
    assert keys.list_people() == (Person("ana", "Ana", 2.5),)
    assert keys.add_key("ana", "laptop").key.person_id == "ana"
    new.close()


def test_several_processes_may_migrate_at_once(url: str) -> None:
    script = (
        "import sys; from carpool.store.database import Database;"
        "database = Database(sys.argv[1]); print('ready', flush=True);"
        "sys.stdin.read(); database.migrate(); database.close()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    assert [process.wait() for process in processes] == [0] * 4
    database = Database(url)
    assert KeyStore(database).version() == 1
    database.close()


def test_the_file_is_its_owners_alone(sqlite: Database, sqlite_path: Path) -> None:
    sqlite.migrate()
    assert stat.S_IMODE(sqlite_path.stat().st_mode) == 0o600
    connection = sqlite3.connect(sqlite_path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_newer_database_is_left_alone(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer Carpool"):
        database.migrate()


def test_a_write_is_all_or_nothing(database: Database) -> None:
    def add_then_fail() -> None:
        with database.write() as connection:
            connection.execute(
                text("INSERT INTO people (person_id, name, weight) VALUES ('p', 'Ana', 1)")
            )
            raise InterruptedError

    with pytest.raises(InterruptedError):
        add_then_fail()
    assert KeyStore(database).list_people() == ()


def test_a_file_moved_away_is_away_until_it_is_back(sqlite: Database, sqlite_path: Path) -> None:
    sqlite.migrate()
    keys = KeyStore(sqlite)
    elsewhere = sqlite_path.with_name("elsewhere.db")
    sqlite_path.rename(elsewhere)
    with pytest.raises(DatabaseAway, match=r"carpool\.db"):
        keys.add_person("Ana")
    assert not sqlite_path.exists()
    elsewhere.rename(sqlite_path)
    keys.add_person("Ana")


def test_a_locked_file_is_away(
    sqlite: Database, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carpool.store.sqlite_file._BUSY_TIMEOUT_S", 0)
    sqlite.migrate()
    holder = sqlite3.connect(sqlite_path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseAway, match="locked"):
        KeyStore(sqlite).add_person("Ana")
    assert KeyStore(sqlite).version() == 1
    holder.close()


def test_a_server_that_is_not_there_is_away_and_its_password_unsaid() -> None:
    pytest.importorskip("psycopg")
    database = Database("postgresql://ana:hush@127.0.0.1:1/carpool")
    with pytest.raises(DatabaseAway) as caught:
        database.migrate()
    assert "127.0.0.1:1" in str(caught.value)
    assert "hush" not in str(caught.value) + database.url
    database.close()


def test_a_database_without_tables_is_no_outage(sqlite: Database, sqlite_path: Path) -> None:
    sqlite_path.parent.mkdir()
    sqlite_path.touch()
    with pytest.raises(StoreError, match="lacks a table") as caught:
        KeyStore(sqlite).version()
    assert not isinstance(caught.value, DatabaseAway)


def test_a_file_that_is_no_database_is_refused(sqlite: Database, sqlite_path: Path) -> None:
    sqlite_path.parent.mkdir()
    sqlite_path.write_bytes(b"not a database, whatever its name" * 99)
    with pytest.raises(StoreError, match="not a database"):
        sqlite.migrate()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="--database"):
        Database(f"sqlite:///{tmp_path}/file/carpool.db").migrate()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("carpool.db", "not a URL"),
        ("mysql://localhost/carpool", "'mysql'"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:////tmp/carpool.db?mode=ro", "takes no options"),
    ],
)
def test_a_url_of_no_use_is_refused_with_examples(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        Database(url)
    assert "postgresql://" in str(caught.value)
