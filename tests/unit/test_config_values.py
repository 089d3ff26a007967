"""Each kind of value: what it takes, what it refuses, and that it reads back what it shows."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard.common.config import Address, parse_address
from blockyard.common.config.kinds import (
    MAX_SOCKET_PATH,
    Choice,
    Count,
    Duration,
    Endpoints,
    HostPort,
    Kind,
    Mode,
    Name,
    ReadableFile,
    Size,
    SocketPath,
    Switch,
)
from blockyard.common.config.units import (
    GIB,
    KIB,
    MIB,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

SIZE = Size(64 * KIB, GIB)
POWER = Size(MIB, GIB, power_of_two=True)
PAGES = Size(4 * KIB, GIB, multiple_of=4 * KIB)
TIME = Duration(0.01, 60)
LEASE = Duration(2, 60, whole_seconds=True)

ACCEPTED: list[tuple[Kind[object], object, object]] = [
    (SIZE, "512MiB", 512 * MIB),
    (SIZE, " 1 GiB ", GIB),
    (SIZE, "1.5MiB", 1536 * KIB),
    (SIZE, "65536B", 64 * KIB),
    (POWER, "32MiB", 32 * MIB),
    (PAGES, "12KiB", 12 * KIB),
    (TIME, "100ms", 0.1),
    (TIME, "1.5s", 1.5),
    (TIME, "1m", 60.0),
    (TIME, "10000us", 0.01),
    (LEASE, "10s", 10.0),
    (Count(1, 9), "7", 7),
    (Count(1, 9), 7, 7),
    (Switch(), "TRUE", True),
    (Switch(), "0", False),
    (Switch(), False, False),
    (Choice(("lru", "fifo")), "fifo", "fifo"),
    (Name(), "gpu-7.rack_2", "gpu-7.rack_2"),
    (HostPort(), "0.0.0.0:0", Address("0.0.0.0", 0)),
    (HostPort(), "[::1]:80", Address("::1", 80)),
    (HostPort(reachable=True), "node-7:80", Address("node-7", 80)),
    (Endpoints(), "a:1,b:2", (Address("a", 1), Address("b", 2))),
    (Endpoints(), ["a:1", "b:2"], (Address("a", 1), Address("b", 2))),
    (Endpoints(), "", ()),
    (SocketPath(), "/run/w.sock", Path("/run/w.sock")),
    (SocketPath(), "/" + "x" * (MAX_SOCKET_PATH - 1), Path("/" + "x" * (MAX_SOCKET_PATH - 1))),
    (Mode(), "0660", 0o660),
    (ReadableFile(), "/dev/../etc/passwd", Path("/dev/../etc/passwd")),
]

REFUSED: list[tuple[Kind[object], object]] = [
    (SIZE, "abc"),
    (SIZE, "-1MiB"),
    (SIZE, "512"),
    (SIZE, 1024 * 1024),
    (SIZE, "1GB"),
    (SIZE, "1mib"),
    (SIZE, "2GiB"),
    (SIZE, "1KiB"),
    (SIZE, ""),
    (SIZE, "0.3B"),
    (SIZE, "1e3MiB"),
    (SIZE, "٣MiB"),
    (SIZE, None),
    (POWER, "33MiB"),
    (PAGES, "13KiB"),
    (TIME, "100"),
    (TIME, 0.1),
    (TIME, "0s"),
    (TIME, "61s"),
    (TIME, "nan"),
    (TIME, "inf s"),
    (LEASE, "2.5s"),
    (Count(1, 9), 0),
    (Count(1, 9), "ten"),
    (Count(1, 9), "-1"),
    (Count(1, 9), True),
    (Count(1, 9), 2.0),
    (Count(1, 9), "1_0"),
    (Switch(), "yes"),
    (Switch(), ""),
    (Switch(), 1),
    (Choice(("lru",)), "LRU"),
    (Name(), ""),
    (Name(), "a/b"),
    (Name(), "a b"),
    (Name(), "é"),
    (Name(), "x" * 65),
    (Name(), 7),
    (HostPort(), "127.0.0.1"),
    (HostPort(), ":80"),
    (HostPort(), "host:65536"),
    (HostPort(), "host:port"),
    (HostPort(), "::1:80"),
    (HostPort(), "[node]:80"),
    (HostPort(), "http://host:80"),
    (HostPort(reachable=True), "0.0.0.0:80"),
    (HostPort(reachable=True), "[::]:80"),
    (Endpoints(), "http://a:1"),
    (Endpoints(), "a:1,a:1"),
    (Endpoints(), "a:0"),
    (Endpoints(), [1]),
    (SocketPath(), "run/w.sock"),
    (SocketPath(), "/run/"),
    (SocketPath(), "/" + "x" * MAX_SOCKET_PATH),
    (SocketPath(), "/" + "é" * (MAX_SOCKET_PATH // 2 + 1)),
    (Mode(), "0666"),
    (Mode(), "0400"),
    (Mode(), 0o600),
    (Mode(), "rw-------"),
    (ReadableFile(), "/no/such/file"),
    (ReadableFile(), "/etc"),
]


@pytest.mark.parametrize(("kind", "raw", "value"), ACCEPTED)
def test_takes(kind: Kind[object], raw: object, value: object) -> None:
    assert kind.parse(raw) == value
    assert kind.parse(kind.show(value)) == value


@pytest.mark.parametrize(("kind", "raw"), REFUSED)
def test_refuses(kind: Kind[object], raw: object) -> None:
    with pytest.raises(ValueError):
        kind.parse(raw)
    assert "\n" not in kind.expected


@given(st.integers(min_value=0, max_value=1 << 45))
def test_a_size_reads_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(min_value=0, max_value=10**12))
def test_a_duration_reads_back(microseconds: int) -> None:
    assert parse_duration(format_duration(microseconds / 1e6)) == pytest.approx(microseconds / 1e6, abs=1e-9)


@given(st.text(max_size=20))
def test_no_text_gets_past_a_value_error(text: str) -> None:
    for parse in (parse_size, parse_duration, parse_address):
        try:
            parse(text)
        except ValueError:
            continue


def test_what_an_address_reaches() -> None:
    assert parse_address("localhost:1").is_loopback
    assert parse_address("127.8.9.1:1").is_loopback
    assert parse_address("[::1]:1").is_loopback
    assert not parse_address("localhost.example:1").is_loopback
    assert not parse_address("10.0.0.1:1").is_loopback
    assert parse_address("[::]:1").is_wildcard
    assert str(parse_address("[::1]:1")) == "[::1]:1"
