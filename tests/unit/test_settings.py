"""Settings: which of several values wins, where it came from, and what is said of a bad one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from runstone.errors import SettingsInvalid
from runstone.settings import (
    Setting,
    duration,
    load_effect_settings,
    load_retention_settings,
    load_settings,
    load_write_settings,
)


def load(folder: Path, store: str | None = None, environment: Mapping[str, str] | None = None) -> Setting:
    return load_settings(store=store, environment=environment or {}, folder=folder).store


def write(folder: Path, text: str) -> Path:
    file = folder / "runstone.toml"
    file.write_text(text, "utf-8")
    return file


def test_each_source_gives_way_to_the_one_before(tmp_path: Path) -> None:
    file = write(tmp_path, 'store = "file.db"')
    both = {"RUNSTONE_STORE": "ours.db", "DATABASE_URL": "sqlite:///url.db"}
    assert load(tmp_path, "flag.db", both) == Setting("flag.db", "--store")
    assert load(tmp_path, None, both) == Setting("ours.db", "RUNSTONE_STORE")
    assert load(tmp_path, None, {"DATABASE_URL": "u.db", "RUNSTONE_STORE": ""}) == Setting(
        "u.db", "DATABASE_URL"
    )
    assert load(tmp_path) == Setting("file.db", str(file))
    file.write_text("# nothing set\n", "utf-8")
    assert load(tmp_path) == Setting("runstone.db", "the default")
    file.unlink()
    assert load(tmp_path) == Setting("runstone.db", "the default")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("runstone.db", "runstone.db"),
        ("/var/lib/a b.db", "/var/lib/a b.db"),
        ("sqlite:///runstone.db", "runstone.db"),
        ("sqlite:////var/lib/runstone.db", "/var/lib/runstone.db"),
        ("größe.db", "größe.db"),
    ],
)
def test_a_store_is_a_path_or_a_url_of_one(value: str, path: str, tmp_path: Path) -> None:
    settings = load_settings(store=value, environment={}, folder=tmp_path)
    assert settings.store_path == Path(path)


@pytest.mark.parametrize(
    ("value", "url", "place"),
    [
        ("postgresql://ada:s@h:5433/db", "postgresql://ada:s@h:5433/db", "postgresql://h:5433/db"),
        (
            "postgres://ada:s@h/db?sslmode=require",
            "postgresql://ada:s@h/db?sslmode=require",
            "postgresql://h/db",
        ),
        ("postgresql+asyncpg://ada@h/db", "postgresql://ada@h/db", "postgresql://h/db"),
        ("postgresql:///db?host=/run/pg", "postgresql:///db?host=/run/pg", "postgresql://localhost/db"),
        ("postgresql://ada@one:1,two:2/db", "postgresql://ada@one:1,two:2/db", "postgresql://one:1,two:2/db"),
        ("postgresql://ada@:5433/db", "postgresql://ada@:5433/db", "postgresql://:5433/db"),
        ("postgresql://h/db?user=a@b", "postgresql://h/db?user=a@b", "postgresql://h/db"),
        ("postgresql://a:b:%2F@[::1]:1/db", "postgresql://a:b:%2F@[::1]:1/db", "postgresql://[::1]:1/db"),
        ("postgresql://%2Frun%2Fpg/db", "postgresql://%2Frun%2Fpg/db", "postgresql://%2Frun%2Fpg/db"),
    ],
)
def test_a_store_may_be_a_database(value: str, url: str, place: str, tmp_path: Path) -> None:
    """Drivers of others in the scheme are left out; what is shown has neither user nor password."""
    settings = load_settings(store=None, environment={"DATABASE_URL": value}, folder=tmp_path)
    assert (settings.database_url, settings.location, settings.place) == (url, url, place)
    with pytest.raises(SettingsInvalid, match="is a PostgreSQL database, and here a file is needed"):
        _ = settings.store_path


def test_a_file_is_no_database(tmp_path: Path) -> None:
    settings = load_settings(store=str(tmp_path / "a.db"), environment={}, folder=tmp_path)
    assert settings.database_url is None
    assert settings.location == settings.place == str(tmp_path / "a.db")


def test_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert load_settings(store="~/a.db", environment={}, folder=tmp_path).store_path == Path("/home/ada/a.db")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "is no path: give one"),
        ("  ", "is no path: give one"),
        ("sqlite:///", "is no path: give one"),
        ("a\0b", "is no path: give one"),
        ("sqlite://a.db", "is no store: give a path, sqlite:///path, folder:path or postgresql://"),
        ("redis://host", "is no store: give a path, sqlite:///path, folder:path or postgresql://"),
        ("sqlite:///a.db?mode=ro", "has options after its path: leave them out"),
        ("~nobody-of-that-name/a.db", "begins with a home folder that nobody has"),
        (
            "mysql://ada:secret@host/db",
            "is no store: give a path, sqlite:///path, folder:path or postgresql://",
        ),
        ("postgresql://ada:secret@[host/db", "is no URL: write postgresql://user@host/database"),
        ("postgresql://ada:secret/1@host/db", "percent-encode / # ? @ : in the password"),
        ("postgresql://ada:17/secret@host/db", "percent-encode / # ? @ : in the password"),
        ("postgresql://ada:secret#1@host/db", "percent-encode / # ? @ : in the password"),
        ("postgresql://ada:secret?1@host/db", "percent-encode / # ? @ : in the password"),
        ("postgresql://ada:secret@1@host/db", "percent-encode / # ? @ : in the password"),
        ("postgresql://ada:secret@host:db/db", "is no URL: write postgresql://user@host/database"),
        ("postgresql://ada:secret@host:65536/db", "is no URL: write postgresql://user@host/database"),
        ("postgresql://ada:secret@one:1,/db", "is no URL: write postgresql://user@host/database"),
    ],
)
def test_a_bad_value_is_refused_and_its_origin_named(value: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        load(tmp_path, value)
    assert said in str(refused.value)
    assert "(from --store)" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("store = ", "is not valid TOML"),
        ("store = 7", 'write it as text, store = "runstone.db"'),
        ('stroe = "a.db"', "sets 'stroe', which is no setting: use store"),
        ('[store]\npath = "a.db"', "write it as text"),
    ],
)
def test_a_bad_file_is_refused_by_its_name(text: str, said: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SettingsInvalid) as refused:
        load(tmp_path)
    assert str(file) in str(refused.value)
    assert said in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runstone.toml").write_bytes(b"\xff")
    with pytest.raises(SettingsInvalid, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "runstone.toml").unlink()
    (tmp_path / "runstone.toml").mkdir()
    with pytest.raises(SettingsInvalid, match="cannot be read"):
        load(tmp_path)


def test_a_flag_spares_the_file(tmp_path: Path) -> None:
    write(tmp_path, "not toml at all")
    assert load(tmp_path, "flag.db").value == "flag.db"


class TestWriting:
    """How long a write may take (§ENG-33)."""

    def options(self, folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, object]:
        return load_write_settings(environment=environment or {}, folder=folder).options()

    def test_the_defaults(self, tmp_path: Path) -> None:
        assert self.options(tmp_path) == {
            "write_latency_budget_ms": 3000,
            "fail_open": ["STEP_STARTED"],
            "never_fail_open": ["STEP_COMPLETED", "STEP_FAILED"],
        }

    def test_the_environment_goes_before_the_file(self, tmp_path: Path) -> None:
        file = write(tmp_path, 'write_latency_budget_ms = 500\nfail_open = []\nstore = "a.db"')
        environment = {"RUNSTONE_WRITE_LATENCY_BUDGET_MS": "700", "RUNSTONE_NEVER_FAIL_OPEN": "A,B , C"}
        settings = load_write_settings(environment=environment, folder=tmp_path)
        assert settings.write_latency_budget_ms == Setting("700", "RUNSTONE_WRITE_LATENCY_BUDGET_MS")
        assert settings.fail_open == Setting("", str(file))
        assert settings.options() == {
            "write_latency_budget_ms": 700,
            "fail_open": [],
            "never_fail_open": ["A", "B", "C"],
        }
        assert self.options(tmp_path)["write_latency_budget_ms"] == 500

    def test_an_empty_list_can_be_said_in_the_environment_too(self, tmp_path: Path) -> None:
        assert self.options(tmp_path, {"RUNSTONE_FAIL_OPEN": ""})["fail_open"] == []

    def test_what_is_no_number_is_refused_and_its_origin_named(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsInvalid, match=r"'soon' \(from RUNSTONE_WRITE_LATENCY_BUDGET_MS\)"):
            self.options(tmp_path, {"RUNSTONE_WRITE_LATENCY_BUDGET_MS": "soon"})

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("write_latency_budget_ms = true", "write_latency_budget_ms = 3000"),
            ("write_latency_budget_ms = 1.5", "write_latency_budget_ms = 3000"),
            ("fail_open = [7]", 'fail_open = ["STEP_STARTED"]'),
            ("fail_openly = []", "which is no setting"),
        ],
    )
    def test_a_bad_file_says_how_to_write_it(self, text: str, said: str, tmp_path: Path) -> None:
        write(tmp_path, text)
        with pytest.raises(SettingsInvalid) as refused:
            self.options(tmp_path)
        assert said in str(refused.value)


class TestFolders:
    """A store can be a folder of runs."""

    @pytest.mark.parametrize("value", ["folder:there", "folder://there", "folder:./there"])
    def test_it_is_named_as_one(self, value: str, tmp_path: Path) -> None:
        settings = load_settings(store=value, environment={}, folder=tmp_path)
        assert settings.folder == Path("there")
        assert settings.location == "folder:there"
        assert settings.place == str(Path("there").absolute())
        assert settings.database_url is None

    def test_a_path_is_one_where_a_folder_is(self, tmp_path: Path) -> None:
        settings = load_settings(store=str(tmp_path), environment={}, folder=tmp_path)
        assert settings.folder == tmp_path
        assert load_settings(store=settings.location, environment={}, folder=tmp_path).folder == tmp_path

    def test_a_file_or_a_database_is_none(self, tmp_path: Path) -> None:
        for value in ("runs.db", "sqlite:///runs.db", "postgresql://h/d"):
            assert load_settings(store=value, environment={}, folder=tmp_path).folder is None

    def test_a_folder_needs_a_path(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsInvalid, match="is no path"):
            load_settings(store="folder:", environment={}, folder=tmp_path)


def unsafe(folder: Path, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    return load_settings(store="postgresql://host/db", environment=environment or {}, folder=folder).unsafe


def test_what_a_server_may_have_switched_off_is_named(tmp_path: Path) -> None:
    assert unsafe(tmp_path) == ()
    write(tmp_path, 'unsafe = ["fsync"]')
    assert unsafe(tmp_path) == ("fsync",)
    said = {"RUNSTONE_UNSAFE": "full_page_writes, synchronous_commit"}
    assert unsafe(tmp_path, said) == ("full_page_writes", "synchronous_commit")
    assert unsafe(tmp_path, {"RUNSTONE_UNSAFE": ""}) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('unsafe = ["wal_level"]', "calls 'wal_level' unsafe: name fsync"),
        ("unsafe = true", 'write it as a list, unsafe = ["fsync"]'),
    ],
)
def test_nothing_else_can_be_called_unsafe(text: str, said: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SettingsInvalid) as refused:
        unsafe(tmp_path)
    assert str(file) in str(refused.value)
    assert said in str(refused.value)


class TestEffects:
    """How effects go out: a table in the file, and the environment over it."""

    def test_nothing_set(self, tmp_path: Path) -> None:
        found = load_effect_settings(environment={}, folder=tmp_path)
        assert (found.tables, found.smtp_url, found.secrets, list(found.alerts)) == ({}, None, {}, [])

    def test_the_environment_comes_before_the_file(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            '[effects]\nalerts = ["json://a"]\n[effects.email]\nsender = "a@b"\n'
            '[effects.secrets]\nA = "1"\nb = "2"\n',
        )
        found = load_effect_settings(environment={}, folder=tmp_path)
        assert (found.tables, found.secrets) == ({"email": {"sender": "a@b"}}, {"A": "1", "b": "2"})
        assert list(found.alerts) == ["json://a"]
        environment = {
            "RUNSTONE_SMTP_URL": "smtp://host?sender=a@b",
            "RUNSTONE_ALERTS": "json://b json://c",
            "RUNSTONE_SECRET_B": "3",
        }
        found = load_effect_settings(environment=environment, folder=tmp_path)
        assert (found.smtp_url, list(found.alerts)) == ("smtp://host?sender=a@b", ["json://b", "json://c"])
        assert found.secrets == {"A": "1", "b": "3"}
        assert "3" not in repr(found)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("effects = 5", "write it as a table"),
            ("[effects]\nfax = 1", "effects.fax"),
            ('[effects]\nalerts = "x"', "list of URLs"),
            ("[effects]\nemail = 1", "no table"),
        ],
    )
    def test_a_bad_value_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        write(tmp_path, text)
        with pytest.raises(SettingsInvalid, match=message):
            load_effect_settings(environment={}, folder=tmp_path)


def test_how_long_things_are_kept_and_where_they_go(tmp_path: Path) -> None:
    default = load_retention_settings(environment={}, folder=tmp_path)
    assert (default.runs, default.signals, default.archive) == (timedelta(days=90), timedelta(days=30), None)
    file = write(tmp_path, '[retention]\nolder_than = "1d"\nsignals_older_than = "2h"\narchive = "old"')
    named = load_retention_settings(environment={}, folder=tmp_path)
    assert (named.runs, named.signals, named.archive) == (timedelta(days=1), timedelta(hours=2), "old")
    assert named.older_than.origin == str(file)
    environment = {"RUNSTONE_RETENTION_OLDER_THAN": "7d", "RUNSTONE_RETENTION_ARCHIVE": "/old"}
    over = load_retention_settings(environment=environment, folder=tmp_path)
    assert (over.runs, over.signals, over.archive) == (timedelta(days=7), timedelta(hours=2), "/old")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retention = 3", "write it as a table"),
        ("[retention]\nfor_ever = true", "retention.for_ever, which is no setting"),
        ("[retention]\nolder_than = 90", "write it as text"),
        ('[retention]\nolder_than = "ninety"', "'ninety' is no time"),
    ],
)
def test_what_is_wrong_about_retention(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, text)
    with pytest.raises(SettingsInvalid, match=said):
        assert load_retention_settings(environment={}, folder=tmp_path).runs


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "1.5d", "9w", "٣d", "9" * 20 + "d"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        duration(text)
