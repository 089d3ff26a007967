"""The Unix socket that engines attach to: taking the path, and giving it back.

Owns the socket file and nothing behind it. A path that another live worker answers on is left alone; one that
a dead worker left behind is replaced. A worker that is about to end is waited for: unmapping a large pool takes
seconds, and its lock is held until then.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import time
from pathlib import Path

from blockyard.common.errors import ConfigError
from blockyard.common.logs import fields

_BACKLOG = 128
_PROBE_TIMEOUT = 2.0
_PREDECESSOR_SECONDS = 10.0
_LOCK_POLL = 0.1

_log = logging.getLogger(__name__)


class Listener:
    """A bound, listening, non-blocking Unix stream socket."""

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path
        _make_folder(path, mode)
        self._lock = _take_lock(path)
        try:
            _remove_stale(path)
            self.sock = _bind(path, mode)
        except BaseException:
            os.close(self._lock)
            raise
        self._inode = path.stat().st_ino

    def close(self) -> None:
        """Stop listening and remove the socket, unless someone has put another in its place."""
        self.sock.close()
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        os.close(self._lock)


def _make_folder(path: Path, mode: int) -> None:
    """Make the socket's folder if only that is missing; it lets the group in when the socket does."""
    folder = path.parent
    if folder.exists():
        return
    try:
        folder.mkdir()
        folder.chmod(0o750 if mode & 0o070 else 0o700)
    except FileExistsError:
        return  # another worker was faster
    except OSError as error:
        raise ConfigError(
            f"socket = {path}: its folder is missing and cannot be made: {error.strerror}; "
            f"right: a path in a folder that exists, or whose parent {folder.parent} exists and is writable"
        ) from error


def _take_lock(path: Path) -> int:
    """Two workers that start at once would both find a stale socket. The lock's file stays behind."""
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"socket = {path}: cannot make {lock}: {error.strerror}") from error
    try:
        _wait_for_lock(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _wait_for_lock(descriptor: int, path: Path) -> None:
    """Wait while a predecessor ends; one that stays is left alone."""
    deadline = time.monotonic() + _PREDECESSOR_SECONDS
    waiting = False
    while not _lock(descriptor):
        if not waiting:
            waiting = True
            _log.warning(
                "another worker holds the socket's lock; waiting for its end",
                extra=fields(socket=path, at_most_s=_PREDECESSOR_SECONDS),
            )
        if time.monotonic() > deadline:
            raise _taken(path)
        time.sleep(_LOCK_POLL)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _taken(path: Path) -> ConfigError:
    return ConfigError(f"socket = {path}: another worker serves it; right: a path of its own for each worker")


def _remove_stale(path: Path) -> None:
    """Remove a socket on which nobody listens; anything else at the path is the operator's to remove."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"socket = {path}: the path exists and is no socket; right: a path that is free")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_TIMEOUT)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                raise ConfigError(f"socket = {path}: {error}; right: a path that is free") from error
        else:
            raise _taken(path)
    path.unlink(missing_ok=True)


def _bind(path: Path, mode: int) -> socket.socket:
    """Never more open than `mode`, not even between bind and chmod."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o777 & ~mode)
    try:
        sock.bind(str(path))
        path.chmod(mode)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"socket = {path}: {error.strerror}; right: a path in a writable folder") from error
    finally:
        os.umask(before)
    return sock
