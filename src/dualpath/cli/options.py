"""Settings on the command line: a TOML file, and a flag for every key, generated from the settings themselves."""

from __future__ import annotations

import math
import tomllib
import typing
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import click

from dualpath.errors import SettingsError
from dualpath.knobs import checked_knobs, did_you_mean, knob_type, with_knobs
from dualpath.scheduling.baselines import apply_system
from dualpath.settings import Settings, section_fields


class FiniteRange(click.FloatRange):
    """A number within bounds, neither infinite nor NaN (which no comparison finds out of bounds)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Given:
    """What the user said: the file's keys, overridden by the flags."""

    knobs: Mapping[str, Any]

    def settings(self, system: str | None = None) -> Settings:
        """The settings: defaults, then the preset (``system``, or the one that was asked for), then every key given.

        Raises:
            SettingsError: a value is out of range; names the key.
        """
        knobs = checked_knobs(self.knobs)
        chosen = system or knobs.get("system") or Settings().cluster.system
        return with_knobs(apply_system(Settings(), chosen), {**knobs, "system": chosen})


def settings_options(*without: str) -> Callable[[F], F]:
    """A decorator that adds ``--config`` and a flag for every knob; the command gets them as one argument ``given``."""

    def decorate(function: F) -> F:
        def command(*args: Any, config: str | None, **kwargs: Any) -> Any:
            names = section_fields()
            flags = {name: kwargs.pop(name) for name in list(kwargs) if name in names and name not in without}
            from_file = read_config(Path(config)) if config else {}
            given = Given({**from_file, **{name: value for name, value in flags.items() if value is not None}})
            return function(*args, given=given, **kwargs)

        command.__doc__ = function.__doc__
        command.__name__ = function.__name__
        decorated: Any = command
        for name, (section, knob) in reversed(section_fields().items()):
            if name not in without:
                decorated = _option(name, section, knob)(decorated)
        decorated = click.option("--config", type=click.Path(), help="TOML file with any of the keys below.")(decorated)
        return typing.cast(F, decorated)

    return decorate


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a TOML file, whichever tables they stand in.

    Raises:
        SettingsError: the file cannot be read, or a table, key or value is wrong; names it.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    known = section_fields()
    sections = {field.name for field in fields(Settings)}
    knobs: dict[str, Any] = {}
    for table, keys in tables.items():
        if table not in sections or not isinstance(keys, dict):
            tables_there_are = f"there are {', '.join(sorted(sections))}{did_you_mean(table, sections)}"
            if table in known and not isinstance(keys, dict):
                raise SettingsError(f"{path}: {table!r} belongs into the table [{known[table][0]}]")
            raise SettingsError(f"{path}: no table [{table}]; {tables_there_are}")
        for key, value in keys.items():
            name = key.replace("-", "_")
            if name not in known or known[name][0] != table:
                raise SettingsError(f"{path}: [{table}] has no key {key!r}{_meant(name, known)}")
            knobs[name] = value
    try:
        return checked_knobs(knobs)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _meant(name: str, known: Mapping[str, tuple[str, Any]]) -> str:
    """The end of a message about a key that is not where it was looked for."""
    return f"; it belongs to [{known[name][0]}]" if name in known else did_you_mean(name, known)


def _option(name: str, section: str, knob: Field[Any]) -> Callable[[Any], Any]:
    flag, (kind, _) = f"--{name.replace('_', '-')}", knob_type(name)
    text = f"[{section}] {knob.metadata['help']}" + ("" if knob.default is None else f" (default: {_shown(knob)})")
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    if knob.metadata["bytes"]:
        return click.option(flag, name, type=str, metavar="SIZE", help=text)
    if issubclass(kind, StrEnum):
        return click.option(flag, name, type=click.Choice([option.value for option in kind]), help=text)
    return click.option(flag, name, type=kind, help=text)


def _shown(knob: Field[Any]) -> str:
    value: Any = knob.default
    if knob.metadata["bytes"] and value % 2**20 == 0:
        return f"{value // 2**20}MiB"
    return str(value)
