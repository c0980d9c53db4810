"""Checking of single knobs, whether they come from flags, a TOML file or keywords; ``settings`` says what each may be."""

from __future__ import annotations

import difflib
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, replace
from enum import StrEnum
from typing import Any

from dualpath.errors import SettingsError
from dualpath.settings import Settings, parse_bytes, section_fields

LARGEST = 2**62
"""No count, size or time is above this: it has to fit the messages between processes."""


def with_knobs(settings: Settings, knobs: Mapping[str, Any]) -> Settings:
    """``settings`` with single knobs changed by their names; sizes may be text like ``64MB``, choices their names.

    Raises:
        SettingsError: there is no such knob, or it cannot have this value; names it.
    """
    known = section_fields()
    sections: dict[str, dict[str, Any]] = {}
    for name, value in checked_knobs(knobs).items():
        sections.setdefault(known[name][0], {})[name] = value
    return replace(settings, **{section: replace(getattr(settings, section), **values) for section, values in sections.items()})


def checked_knobs(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The values with their right types.

    Raises:
        SettingsError: there is no such knob, or it cannot have this value; names it.
    """
    known = section_fields()
    for name in knobs:
        if name not in known:
            raise SettingsError(f"{name}: no such setting{did_you_mean(name, known)}")
    return {name: _checked(known[name][1], *knob_type(name), value) for name, value in knobs.items()}


def knob_type(name: str) -> tuple[type[Any], bool]:
    """The type of a knob's values, and whether None is one of them besides."""
    section, knob = section_fields()[name]
    hint = typing.get_type_hints(typing.get_type_hints(Settings)[section])[knob.name]
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    (kind,) = (option for option in options if option is not types.NoneType)
    return kind, len(options) > 1


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is none of ``known``, if one of them is close."""
    close = difflib.get_close_matches(wrong, known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _checked(knob: Field[Any], kind: type[Any], optional: bool, value: Any) -> Any:
    if value is None and optional:
        return None
    typed = parse_bytes(value, knob.name) if knob.metadata["bytes"] else _typed(knob.name, kind, value)
    minimum, maximum = knob.metadata["minimum"], knob.metadata["maximum"] or LARGEST
    if minimum is None:
        return typed
    if typed < minimum:
        raise SettingsError(f"{knob.name}: {value!r} is below the least that makes sense, {minimum:g}")
    if typed > maximum:
        raise SettingsError(f"{knob.name}: {value!r} is above the most that makes sense, {maximum:g}")
    return typed


def _typed(name: str, kind: type[Any], value: Any) -> Any:
    if issubclass(kind, StrEnum):
        options = [option.value for option in kind]
        if value not in options:
            raise SettingsError(f"{name}: {value!r} is none of {', '.join(options)}")
        return kind(value)
    accepts, what = _KINDS[kind]
    if not accepts(value):
        raise SettingsError(f"{name}: {value!r} is not {what}")
    return os.fspath(value) if kind is str else kind(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


_KINDS: dict[type, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    float: (_is_number, "a finite number"),
    str: (lambda value: isinstance(value, str | os.PathLike) and os.fspath(value) != "", "a text of at least one character"),
}
"""Which values a type's knobs take, and how a message calls them."""
