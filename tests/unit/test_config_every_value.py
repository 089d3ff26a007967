"""Every setting of leader and worker with every kind of wrong value, by flag, by variable and by file: one clear line,
exit code 2, and nothing is started.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path

import pytest

from blockyard.cli import main as cli
from blockyard.common.config.disk import DiskSpecs, FreeSpace
from blockyard.common.config.kinds import (
    MAX_SOCKET_PATH,
    Choice,
    Count,
    Duration,
    Endpoints,
    HostPort,
    HostPortOrOff,
    Kind,
    Mode,
    Name,
    ReadableFile,
    Size,
    SocketPath,
    Switch,
)
from blockyard.common.config.load import ROLES, SCHEMA, resolve
from blockyard.common.config.settings import Setting, SettingError, settings_of

RIGHT = {"leader": {"etcd": "127.0.0.1:2379", "insecure": "true"}, "worker": {"insecure": "true"}}
"""What a role needs so that nothing but the value under test is wrong."""

NO_TEXT = [True, 1.5, [], {}]
"""What TOML can also give; a wrong type for whatever is written as text."""


def below_and_above(kind: Kind[object]) -> list[str]:
    """Just outside of a range, in the kind's own spelling."""
    match kind:
        case Size(least=least, most=most):
            return [f"{least - 1}B", f"{most + 1}B"]
        case Duration(least=least, most=most):
            return [f"{int(least * 1e6) - 1}us", f"{int(most) + 1}s"]
        case Count(least=least, most=most):
            return [str(least - 1), str(most + 1)]
        case SocketPath():
            return ["/" + "x" * MAX_SOCKET_PATH]
        case Name():
            return ["", "x" * 65]
        case HostPort():
            return ["host:65536", "host:-1"]
        case Endpoints():
            return ["host:0", "host:65536"]
        case Mode():
            return ["0577", "0780"]
        case DiskSpecs():
            return ["/a:1023KiB", "/a:1025TiB", "/a:1GiB,/a:2GiB", "a:1GiB", "/a", "/a:"]
        case FreeSpace():
            return ["100%", "-1%", "x%"]
        case _:
            return []


def wrong_texts(kind: Kind[object]) -> list[str]:
    """Text that is no value of this kind: nonsense, a nonsense unit, none, another sign, outside of the range."""
    nonsense = {Name: ["a b", "a/b", "é"], SocketPath: ["run/x"]}.get(type(kind), ["nonsense", "-1", "1e3"])
    units = ["5parsecs", "5", "1kib", "5 s s"] if isinstance(kind, Size | Duration) else []
    return [*nonsense, *units, *below_and_above(kind)]


def wrong_in_toml(kind: Kind[object]) -> list[object]:
    """Values of another type than text, where text or this kind's own type is right."""
    also_right = {Switch: [True], Endpoints: [[]], DiskSpecs: [[]]}.get(type(kind), [])
    other = [80] if not isinstance(kind, Count) else [kind.least - 1, kind.most + 1]
    return [value for value in (*NO_TEXT, *other) if value not in also_right]


SETTINGS = [(role, setting) for role, config in ROLES.items() for setting in settings_of(config)]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Teller:
    return Teller(monkeypatch, capsys, tmp_path)


