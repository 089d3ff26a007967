"""The threads that fetch chunks from peers. Owns their number, and that every item ends once, in time, and only when
nothing touches its slot any more; must never know why it is fetched.

A fetch that waits is given up at its deadline; one that runs has the same deadline for all that it does. Cancelling
takes out what waits, and cuts the connection of what runs once nobody wants anything of it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable

from blockyard.common.codec import FrameRefused
from blockyard.common.link import LinkClosed, LinkTimeout
from blockyard.common.logs import fields
from blockyard.common.messages import peer
from blockyard.worker.core.peers import wire
from blockyard.worker.peers import exchange
from blockyard.worker.peers.channel import Channel
from blockyard.worker.peers.dialing import Dialer, NotReached
from blockyard.worker.peers.exchange import SlotMemory
from blockyard.worker.peers.lanes import Job, Lanes

_log = logging.getLogger(__name__)

MOST_THREADS = 32
MOST_WAITING = 1024

Post = Callable[[wire.PeerRead | wire.PeerFailed], None]
Note = Callable[[str], None]
"""Hears why a peer was not reached, or why a frame of it was refused."""


class FetchThreads:
    """Orders in, one event per item out, from any thread. `not_reached` and `frame_refused` are given bounded words."""

    def __init__(self, dialer: Dialer, memory: SlotMemory, post: Post, not_reached: Note, frame_refused: Note) -> None:
        self._dialer = dialer
        self._memory = memory
        self._post = post
        self._not_reached = not_reached
        self._frame_refused = frame_refused
        self._numbers = itertools.count(1)
        self._wake = threading.Condition()
        self._lanes = Lanes()
        self._jobs: dict[int, Job] = {}
        self._threads: list[threading.Thread] = []
        self._resting = 0
        """Threads that wait for work, but for those that were called and have not come yet."""
        self._stopping = False

    @property
    def connections(self) -> int:
        with self._wake:
            return self._lanes.connections

    def submit(self, order: wire.FetchChunks) -> None:
        """Fetch soon. Items beyond the bound end at once."""
        deadline = time.monotonic() + order.deadline_s
        refused: list[wire.FetchItem] = []
        with self._wake:
            for start in range(0, len(order.items), peer.MAX_KEYS):
                items = order.items[start : start + peer.MAX_KEYS]
                if self._stopping or self._lanes.waiting >= MOST_WAITING:
                    refused += items
                    continue
                job = Job(order, deadline, {item.op: item for item in items})
                self._jobs.update(dict.fromkeys(job.open, job))
                self._lanes.add(job)
                self._call_a_thread()
        for item in refused:
            self._post(wire.PeerFailed(item.op, "busy"))

    def cancel(self, ops: Iterable[int]) -> None:
        """End these as soon as may be."""
        over: list[int] = []
        with self._wake:
            for op in ops:
                job = self._jobs.get(op)
                if job is None:
                    continue
                job.cancelled.add(op)
                if not self._lanes.waits(job):
                    if job.unwanted and job.channel is not None:
                        job.channel.cut()
                    continue
                over.append(op)
                del job.open[op], self._jobs[op]
                if not job.open:
                    self._lanes.withdraw([job])
        for op in over:
            self._post(wire.PeerFailed(op, "deadline"))

    def tick(self) -> None:
        """Give up what has waited too long, and connections that nobody uses."""
        now = time.monotonic()
        with self._wake:
            late = self._lanes.late(now)
            self._lanes.withdraw(late)
            unused = self._lanes.unused(now)
        for channel in unused:
            channel.close()
        for job in late:
            self._end_all(job, "deadline")

    def stop(self, timeout: float) -> None:
        """Cut every connection, begin nothing more; what waits ends without an event. Returns when no thread is left,
        or after `timeout` seconds.
        """
        with self._wake:
            self._stopping = True
            self._lanes.withdraw(self._lanes.all_waiting())
            for job in set(self._jobs.values()):
                if job.channel is not None:
                    job.channel.cut()
            self._resting = 0
            self._wake.notify_all()
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._wake:
            unused = self._lanes.unused(float("inf"))
        for channel in unused:
            channel.close()

    def _call_a_thread(self) -> None:
        if self._resting:
            self._rouse()
        elif len(self._threads) < MOST_THREADS:
            thread = threading.Thread(target=self._run, name=f"fetch-{len(self._threads)}", daemon=True)
            # Where there may be no more threads, those that are there do the work, or it ends at its deadline.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._threads.append(thread)

    def _rouse(self) -> None:
        """Call one that rests, if any does. Each is called for one piece of work, or the next would wait behind it."""
        if self._resting:
            self._resting -= 1
            self._wake.notify()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            fault: wire.FetchFault = "gone"
            try:
                fault = self._carry_out(job)
            except Exception:
                _log.exception("a fetch has a bug", extra=fields(node=job.order.node))
            finally:
                self._end_all(job, fault)
                with self._wake:
                    self._lanes.ended(job)
                    self._rouse()

    def _next(self) -> Job | None:
        with self._wake:
            while not self._stopping:
                job = self._lanes.begin()
                if job is not None:
                    return job
                self._resting += 1
                self._wake.wait()
            return None

    def _carry_out(self, job: Job) -> wire.FetchFault:
        """Fetch it; why what has not ended then came to nothing."""
        try:
            channel, answer = self._answered(job)
        except NotReached as error:
            self._not_reached(error.reason)
            _log.debug("peer not reached", extra=fields(node=job.order.node, reason=error))
            if error.reason == "timeout":
                return "deadline"
            return "busy" if error.reason == "busy" else "gone"
        except (LinkClosed, LinkTimeout, FrameRefused) as error:
            return self._fault(job, error)
        well = False
        try:
            exchange.take(
                channel, job.order, list(job.open.values()), answer, self._memory, job.deadline, self._ender(job)
            )
            well = True
        except (LinkClosed, LinkTimeout, FrameRefused) as error:
            return self._fault(job, error)
        finally:
            self._release(job, channel, well)
        return "gone"

    def _answered(self, job: Job) -> tuple[Channel[peer.ToReader], peer.Fetched]:
        """A connection on which the peer has answered. One that was idle may have ended without our knowing."""
        with self._wake:
            idle = self._lanes.take_idle(job)
        if idle is not None and idle.quiet:
            try:
                return idle, self._ask(job, idle)
            except LinkClosed:
                pass
        elif idle is not None:
            idle.close()
        channel = self._dialer.dial(job.order, job.deadline)
        return channel, self._ask(job, channel)

    def _ask(self, job: Job, channel: Channel[peer.ToReader]) -> peer.Fetched:
        with self._wake:
            job.channel = channel
            wanted = not (self._stopping or job.unwanted)
        try:
            if not wanted:
                raise LinkTimeout("nobody wants it any more")
            return exchange.ask(channel, next(self._numbers), job.order, list(job.open.values()), job.deadline)
        except BaseException:
            self._release(job, channel, well=False)
            raise

    def _release(self, job: Job, channel: Channel[peer.ToReader], well: bool) -> None:
        with self._wake:
            job.channel = None
            if well and not self._stopping:
                self._lanes.keep(job, channel)
                return
        channel.close()

    def _fault(self, job: Job, error: LinkClosed | LinkTimeout | FrameRefused) -> wire.FetchFault:
        _log.debug("fetch failed", extra=fields(node=job.order.node, reason=error))
        if job.unwanted or isinstance(error, LinkTimeout):
            return "deadline"
        if isinstance(error, FrameRefused):
            self._frame_refused(error.reason)
            return "corrupt"
        return "gone"

    def _ender(self, job: Job) -> exchange.Ended:
        def ended(event: wire.PeerRead | wire.PeerFailed) -> None:
            with self._wake:
                del job.open[event.op], self._jobs[event.op]
            self._post(event)

        return ended

    def _end_all(self, job: Job, fault: wire.FetchFault) -> None:
        """Whatever of it has not ended."""
        with self._wake:
            ops = list(job.open)
            job.open.clear()
            for op in ops:
                del self._jobs[op]
        for op in ops:
            self._post(wire.PeerFailed(op, fault))
