"""Settings: flags over environment over `runstone.toml` over defaults; each value knows where it came from.

There is one so far: where the store is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from runstone.errors import SettingsInvalid

FILE: Final = "runstone.toml"
DEFAULT_STORE: Final = "runstone.db"
VARIABLES: Final = ("RUNSTONE_STORE", "DATABASE_URL")
"""Environment variables that name the store, the first that is set wins; an empty one is not set."""

_KNOWN: Final = ("store",)
_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgres", "postgresql")


@dataclass(frozen=True)
class Setting:
    """A value and its origin, in words that a person can act on."""

    value: str
    origin: str


@dataclass(frozen=True)
class Settings:
    """Everything that can be set."""

    store: Setting

    @property
    def store_path(self) -> Path:
        """The file of the store."""
        return _path(self.store)


def load_settings(*, store: str | None, environment: Mapping[str, str], folder: Path) -> Settings:
    """The settings as a flag, the environment and the folder's `runstone.toml` give them, in this order."""
    settings = Settings(
        store=_from_flag(store)
        or _from_environment(environment)
        or _from_file(folder / FILE)
        or Setting(DEFAULT_STORE, "the default")
    )
    _path(settings.store)
    return settings


def _from_flag(value: str | None) -> Setting | None:
    return None if value is None else Setting(value, "--store")


def _from_environment(environment: Mapping[str, str]) -> Setting | None:
    found = (Setting(environment[name], name) for name in VARIABLES if environment.get(name))
    return next(found, None)


def _from_file(file: Path) -> Setting | None:
    values = _read(file)
    unknown = sorted(values.keys() - set(_KNOWN))
    if unknown:
        raise SettingsInvalid(f"{file} sets {unknown[0]!r}, which is no setting: use {', '.join(_KNOWN)}")
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


def _path(store: Setting) -> Path:
    """A plain path as it is; `sqlite:///` and a path, relative unless a fourth slash begins it."""
    value = store.value
    if value.startswith(_SQLITE):
        value = value.removeprefix(_SQLITE)
        if "?" in value or "#" in value:
            raise SettingsInvalid(f"{_named(store)} has options after its path: leave them out")
    elif "://" in value:
        _refuse_url(store)
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
        raise SettingsInvalid(
            f"{named} is a PostgreSQL database, which is not available in this version: "
            "give the path of a file, with --store or RUNSTONE_STORE"
        )
    raise SettingsInvalid(f"{named} is no store: give a path, or {_SQLITE}path")


def _named(store: Setting) -> str:
    return f"The store {store.value!r} (from {store.origin})"
