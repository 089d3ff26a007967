"""Two workers' ends of the peer channel over TLS: each by the name in its certificate, and nobody else."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockyard.common.tls import client_context, server_context
from support.authority import Authority
from support.peer_end import PeerEnd

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture
def holder(authority: Authority) -> Iterator[PeerEnd]:
    with PeerEnd("holder", tls=contexts(authority, "holder")) as end:
        yield end


def contexts(
    authority: Authority, name: str, files: tuple[Path, Path] | None = None
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For being connected to, and for connecting."""
    shown = files or authority.issue(name)
    return server_context(authority.ca, *shown), client_context(authority.ca, *shown)


def test_chunks_come_as_they_were(holder: PeerEnd, authority: Authority) -> None:
    contents = [holder.hold(number, os.urandom(2 * 5000)) for number in range(30)]
    with PeerEnd("reader", tls=contexts(authority, "reader")) as reader:
        for _ in range(2):
            assert reader.fetch(holder, *range(30)) == contents
        assert holder.server.sessions == 1
    holder.wait(lambda: not holder.server.sessions, "it is gone")
    assert not any(name.startswith("refused") for name in holder.counts)


def test_a_reader_with_the_certificate_of_another_is_refused(holder: PeerEnd, authority: Authority) -> None:
    holder.hold(1)
    with PeerEnd("reader", tls=contexts(authority, "someone")) as reader:
        assert reader.fetch(holder, 1) == ["gone"]
        reader.wait(lambda: reader.counts["failed refused"] == 1, "counted there")
    holder.wait(lambda: holder.counts["refused identity"] == 1, "counted")


def test_a_holder_with_the_certificate_of_another_is_not_asked(authority: Authority) -> None:
    with (
        PeerEnd("holder", tls=contexts(authority, "someone")) as holder,
        PeerEnd("reader", tls=contexts(authority, "reader")) as reader,
    ):
        holder.hold(1)
        assert reader.fetch(holder, 1) == ["gone"]
        reader.wait(lambda: reader.counts["failed identity"] == 1, "counted")
        assert not holder.events


@pytest.mark.parametrize("wrong", ["another authority", "expired"])
def test_a_reader_whose_certificate_does_not_count_is_refused(
    holder: PeerEnd, authority: Authority, tmp_path: Path, wrong: str
) -> None:
    files = authority.issue_expired("reader") if wrong == "expired" else Authority(tmp_path / "theirs").issue("reader")
    with PeerEnd("reader", tls=contexts(authority, "reader", files)) as reader:
        assert reader.fetch(holder, 1) == ["gone"]
    holder.wait(lambda: holder.counts["refused tls"] == 1, "counted")


@pytest.mark.parametrize("wrong", ["another authority", "expired"])
def test_a_holder_whose_certificate_does_not_count_is_not_asked(
    authority: Authority, tmp_path: Path, wrong: str
) -> None:
    files = authority.issue_expired("holder") if wrong == "expired" else Authority(tmp_path / "theirs").issue("holder")
    with (
        PeerEnd("holder", tls=contexts(authority, "holder", files)) as holder,
        PeerEnd("reader", tls=contexts(authority, "reader")) as reader,
    ):
        assert reader.fetch(holder, 1) == ["gone"]
        reader.wait(lambda: reader.counts["failed tls"] == 1, "counted")


def test_without_tls_there_is_no_way_in_and_none_out(holder: PeerEnd, authority: Authority) -> None:
    with PeerEnd("plain") as plain, PeerEnd("reader", tls=contexts(authority, "reader")) as reader:
        assert plain.fetch(holder, 1) == ["gone"]
        holder.wait(lambda: holder.counts["refused tls"] == 1, "counted")
        assert reader.fetch(plain, 1) == ["gone"]
        reader.wait(lambda: reader.counts["failed tls"] == 1, "counted")


def test_cutting_a_fetch_that_runs_takes_no_ciphertext_for_a_chunk(holder: PeerEnd, authority: Authority) -> None:
    holder.hold(1)
    holder.answering = False
    with PeerEnd("reader", tls=contexts(authority, "reader")) as reader:
        order = reader.order("holder", holder.address, [1])
        holder.wait(lambda: holder.events, "it was asked")
        reader.fetching.cancel([order.items[0].op])
        assert reader.results(order) == ["deadline"]
        assert not any(reader.content(order.items[0]))
