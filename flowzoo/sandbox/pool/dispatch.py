"""The dispatcher of a pool: one thread that hands jobs to workers and watches their deadlines.

Submitters leave a batch in the inbox and wake the thread; everything else (sockets, workers,
queues) belongs to it alone, so there is one lock and it guards the inbox. The thread sleeps in
`poll` on the streams of all workers, and until the nearest deadline.

Jobs are short, so a message per job would cost more than the job: a worker is sent as many jobs
ahead as it finishes in about two milliseconds. Its reply to one job is its start of the next, so
each deadline still counts from the moment the job reached a worker that was free for it. A worker
that stays on one job for long gives the jobs behind it back to the others.

On a machine with more work than processors a job would meet its deadline for what others do, and an
answer would be judged by the load. So the time that its worker waited for a processor is added.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
import time
from collections import deque

from flowzoo.errors import FlowzooError, UsageError
from flowzoo.sandbox.pool.batch import JobBatch, JobQueue
from flowzoo.sandbox.pool.channel import PoolZygote, WorkerConnection, runqueue_wait
from flowzoo.sandbox.pool.protocol import (
    DONE,
    HELLO,
    NO_MEMORY,
    JobStatus,
    PoolError,
    Result,
    WorkerReply,
)
from flowzoo.sandbox.pool.settings import PoolSettings

STATUS: dict[int, JobStatus] = {DONE: "ok", NO_MEMORY: "memory"}
"""What a kind of reply means; one that is not here means `crashed`."""

AHEAD_SECONDS = 0.002
"""How much work a worker is sent ahead."""

AHEAD_JOBS = 64
"""Most jobs a worker is sent ahead."""

AHEAD_BYTES = 2**20
"""A message to a worker takes no further job beyond this size."""

STUCK_SECONDS = 0.02
"""A worker this long at one job is looked at, and gives back the jobs sent ahead to it."""

SETUP_SECONDS = 120.0
"""How long the set-up of a zygote may take."""

FORK_SECONDS = 30.0
"""How long a fork may take; a zygote that needs longer is replaced."""

MOST_FAILURES = 5
"""Processes that may die one after the other, without one verdict between, before jobs fail."""


class Dispatcher:
    """The engine of one pool in one process.

    Args:
        settings: of the pool.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.owner = os.getpid()
        self.channels: dict[int, WorkerConnection] = {}
        """The workers by the descriptor of their stream."""
        self._inbox: deque[JobBatch] = deque()
        self._lock = threading.Lock()
        self._closing = False
        self._ended = False
        self._jobs = JobQueue()
        self._zygote: PoolZygote | None = None
        self._failures = 0
        self._typical = AHEAD_SECONDS / 2  # seconds a job takes, a running mean
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(
            target=self._run, name=f"{settings.name}-dispatch", daemon=True
        )
        self._thread.start()

    # Called from any thread.

    def submit(self, batch: JobBatch) -> bool:
        """Queue `batch`, whose future will hold the results; False if the thread has ended."""
        with self._lock:
            if self._ended or self._closing:
                return False
            self._inbox.append(batch)
        self._wake()
        return True

    def close(self) -> None:
        """Kill all processes, fail what is unfinished, wait until nothing is left.

        Takes no lock: the garbage collector may call it, at any point of any thread.
        """
        if os.getpid() != self.owner:
            return
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def forget(self) -> None:
        """In a fork of the owner: close the descriptors it inherited, and touch no process."""
        for channel in self.channels.values():
            channel.stream.close()
        if self._zygote is not None:
            self._zygote.forget()
        self._wake_in.close()
        self._wake_out.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._wake_out.send(b"w")

    # The thread: its loop.

    def _run(self) -> None:
        failure: BaseException = PoolError(f"the worker pool {self.settings.name!r} was closed")
        try:
            while not self._closing:
                self._turn()
        except FlowzooError as error:
            failure = error
        except BaseException as error:
            failure = PoolError(f"the worker pool {self.settings.name!r} failed: {error!r}")
            failure.__cause__ = error
        finally:
            with self._lock:
                self._ended = True
            self._jobs.add(self._inbox)
            self._end(failure)

    def _turn(self) -> None:
        """Take in batches, hand out jobs, sleep until something happens, act on it."""
        with self._lock:
            fresh, self._inbox = self._inbox, deque()
        self._jobs.add(fresh)
        self._grow()
        self._hand_out()
        for fd, events in self._sleep():
            channel = self.channels.get(fd)
            if channel is not None:
                if events & select.POLLOUT:
                    channel.flush()
                if events & ~select.POLLOUT:
                    self._listen(channel)
            elif fd == self._wake_in.fileno():
                self._wake_in.recv(4096)
            elif self._zygote is not None and fd == self._zygote.control.fileno():
                self._listen_to_zygote(self._zygote)
        self._watch()

    def _sleep(self) -> list[tuple[int, int]]:
        """Wait for a stream or the nearest deadline; returns (descriptor, events) pairs."""
        poll = select.poll()
        poll.register(self._wake_in, select.POLLIN)
        soonest = math.inf
        if self._zygote is not None:
            # Before the workers: its last words explain why their streams end.
            poll.register(self._zygote.control, select.POLLIN)
            if not self._zygote.ready:
                soonest = self._zygote.started_at + SETUP_SECONDS
        for fd, channel in self.channels.items():
            events = select.POLLIN | select.POLLOUT if channel.outgoing else select.POLLIN
            poll.register(fd, events)
            soonest = min(soonest, self._due(channel))
        if soonest == math.inf:
            return poll.poll()
        return poll.poll(max(0, math.ceil((soonest - time.monotonic()) * 1000)))

    def _due(self, channel: WorkerConnection) -> float:
        """When `channel` has to be looked at if nothing comes from it."""
        if not channel.pid:
            return channel.started_at + FORK_SECONDS
        if not channel.queue:
            return math.inf
        if channel.waited is None or self._has_backlog(channel):
            return min(channel.deadline, channel.started + STUCK_SECONDS)
        return channel.deadline

    def _has_backlog(self, channel: WorkerConnection) -> bool:
        """Whether jobs wait behind the one in front that another worker could do."""
        return len(channel.queue) > 1 and self.settings.workers > 1

    def _watch(self) -> None:
        """Act on what is overdue."""
        now = time.monotonic()
        for channel in tuple(self.channels.values()):
            if now < self._due(channel) or self.channels.get(channel.fd) is not channel:
                continue
            if channel.pid and now >= channel.deadline:
                if not channel.extend():
                    self._retire(channel, "timeout")
            elif channel.pid:
                if channel.waited is None:
                    channel.waited = runqueue_wait(channel.pid)
                if self._has_backlog(channel):
                    self._take_back(channel, keep=1)
                    channel.last = True
            elif self._zygote is not None and not self._zygote.ready:
                channel.started_at = now  # it waits for the set-up, which has its own limit
            elif self._zygote is not None:
                self._zygote.kill()
                self._lose_zygote()
        zygote = self._zygote
        if zygote is not None and not zygote.ready and now > zygote.started_at + SETUP_SECONDS:
            zygote.kill()
            raise PoolError(self._setup_failed(f"not ready after {SETUP_SECONDS:.0f} s"))

    # The thread: jobs to workers.

    def _grow(self) -> None:
        """Start the zygote and as many workers as there is work for."""
        busy = sum(1 for channel in self.channels.values() if channel.queue)
        wanted = min(self.settings.workers, self._jobs.waiting() + busy)
        while len(self.channels) < wanted and self._start_worker():
            pass

    def _start_worker(self) -> bool:
        """Order one more worker, from a new zygote where there is none; False where that fails."""
        if self._zygote is None:
            settings = self.settings
            self._zygote = PoolZygote(settings.setup, settings.memory_bytes, dict(settings.env))
        try:
            channel = WorkerConnection(self._zygote.fork())
        except OSError:  # it died, or does not read any more
            self._zygote.kill()
            self._lose_zygote()
            return False
        self.channels[channel.fd] = channel
        return True

    def _hand_out(self) -> None:
        """Give jobs to the idle workers and, when none is idle or starting, send jobs ahead."""
        if not (waiting := self._jobs.waiting()):
            return
        share = math.ceil(waiting / self.settings.workers)
        order = sorted(self.channels.values(), key=lambda channel: len(channel.queue))
        window = min(AHEAD_JOBS, max(1, int(AHEAD_SECONDS / self._typical)))
        ahead = all(channel.pid for channel in order)
        for channel in order:
            held = len(channel.queue)
            if not channel.pid or channel.last or (held and not (ahead and 2 * held <= window)):
                continue
            left = self.settings.recycle_after - channel.served - held
            if (most := min(window - held, share, left)) > 0:
                taken = self._jobs.take(most, AHEAD_BYTES)
                if taken is None:
                    return
                channel.send_jobs(*taken)

    # The thread: what comes from the processes.

    def _listen(self, channel: WorkerConnection) -> None:
        """Take the replies of a worker, and replace it where its stream is no longer good."""
        replies, good = channel.receive()
        for reply in replies:
            if not self._accept(channel, reply):
                good = False
                break
        if not good:
            if self._zygote is None or self._zygote.has_exited():
                self._lose_zygote()
            elif channel.pid:
                self._retire(channel, self._cause(channel))
            else:
                self._fail_start(channel)
        elif not channel.queue and (channel.last or channel.served >= self.settings.recycle_after):
            self._retire(channel, None)

    def _accept(self, channel: WorkerConnection, reply: WorkerReply) -> bool:
        """Enter one reply; False where it does not answer the job in front."""
        if reply.kind == HELLO:
            return not channel.pid and channel.accept_hello(reply)
        if not channel.queue or reply.id != channel.queue[0].id:
            return False
        status = STATUS.get(reply.kind, "crashed")
        self._jobs.settle(channel.queue.popleft(), Result(status, reply.value, reply.seconds))
        self._typical += 0.1 * (max(reply.seconds, 1e-6) - self._typical)
        self._failures = 0
        channel.served += 1
        if reply.kind == NO_MEMORY:  # what it still holds is unknown
            channel.last = True
            self._take_back(channel, keep=0)
        channel.start_clock()
        return True

    def _cause(self, channel: WorkerConnection) -> JobStatus:
        """Why a worker died: beyond its CPU time the kernel killed it, which is a time-out."""
        if not channel.queue:
            return "crashed"
        spent = time.monotonic() - channel.started
        return "timeout" if spent >= channel.queue[0].batch.cpu_seconds else "crashed"

    def _listen_to_zygote(self, zygote: PoolZygote) -> None:
        """Learn that the set-up is done, or why it failed, or that the zygote is gone."""
        alive = zygote.read_report()
        if zygote.error:
            raise UsageError(self._setup_failed(zygote.error))
        if not alive:
            self._lose_zygote()

    # The thread: the end of processes.

    def _retire(self, channel: WorkerConnection, verdict: JobStatus | None) -> None:
        """Kill a worker and start another; `verdict` is for the job it was at, if any."""
        channel.kill()
        self.channels.pop(channel.fd, None)
        if self._zygote is not None:
            self._zygote.reap(channel.pid)
        if verdict is not None and channel.queue:
            spent = time.monotonic() - channel.started
            self._jobs.settle(channel.queue.popleft(), Result(verdict, b"", spent))
        self._take_back(channel, keep=0)
        if self._zygote is not None:
            self._start_worker()

    def _fail_start(self, channel: WorkerConnection) -> None:
        """A worker died, or could not be forked, before its hello."""
        channel.kill()
        self.channels.pop(channel.fd, None)
        self._count_failure("its workers die before they start")
        time.sleep(0.01)  # the machine may be out of processes: no busy loop

    def _lose_zygote(self) -> None:
        """The zygote is gone, and the workers with it: let their jobs wait for new ones.

        A job that a worker was at when its zygote died gets a second chance, but no third.
        """
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.close()
            ended = f"its zygote ended with status {zygote.process.returncode}"
            if not zygote.ready:
                raise PoolError(self._setup_failed(ended))
            self._count_failure(ended)
        for channel in self.channels.values():
            channel.kill()
            if channel.queue:
                ticket = channel.queue[0]
                if ticket.idx in ticket.batch.retried:
                    spent = time.monotonic() - channel.started
                    self._jobs.settle(channel.queue.popleft(), Result("crashed", b"", spent))
                ticket.batch.retried.add(ticket.idx)
            self._take_back(channel, keep=0)
        self.channels.clear()

    def _take_back(self, channel: WorkerConnection, keep: int) -> None:
        """Let all jobs of a worker wait again but the first `keep`, in their order."""
        while len(channel.queue) > keep:
            self._jobs.put_back(channel.queue.pop())

    def _count_failure(self, what: str) -> None:
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise PoolError(
                f"the worker pool {self.settings.name!r} gives up after {MOST_FAILURES} failures "
                f"in a row: {what}"
            )

    def _setup_failed(self, why: str) -> str:
        """The message about a set-up that did not give a handler."""
        return f"the set-up {self.settings.setup!r} of a worker pool failed in its process: {why}"

    def _end(self, failure: BaseException) -> None:
        """Leave no process, no descriptor and no waiting submitter behind."""
        for channel in self.channels.values():
            channel.kill()
        self.channels.clear()
        if self._zygote is not None:
            self._zygote.close()
        self._wake_in.close()
        self._wake_out.close()
        self._jobs.fail(failure)
