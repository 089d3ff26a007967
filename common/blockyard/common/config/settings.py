"""Owns how a setting is declared: one line in a frozen dataclass says its kind, default, group and meaning.

Flags, variables, TOML keys, help and `blockyard config explain` are all made from these declarations, so none
can differ from another. It must never know a particular setting.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, overload

from blockyard.common.config.kinds import Kind
from blockyard.common.errors import ConfigError

T = TypeVar("T")

NOT_SET = "-"

_DECLARATION = "blockyard"


class SettingError(ConfigError):
    """A setting that cannot be used; `source` is where its value came from."""

    def __init__(self, name: str, value: str | None, right: str, source: str | None = None) -> None:
        self.name = name
        self.value = value
        self.right = right
        self.source = source
        given = name if value is None else f"{name} = {value}"
        origin = "" if source is None else f" ({source})"
        super().__init__(f"{given}{origin}: {right}")


@dataclasses.dataclass(frozen=True, slots=True)
class Derived(Generic[T]):
    """A default that depends on the machine, and its name in help."""

    make: Callable[[], T]
    named: str


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting."""

    name: str
    kind: Kind[Any]
    default: Callable[[], Any]
    default_text: str
    group: str
    help: str

    @property
    def flag(self) -> str:
        """`host_pool` is given as --host-pool."""
        return "--" + self.name.replace("_", "-")

    def show(self, value: object) -> str:
        """The value as one would write it."""
        return NOT_SET if value is None or value == () else self.kind.show(value)


@overload
def setting(kind: Kind[T], *, default: T, group: str, help: str) -> T: ...
@overload
def setting(kind: Kind[T], *, default: Derived[T], group: str, help: str) -> T: ...
@overload
def setting(kind: Kind[T], *, unset: str = NOT_SET, group: str, help: str) -> T | None: ...
def setting(
    kind: Kind[T], *, default: T | Derived[T] | None = None, unset: str = NOT_SET, group: str, help: str
) -> T | None:
    """A field of a config class. Without a default its value is None, and `unset` says what that means."""
    if isinstance(default, Derived):
        make, text = default.make, default.named
    else:
        make = partial(_same, default)
        text = unset if default is None or default == () else kind.show(default)
    metadata = {_DECLARATION: (kind, make, text, group, help)}
    field: T = dataclasses.field(default_factory=make, metadata=metadata)
    return field


def _same(value: T) -> T:
    return value


def settings_of(config: type) -> list[Setting]:
    """The settings of a config class: each group together, else in the order of their declaration."""
    settings = [
        Setting(field.name, *field.metadata[_DECLARATION])
        for field in dataclasses.fields(config)
        if _DECLARATION in field.metadata
    ]
    groups = list(dict.fromkeys(setting.group for setting in settings))
    return sorted(settings, key=lambda setting: groups.index(setting.group))
