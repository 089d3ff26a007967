"""How much a frozen process has not read yet, told from outside. Owns the look at another process's sockets."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import socket
import termios

_PIDFD_GETFD = 438


def unread_unix_sockets(pid: int) -> int:
    """Number of the process's Unix sockets that have something to read."""
    pidfd = os.pidfd_open(pid)
    try:
        numbers = [int(name) for name in os.listdir(f"/proc/{pid}/fd") if _is_socket(pid, name)]
        return sum(_has_unread(pidfd, number) for number in numbers)
    finally:
        os.close(pidfd)


def _is_socket(pid: int, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return False


def _has_unread(pidfd: int, number: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    copy = libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    with socket.socket(fileno=copy) as sock:
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if sock.family != socket.AF_UNIX or listens:
            return False
        count = array.array("i", [0])
        fcntl.ioctl(copy, termios.FIONREAD, count)
        return count[0] > 0
