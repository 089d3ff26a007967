"""Owns where values are found: in flags, BLOCKYARD_ variables and a TOML file, in this order of precedence.

Within variables and within the file a role's own section comes before the common one. Names that no section
knows are refused here, because a misspelt setting that is silently ignored is found out in production. It
must never know what values mean.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blockyard.common.config.settings import SettingError

PREFIX = "BLOCKYARD_"
COMMON = "common"

# Kubernetes sets these in every pod of a namespace in which a Service is called blockyard-worker.
_SERVICE_LINK = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")

Schema = Mapping[str, Sequence[str]]
"""Section name to the names of its settings."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was written, and where."""

    raw: object
    source: str


Layer = Mapping[str, Given]
"""Setting name to what one source gives it."""


def flag_layer(flags: Mapping[str, object]) -> Layer:
    """What was given on the command line, by setting name; None or nothing in a list stands for not given.

    A flag that was given several times is one list, as a variable would have it.
    """
    given = {name: ",".join(raw) if isinstance(raw, list) else raw for name, raw in flags.items() if raw != []}
    return {name: Given(raw, f"flag --{name.replace('_', '-')}") for name, raw in given.items() if raw is not None}


def variable_layers(environ: Mapping[str, str], role: str, schema: Schema) -> list[Layer]:
    """The role's variables, then the common ones; unknown names of any section are refused."""
    found: dict[str, dict[str, Given]] = {section: {} for section in schema}
    for variable, raw in sorted(environ.items()):
        for section, names in schema.items():
            prefix = f"{PREFIX}{section.upper()}_"
            if not variable.startswith(prefix) or _SERVICE_LINK.fullmatch(variable.removeprefix(prefix)):
                continue
            name = variable.removeprefix(prefix).lower()
            by_variable = {f"{prefix}{known.upper()}": known for known in names}
            if variable not in by_variable:
                raise _unknown(variable, "environment", by_variable)
            found[section][name] = Given(raw, f"variable {variable}")
    return [found[role], found[COMMON]]


def file_layers(path: Path, role: str, schema: Schema) -> list[Layer]:
    """The role's section of a TOML file, then the common one; unknown names of any section are refused."""
    document = _read(path)
    for section, table in document.items():
        if section not in schema:
            _require_table(section, table, path, schema)
            raise _unknown(f"[{section}]", str(path), [f"[{known}]" for known in schema])
        if not isinstance(table, dict):
            raise SettingError(section, repr(table), f"must be a section, [{section}]", str(path))
        for name in table:
            if name not in schema[section]:
                raise _unknown(name, f"[{section}] of {path}", schema[section])
    return [
        {name: Given(raw, f"[{section}] of {path}") for name, raw in document.get(section, {}).items()}
        for section in (role, COMMON)
    ]


def _require_table(name: str, value: object, path: Path, schema: Schema) -> None:
    """A setting written above all sections is told where it belongs."""
    if isinstance(value, dict):
        return
    homes = [section for section, names in schema.items() if name in names] or list(schema)
    right = " or ".join(f"[{section}]" for section in homes)
    raise SettingError(_printable(name), repr(value), f"stands outside a table; right: under {right}", str(path))


def _read(path: Path) -> dict[str, dict[str, object]]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError("config", _printable(str(path)), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingError("config", _printable(str(path)), f"is not TOML: {error}") from error
    except RecursionError:
        raise SettingError(
            "config", _printable(str(path)), "is not TOML of ours: values lie too deep in one another"
        ) from None


def _unknown(name: str, source: str, known: Iterable[str]) -> SettingError:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
    return SettingError(_printable(name), None, f"no such setting; {hint}", source)


def _printable(name: str) -> str:
    """A name that somebody wrote, on one line."""
    return name if name.isprintable() else repr(name)
