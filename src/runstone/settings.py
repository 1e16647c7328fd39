"""Settings: flags over environment over `runstone.toml` over defaults; each value knows where it came from.

Where the store is, how long writing to it may take, how effects go out, and how long things are kept.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

from runstone.errors import SettingsInvalid

FILE: Final = "runstone.toml"
DEFAULT_STORE: Final = "runstone.db"
VARIABLES: Final = ("RUNSTONE_STORE", "DATABASE_URL")
"""Environment variables that name the store, the first that is set wins; an empty one is not set."""

WRITING: Final = {
    "write_latency_budget_ms": "3000",
    "fail_open": "STEP_STARTED",
    "never_fail_open": "STEP_COMPLETED, STEP_FAILED",
}
"""What is said about writing, and what holds if nobody says anything; in the environment as `RUNSTONE_…`."""

EFFECTS: Final = ("http", "email", "chat", "notify", "secrets", "alerts")
"""What stands under `[effects]` in the file."""

UNSAFE: Final = ("fsync", "full_page_writes", "synchronous_commit")
"""What a database server may have switched off only if it is named in `unsafe`: for tests."""

RETENTION: Final = {"older_than": "90d", "signals_older_than": "30d", "archive": ""}
"""What stands under `[retention]`, and what holds if nobody says anything; else `RUNSTONE_RETENTION_…`."""

_KNOWN: Final = ("store", *WRITING, "effects", "retention", "unsafe")
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SQLITE: Final = "sqlite:///"
_FOLDER: Final = "folder:"
_POSTGRES: Final = ("postgres", "postgresql")
_EXAMPLE: Final = "postgresql://user@host/database"
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]+)(?::([0-9]{1,5})?)?|:([0-9]{1,5})")
"""With none, the port is this machine's."""
_OPTION: Final = re.compile("[a-z_]+=.*")


@dataclass(frozen=True)
class Setting:
    """A value and its origin, in words that a person can act on."""

    value: str
    origin: str


@dataclass(frozen=True)
class Settings:
    """Where the store is, and what its server may have switched off."""

    store: Setting
    unsafe: tuple[str, ...] = ()

    @property
    def database_url(self) -> str | None:
        """The PostgreSQL database that the store is in, if it is in one."""
        return _database(self.store)

    @property
    def folder(self) -> Path | None:
        """The folder of runs that the store is, if it is one: named `folder:PATH`, or there already."""
        if self.store.value.startswith(_FOLDER):
            return _expanded(self.store, self.store.value.removeprefix(_FOLDER).removeprefix("//"))
        if self.database_url is not None:
            return None
        path = _path(self.store)
        return path if path.is_dir() else None

    @property
    def store_path(self) -> Path:
        """The file of a store that is one."""
        return _path(self.store)

    @property
    def location(self) -> str:
        """Where the store is: a URL or a path."""
        if self.folder is not None:
            return f"{_FOLDER}{self.folder}"
        return self.database_url or str(self.store_path)

    @property
    def place(self) -> str:
        """The same, fit to be shown: without user and password."""
        if self.folder is not None:
            return str(self.folder.absolute())
        if self.database_url is None:
            return str(self.store_path.absolute())
        parts = urlsplit(self.database_url)
        return f"postgresql://{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path}"


@dataclass(frozen=True)
class WriteSettings:
    """How long a write may take, and which types of event may take longer."""

    write_latency_budget_ms: Setting
    fail_open: Setting
    never_fail_open: Setting

    @property
    def milliseconds(self) -> int:
        setting = self.write_latency_budget_ms
        try:
            return int(setting.value)
        except ValueError as error:
            raise SettingsInvalid(
                f"write_latency_budget_ms is {setting.value!r} (from {setting.origin}): give a whole number"
            ) from error

    def options(self) -> dict[str, object]:
        """The same, as a runtime takes it."""
        return {
            "write_latency_budget_ms": self.milliseconds,
            "fail_open": listed(self.fail_open.value),
            "never_fail_open": listed(self.never_fail_open.value),
        }


@dataclass(frozen=True)
class EffectSettings:
    """How effects go out: one table per executor, secrets by name, and whom dead letters alert."""

    tables: Mapping[str, Mapping[str, object]]
    smtp_url: str | None
    secrets: Mapping[str, str]
    alerts: Sequence[str]

    def __repr__(self) -> str:
        return f"EffectSettings({sorted(self.tables)})"


