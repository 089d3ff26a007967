"""Owns the way from sources to a checked configuration, with the origin of each value.

It must never print or exit: whatever is wrong is one SettingError.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from blockyard.common.config.leader import LeaderConfig
from blockyard.common.config.node import NodeConfig
from blockyard.common.config.settings import Setting, SettingError, settings_of
from blockyard.common.config.sources import COMMON, PREFIX, Layer, file_layers, flag_layer, variable_layers
from blockyard.common.config.worker import WorkerConfig

C = TypeVar("C", bound=NodeConfig)

FILE_VARIABLE = f"{PREFIX}CONFIG"
"""Names the TOML file where no flag does."""

DEFAULT = "default"
"""The source of what no source gives."""

ROLES: Mapping[str, type[NodeConfig]] = {"leader": LeaderConfig, "worker": WorkerConfig}

_SECTIONS: Mapping[str, type[NodeConfig]] = {COMMON: NodeConfig, **ROLES}

SCHEMA = {section: tuple(setting.name for setting in settings_of(config)) for section, config in _SECTIONS.items()}


@dataclass(frozen=True, slots=True)
class Resolved:
    """One setting with its value and the source that won."""

    setting: Setting
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Resolution(Generic[C]):
    """All settings of a role, each valid for itself; `build` checks them against each other."""

    config: type[C]
    settings: Sequence[Resolved]

    def build(self) -> C:
        """The checked configuration; SettingError if settings contradict one another."""
        try:
            return self.config(**{item.setting.name: item.value for item in self.settings})
        except SettingError as error:
            origin = next(item.source for item in self.settings if item.setting.name == error.name)
            source = "not set" if error.value is None else origin
            raise SettingError(error.name, error.value, error.right, source) from None


def load_worker(flags: Mapping[str, object], file: Path | None) -> WorkerConfig:
    """The worker's configuration from these flags, this process's variables and the file."""
    return resolve(WorkerConfig, "worker", flags, file, os.environ).build()


def load_leader(flags: Mapping[str, object], file: Path | None) -> LeaderConfig:
    """The leader's configuration from these flags, this process's variables and the file."""
    return resolve(LeaderConfig, "leader", flags, file, os.environ).build()


def resolve(
    config: type[C], role: str, flags: Mapping[str, object], file: Path | None, environ: Mapping[str, str]
) -> Resolution[C]:
    """Take each setting from the first source that gives it; SettingError for a value that cannot be used."""
    layers = [flag_layer(flags), *variable_layers(environ, role, SCHEMA)]
    named = file or (Path(environ[FILE_VARIABLE]) if FILE_VARIABLE in environ else None)
    if named is not None:
        layers += file_layers(named, role, SCHEMA)
    return Resolution(config, [_resolve_one(setting, layers) for setting in settings_of(config)])


def _resolve_one(setting: Setting, layers: Sequence[Layer]) -> Resolved:
    given = next((layer[setting.name] for layer in layers if setting.name in layer), None)
    if given is None:
        return Resolved(setting, setting.default(), DEFAULT)
    try:
        return Resolved(setting, setting.kind.parse(given.raw), given.source)
    except ValueError:
        shown = repr(given.raw)
        raise SettingError(setting.name, shown, f"must be {setting.kind.expected}", given.source) from None