class Teller:
    """Runs the command in this process, and gives the one line that it must say."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._patch = patch
        self._capsys = capsys
        self._file = folder / "blockyard.toml"
        patch.setattr(cli, "_call", lambda module, config: pytest.fail(f"{module} was started with {config}"))

    def by_flags(self, role: str, *flags: str) -> str:
        right = [f"--{name}={value}" for name, value in RIGHT[role].items() if value != "true"]
        return self._run(role, [*right, "--insecure", *flags], {})

    def by_variable(self, role: str, name: str, raw: str) -> str:
        right = {f"BLOCKYARD_{role.upper()}_{one.upper()}": value for one, value in RIGHT[role].items()}
        return self._run(role, [], right | {name: raw})

    def by_file(self, role: str, section: str, name: str, raw: object) -> str:
        tables = {"common": {}, role: dict(RIGHT[role])}
        tables[section][name] = raw
        if section == "common":
            tables[role].pop(name, None)
        lines = [
            f"[{title}]\n" + "".join(f"{key} = {toml(it)}\n" for key, it in tables[title].items()) for title in tables
        ]
        self._file.write_text("".join(lines))
        return self._run(role, ["--config", str(self._file)], {})

    def _run(self, role: str, arguments: list[str], variables: dict[str, str]) -> str:
        with self._patch.context() as patch:
            patch.setattr(sys, "argv", ["blockyard", role, *arguments])
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        said = self._capsys.readouterr()
        assert (ended.value.code, said.out) == (2, ""), (role, arguments, variables, said)
        assert said.err.startswith("blockyard: ") and said.err.count("\n") == 1, said.err
        return said.err.removeprefix("blockyard: ").rstrip("\n")


def toml(value: object) -> str:
    return "{}" if value == {} else json.dumps(value)


@pytest.mark.parametrize(("role", "setting"), SETTINGS, ids=lambda one: getattr(one, "name", one))
def test_a_wrong_value_is_told_wherever_it_comes_from(told: Teller, role: str, setting: Setting) -> None:
    name, kind = setting.name, setting.kind
    right = f"must be {kind.expected}"
    sections = [section for section in (role, "common") if name in SCHEMA[section]]
    for raw in wrong_texts(kind):
        lines = [told.by_file(role, section, name, raw) for section in sections]
        lines += [told.by_variable(role, f"BLOCKYARD_{one.upper()}_{name.upper()}", raw) for one in sections[:1]]
        if not isinstance(kind, Switch):
            lines.append(told.by_flags(role, f"{setting.flag}={raw}"))
        for line in lines:
            assert line.startswith(f"{name} = {raw!r} ("), line
            assert line.endswith(right), line
    for value, section in itertools.product(wrong_in_toml(kind), sections):
        line = told.by_file(role, section, name, value)
        assert line.startswith(f"{name} = {value!r} ([{section}] of ")
        assert line.endswith(right)


@pytest.mark.parametrize(("role", "setting"), SETTINGS, ids=lambda one: getattr(one, "name", one))
def test_an_unknown_name_is_told_and_the_right_one_with_it(told: Teller, role: str, setting: Setting) -> None:
    misspelt = setting.name + "x"
    assert told.by_file(role, role, misspelt, "1").endswith(f"no such setting; did you mean {setting.name}?")
    variable = f"BLOCKYARD_{role.upper()}_{setting.name.upper()}"
    assert told.by_variable(role, variable + "X", "1").endswith(f"no such setting; did you mean {variable}?")
    assert told.by_flags(role, f"{setting.flag}x=1").startswith(f"No such option: {setting.flag}x")
    if not isinstance(setting.kind, Switch):
        assert told.by_flags(role, setting.flag).startswith(f"Option '{setting.flag}' requires an argument")


GOOD_FILE = """
[common]
cluster = "c"
etcd = ["127.0.0.1:2379", "127.0.0.1:2380"]
insecure = true
lease_ttl = "10s"
[worker]
host_pool = "1GiB"
socket_mode = "0660"
max_pins_per_engine = 4096
[leader]
listen = "127.0.0.1:7501"
max_workers = 5
"""
SPLINTERS = (b"[", b"]", b"=", b'"', b"\n", b"1e999", b"-", b'"""', b"\\u0000", b"\r", b"{")


def test_whatever_a_file_holds_it_is_taken_or_told_in_one_line(tmp_path: Path) -> None:
    """Mutations of a right file, noise, and values in values in values."""
    draw = random.Random(5)
    file = tmp_path / "blockyard.toml"
    deep = [b"[worker]\nsocket = " + opener * 20_000 for opener in (b"[", b"{a=", b'["x",')]
    noise = [draw.randbytes(draw.randrange(400)) for _ in range(300)]
    taken = 0
    for content in [*deep, *noise, *(mutated(draw) for _ in range(1500))]:
        file.write_bytes(content)
        role = draw.choice(list(ROLES))
        try:
            resolve(ROLES[role], role, {}, file, {}).build()
            taken += 1
        except SettingError as error:
            assert len(str(error).splitlines()) == 1, repr(str(error))
            assert len(str(error)) < 2000
    assert taken > 0, "some mutations change nothing that matters"


def mutated(draw: random.Random) -> bytes:
    """The right file with a few bytes changed or put in."""
    data = bytearray(GOOD_FILE.encode())
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(data))
        if draw.random() < 0.5:
            data[at] = draw.randrange(256)
        else:
            data[at:at] = draw.choice(SPLINTERS)
    return bytes(data)


@pytest.mark.parametrize("role", ROLES)
def test_a_range_has_its_ends_in_it(role: str) -> None:
    """Else the values just outside would prove nothing."""
    for setting in settings_of(ROLES[role]):
        kind = setting.kind
        if isinstance(kind, Size | Duration | Count):
            for end in (kind.least, kind.most):
                assert kind.parse(kind.show(end)) == end
            assert len(below_and_above(kind)) == 2


def test_every_kind_has_wrong_values_of_its_own() -> None:
    kinds = {type(setting.kind) for _, setting in SETTINGS}
    covered = {Size, Duration, Count, Switch, Choice, Name, HostPort, Endpoints, ReadableFile, SocketPath, Mode}
    assert kinds == covered | {DiskSpecs, FreeSpace, HostPortOrOff}
