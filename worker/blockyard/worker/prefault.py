"""Touches the pool's memory before engines do, in the background.

Owns one thread and its progress. Must never know what lies in the pool: it changes no byte. Memory is zeroed
at first touch, at a tenth of memcpy's speed, so an engine's first stores would pay for it.
"""

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable

from blockyard.worker.pool import SealedMemory

_STEP = 8 << 20
_MADV_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Prefault:
    """Start it once; `stop` returns when the thread has let go of the memory."""

    def __init__(self, memory: SealedMemory, failed: Callable[[str], None]) -> None:
        """`failed` is called, from the thread, when the machine has less memory than the pool was given."""
        self._failed = failed
        self._memory = memory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
        self.done_bytes = 0

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout: float) -> None:
        """Until all is done, or at most so long."""
        self._thread.join(timeout)

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        first = ctypes.c_char.from_buffer(self._memory.map)
        try:
            while self.done_bytes < self._memory.size and not self._stop.is_set():
                step = min(_STEP, self._memory.size - self.done_bytes)
                # Reserved first: a lack of memory is then an error here and no SIGBUS in an engine.
                os.posix_fallocate(self._memory.fd, self.done_bytes, step)
                _populate(ctypes.addressof(first) + self.done_bytes, step)
                self.done_bytes += step
        except OSError as error:
            self._failed(f"prefault of the pool stopped after {self.done_bytes} bytes: {error.strerror}")
        finally:
            # A live export would keep the map from being closed.
            del first


def _populate(address: int, size: int) -> None:
    """mmap.madvise would hold the interpreter's lock for the whole step."""
    if _libc.madvise(address, size, _MADV_POPULATE_WRITE):
        code = ctypes.get_errno()
        # Kernels before 5.14 do not know the advice: the memory is reserved, but engines pay for zeroing.
        if code != errno.EINVAL:
            raise OSError(code, os.strerror(code))


assert _STEP % mmap.PAGESIZE == 0