def load_effect_settings(*, environment: Mapping[str, str], folder: Path) -> EffectSettings:
    """`[effects]` in the folder's `runstone.toml`, and over it the environment.

    `RUNSTONE_SMTP_URL` says how mail goes out, `RUNSTONE_ALERTS` whom dead letters alert (Apprise URLs
    with white space between them), `RUNSTONE_SECRET_…` what the secret of that name is, in lower case.
    """
    file = folder / FILE
    found = _checked(file).get("effects", {})
    if not isinstance(found, dict):
        raise SettingsInvalid(f"{file} sets effects to {found!r}: write it as a table, [effects]")
    unknown = sorted(found.keys() - set(EFFECTS))
    if unknown:
        raise SettingsInvalid(
            f"{file} sets effects.{unknown[0]}, which is no setting: use {', '.join(EFFECTS)}"
        )
    alerts = found.get("alerts", [])
    if not isinstance(alerts, list) or not all(isinstance(url, str) for url in alerts):
        raise SettingsInvalid(f"{file} sets effects.alerts to something else than a list of URLs")
    tables = {name: table for name, table in found.items() if name != "alerts"}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise SettingsInvalid(f"{file} sets effects.{name} to no table: write [effects.{name}]")
    secrets = {name: str(value) for name, value in tables.pop("secrets", {}).items()}
    prefix = "RUNSTONE_SECRET_"
    secrets |= {
        name.removeprefix(prefix).lower(): value
        for name, value in environment.items()
        if name.startswith(prefix)
    }
    return EffectSettings(
        tables=tables,
        smtp_url=environment.get("RUNSTONE_SMTP_URL") or None,
        secrets=secrets,
        alerts=(environment.get("RUNSTONE_ALERTS") or "").split() or alerts,
    )


@dataclass(frozen=True)
class RetentionSettings:
    """How long things are kept, and where they go then."""

    older_than: Setting
    signals_older_than: Setting
    archive_folder: Setting

    @property
    def runs(self) -> timedelta:
        return _kept("older_than", self.older_than)

    @property
    def signals(self) -> timedelta:
        return _kept("signals_older_than", self.signals_older_than)

    @property
    def archive(self) -> str | None:
        return self.archive_folder.value or None


def load_retention_settings(*, environment: Mapping[str, str], folder: Path) -> RetentionSettings:
    """`[retention]` in the folder's `runstone.toml`, and over it the environment."""
    file = folder / FILE
    found = _checked(file).get("retention", {})
    if not isinstance(found, dict):
        raise SettingsInvalid(f"{file} sets retention to {found!r}: write it as a table, [retention]")
    for name, value in found.items():
        if name not in RETENTION:
            known = ", ".join(RETENTION)
            raise SettingsInvalid(f"{file} sets retention.{name}, which is no setting: use {known}")
        if not isinstance(value, str):
            raise SettingsInvalid(
                f'{file} sets retention.{name} to {value!r}: write it as text, such as "90d"'
            )
    settings = [
        _from_variable(f"retention_{name}", environment)
        or (Setting(found[name], str(file)) if name in found else Setting(default, "the default"))
        for name, default in RETENTION.items()
    ]
    return RetentionSettings(*settings)


def duration(text: str) -> timedelta:
    """A time such as 90d, 12h, 30m or 45s."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    if not (number.isascii() and number.isdigit() and unit in _UNITS):
        raise ValueError(f"{text!r} is no time: write a whole number and d, h, m or s, such as 90d")
    try:
        return timedelta(**{_UNITS[unit]: int(number)})
    except OverflowError:
        raise ValueError(f"{text!r} is longer than there is time") from None


def _kept(name: str, setting: Setting) -> timedelta:
    try:
        return duration(setting.value)
    except ValueError as error:
        raise SettingsInvalid(f"retention.{name} (from {setting.origin}): {error}") from error


def listed(text: str) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def load_write_settings(*, environment: Mapping[str, str], folder: Path) -> WriteSettings:
    """What the environment says about writing, then the folder's `runstone.toml`, then the defaults."""
    file = folder / FILE
    values = _checked(file)
    found = {
        name: _from_variable(name, environment)
        or _from_value(name, values, file)
        or Setting(default, "the default")
        for name, default in WRITING.items()
    }
    return WriteSettings(**found)


def _from_variable(name: str, environment: Mapping[str, str]) -> Setting | None:
    variable = f"RUNSTONE_{name.upper()}"
    return Setting(environment[variable], variable) if variable in environment else None


def _from_value(name: str, values: Mapping[str, object], file: Path) -> Setting | None:
    if name not in values:
        return None
    value = values[name]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SettingsInvalid(
            f"{file} sets {name} to {value!r}: write it as in {name} = {_example(WRITING[name])}"
        )
    return Setting(str(value), str(file))


def _example(text: str) -> str:
    return text if text.isdigit() else str(listed(text)).replace("'", '"')


def load_settings(*, store: str | None, environment: Mapping[str, str], folder: Path) -> Settings:
    """The settings as a flag, the environment and the folder's `runstone.toml` give them, in this order."""
    settings = Settings(
        store=_from_flag(store)
        or _from_environment(environment)
        or _from_file(folder / FILE)
        or Setting(DEFAULT_STORE, "the default")
    )
    if settings.database_url is not None:
        return replace(settings, unsafe=_unsafe(environment, folder / FILE))
    if settings.folder is None:
        _path(settings.store)
    return settings


def _unsafe(environment: Mapping[str, str], file: Path) -> tuple[str, ...]:
    """`RUNSTONE_UNSAFE`, or `unsafe` in the file: names with commas between them, or a list of names."""
    setting = _from_variable("unsafe", environment)
    if setting is None:
        value = _checked(file).get("unsafe", [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise SettingsInvalid(f'{file} sets unsafe to {value!r}: write it as a list, unsafe = ["fsync"]')
        setting = Setting(", ".join(value), str(file))
    names = tuple(listed(setting.value))
    unknown = [name for name in names if name not in UNSAFE]
    if unknown:
        raise SettingsInvalid(f"{setting.origin} calls {unknown[0]!r} unsafe: name {', '.join(UNSAFE)}")
    return names


def _from_flag(value: str | None) -> Setting | None:
    return None if value is None else Setting(value, "--store")


def _from_environment(environment: Mapping[str, str]) -> Setting | None:
    found = (Setting(environment[name], name) for name in VARIABLES if environment.get(name))
    return next(found, None)


def _checked(file: Path) -> dict[str, object]:
    values = _read(file)
    unknown = sorted(values.keys() - set(_KNOWN))
    if unknown:
        raise SettingsInvalid(f"{file} sets {unknown[0]!r}, which is no setting: use {', '.join(_KNOWN)}")
    return values


def _from_file(file: Path) -> Setting | None:
    values = _checked(file)
    if "store" not in values:
        return None
    value = values["store"]
    if not isinstance(value, str):
        raise SettingsInvalid(f'{file} sets store to {value!r}: write it as text, store = "{DEFAULT_STORE}"')
    return Setting(value, str(file))


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"{file} cannot be read: {error}. Repair or remove it") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsInvalid(f"{file} is not valid TOML: {error}. Repair or remove it") from error


def _database(store: Setting) -> str | None:
    """A URL of PostgreSQL as its driver takes it; SQLAlchemy writes its own driver into the scheme."""
    scheme, found, rest = store.value.partition("://")
    if not found or scheme.split("+")[0].lower() not in _POSTGRES:
        return None
    url = f"postgresql://{rest}"
    if not _is_url(url):
        named = _named(Setting("postgresql://…", store.origin))
        raise SettingsInvalid(
            f"{named} is no URL: write {_EXAMPLE}, and percent-encode / # ? @ : in the password, / as %2F"
        )
    return url


def _is_url(url: str) -> bool:
    """Whether its parts are where they seem to be: what stands in a password as it is would end it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    _, _, hosts = parts.netloc.rpartition("@")
    alone = "@" not in parts.path and "#" not in url and parts.netloc.count("@") <= 1
    options = all("@" not in option or _OPTION.fullmatch(option) for option in parts.query.split("&"))
    return alone and options and (not hosts or all(map(_is_host, hosts.split(","))))


def _is_host(host: str) -> bool:
    found = _HOST.fullmatch(host)
    return found is not None and int(found[1] or found[2] or 1) in range(1, 65536)


def _path(store: Setting) -> Path:
    """A plain path as it is; `sqlite:///` and a path, relative unless a fourth slash begins it."""
    value = store.value
    if value.startswith(_SQLITE):
        value = value.removeprefix(_SQLITE)
        if "?" in value or "#" in value:
            raise SettingsInvalid(f"{_named(store)} has options after its path: leave them out")
    elif "://" in value:
        _refuse_url(store)
    return _expanded(store, value)


def _expanded(store: Setting, value: str) -> Path:
    if not value.strip() or "\0" in value:
        raise SettingsInvalid(f"{_named(store)} is no path: give one, such as {DEFAULT_STORE}")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise SettingsInvalid(f"{_named(store)} begins with a home folder that nobody has") from error


def _refuse_url(store: Setting) -> NoReturn:
    """Says what is wrong with a URL, and never shows all of it: it may hold a password."""
    scheme = store.value.partition("://")[0]
    named = _named(Setting(f"{scheme}://…", store.origin))
    if scheme.split("+")[0].lower() in _POSTGRES:
        raise SettingsInvalid(f"{named} is a PostgreSQL database, and here a file is needed: give its path")
    raise SettingsInvalid(f"{named} is no store: give a path, {_SQLITE}path, {_FOLDER}path or {_EXAMPLE}")


def _named(store: Setting) -> str:
    return f"The store {store.value!r} (from {store.origin})"
