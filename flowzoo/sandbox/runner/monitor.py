"""Monitor of one process of a program: its clocks, output and end."""

import contextlib
import os
import select
import time

from channel import BLOCK, ByteBuffer
from delays import RunDelay
from wire import RECORD, WALL_PER_CPU, find_messages
from zygote import Zygote

STDERR_KEPT = 2048
# Most bytes of a program's stderr; all are read, so a flood costs time.
STDERR_MOST = 4 * 2**20
_LENGTH = RECORD.size
SLACK = 8192  # most bytes of a record beyond the allowed output
PEAK_UNIT = 1024  # bytes in the unit of `ru_maxrss`
START_SECONDS = 60.0  # seconds for a process to report its start, which only depends on the machine
MOST_DELAY = 600.0  # most seconds of waiting for a processor that are compensated
_SHORT = 0.05  # seconds between two looks at delays, which take time


def cpu_clock(pid: int) -> int:
    """The clock id of a process's CPU time (MAKE_PROCESS_CPUCLOCK of the kernel's headers)."""
    return (~pid << 3) | 2


class ProcessMonitor:
    """One process and its pipes until its end; descriptor -1 means no pipe."""

    def __init__(
        self, zygote: Zygote, out: int, err: int, says: int, inbox: int, limits: dict,
        buffers: tuple[ByteBuffer, ByteBuffer, ByteBuffer, ByteBuffer], largest: int = 0,
        proc: int | None = None,
    ) -> None:  # fmt: skip
        self.zygote = zygote
        self.limits = limits
        self.out, self.err, self.records, self.outbox = buffers
        for buffer in buffers:
            buffer.size = 0
        self.most = int(limits["output_bytes"])
        # Total CPU seconds; a call has at most `cpu_s` of them.
        self.most_cpu = float(limits.get("session_s") or limits["cpu_s"])
        if out >= 0:
            self.out.ensure(self.most + 1)
        self.err.ensure(BLOCK)
        self.records.ensure(min(self.most, BLOCK) + SLACK)
        self._largest = max(self.most, largest) + SLACK
        self.status: int | None = None  # wait status, after its end
        self.peak = 0  # peak memory in bytes, after its end
        self.clean = True  # True if nothing remains of it after its end
        self.fault = ""  # reason of its kill: cpu, wall or output
        self.was_delayed = False  # True if its deadline has passed since the last check
        self.err_total = 0
        self._pid = 0
        self._delay = RunDelay(proc)
        self._cpu_total = 0.0
        self._inbox, self._end = inbox, zygote.fileno()
        self._fds = {fd: buffer for fd, buffer in ((out, self.out), (err, self.err)) if fd >= 0}
        self._fds[says] = self.records
        self._poll = select.poll()
        for fd in (self._end, *self._fds):
            self._poll.register(fd, select.POLLIN)
        for fd in self._fds:
            os.set_blocking(fd, False)
        if inbox >= 0:
            os.set_blocking(inbox, False)
        now = time.monotonic()
        self._wall_start, self._wall_end, self._cpu_start = now, 0.0, 0.0
        # Times of the last look at delays, and since which they are counted.
        self._looked = self._counted = now
        # CPU seconds used when the last call was answered.
        self._call_cpu, self._call_wall = 0.0, 0.0
        # Known seconds of waiting for a processor: of the test, and before this call.
        self._waited, self._call_waited = 0.0, 0.0
        self._rests = 0.0  # start of its wait for another process; 0: it does not wait
        self._deaf_until = 0.0  # time of the next read of its pipes; 0: now

    def begin(self, pid: int, number: int, cpu: float, at: float) -> None:
        """Handle the start of the process: its ids and initial clocks."""
        self._pid = pid
        self._delay.follow(number)
        self._cpu_start, self._wall_start = cpu, at

    def begin_call(self) -> None:
        """Start the clocks of another call of a session."""
        if time.monotonic() - self._looked > _SHORT:
            self._look_at_delay()
        wall = self.wall
        self._call_cpu, self._call_wall, self._call_waited = self.cpu, wall, self._waited

    def begin_case(self) -> None:
        """Start the clocks of another test."""
        now = time.monotonic()
        if now - self._counted > _SHORT:
            self._delay.reset()
            self._counted = now
        self._waited = 0.0
        self._wall_start = now
        self._cpu_start = self._cpu_now()

    def rest(self) -> None:
        """Stop the wall clock while it waits for another process."""
        self._rests = self._rests or time.monotonic()

    def go_on(self) -> None:
        """Resume the wall clock."""
        if self._rests:
            self._wall_start += time.monotonic() - self._rests
            self._rests = 0.0

    @property
    def wall(self) -> float:
        """Seconds since the test began; 0 if it ended before the first check."""
        return max(0.0, (self._rests or self._wall_end or time.monotonic()) - self._wall_start)

    @property
    def cpu(self) -> float:
        """CPU seconds since the test began."""
        return max(0.0, self._cpu_now() - self._cpu_start)

    def _cpu_now(self) -> float:
        if self.status is None and self._pid:
            with contextlib.suppress(OSError, OverflowError):
                self._cpu_total = time.clock_gettime(cpu_clock(self._pid))
        return self._cpu_total

    def gather(self, seconds: float) -> None:
        """Postpone reading its output, since each wakeup costs time."""
        self._deaf_until = self._deaf_until or time.monotonic() + seconds

    def step(self, host: int = -1) -> bool:
        """Wait for an event and handle it; True if the descriptor `host` is readable.

        Afterwards `fault` may be set and the process killed, `status` set and all output read, or
        new records available.
        """
        ready = self._wait_deaf(host) if self._deaf_until else self._wait(host)
        if self._end in ready:
            self._take_end()
            return host in ready
        for fd in self._fds.keys() & ready:
            self._read(fd)
        if self._inbox in ready:
            self._write()
        if not self.fault:
            self._check_clocks()
        return host in ready

    def _wait(self, host: int) -> set[int]:
        if host >= 0:
            self._poll.register(host, select.POLLIN)
        events = self._poll.poll(1000 * self._patience())
        if host >= 0:
            self._poll.unregister(host)
        return {fd for fd, _ in events}

    def _wait_deaf(self, host: int) -> set[int]:
        # Ignore ready pipes before that time.
        left = max(0.0, self._deaf_until - time.monotonic())
        sources = (self._end,) if host < 0 else (self._end, host)
        targets = (self._inbox,) if self.outbox.size else ()
        readable, writable, _ = select.select(sources, targets, (), left)
        if readable or writable:
            return {*readable, *writable}
        self._deaf_until = 0.0
        return set(self._fds)

    def _patience(self) -> float:
        used = self.cpu
        wall = 60.0 if self._rests else self._wall_left(used)
        # Threads without the GIL can use CPU time faster than the wall clock.
        cpu = self._cpu_left(used) / 2
        return max(0.001, min(wall, max(cpu, 0.005), 60.0))

    def _check_clocks(self) -> None:
        used = self.cpu
        if self._cpu_left(used) < 0:
            self.kill("cpu")
        elif self._wall_left(used) < 0:
            self._look_at_delay()
            self.was_delayed = self._wall_left(used) >= 0
            if not self.was_delayed:
                self.kill("wall")

    def _look_at_delay(self) -> None:
        # Time spent waiting for a processor does not count.
        self._looked = time.monotonic()
        self._waited = max(self._waited, min(self._delay.seconds(), MOST_DELAY))

    def _cpu_left(self, used: float) -> float:
        return min(self.most_cpu - used, self.limits["cpu_s"] - (used - self._call_cpu))

    def _wall_left(self, used: float) -> float:
        wall = self.wall - self._waited
        if not self._pid:
            return START_SECONDS - wall
        whole = WALL_PER_CPU * used - wall
        began = self._call_wall - self._call_waited
        call = WALL_PER_CPU * (used - self._call_cpu) - (wall - began)
        return self.limits["wall_s"] + min(whole, call)

    def _read(self, fd: int) -> None:
        buffer = self._fds[fd]
        room = len(buffer.bytes) - buffer.size
        try:
            count = buffer.read_from(fd, min(room, BLOCK)) if room else 1
        except BlockingIOError:
            return
        if not count:
            self._close(fd)
        elif buffer is self.err:
            self.err_total += count
            buffer.drop(max(0, buffer.size - STDERR_KEPT))
            if self.err_total > STDERR_MOST:
                self.kill("output")
        elif self._says_too_much(buffer, room):
            self.kill("output")

    def drain_errors(self) -> None:
        """Read its stderr so far, which may be older than a record."""
        for fd, buffer in list(self._fds.items()):
            total = -1
            while buffer is self.err and fd in self._fds and self.err_total != total:
                total = self.err_total
                self._read(fd)

    def _says_too_much(self, buffer: ByteBuffer, room: int) -> bool:
        if buffer is self.out:
            return buffer.size > self.most
        size = self._record_size()
        if len(buffer.bytes) < size <= self._largest:
            buffer.ensure(size)
            return False
        return not room or size > len(buffer.bytes)

    def _record_size(self) -> int:
        if self.records.size < _LENGTH:
            return 0
        return _LENGTH + RECORD.unpack_from(self.records.bytes)[0]

    def record(self) -> tuple[bytes, memoryview] | None:
        """Kind and content of the next complete record; call `next_record` afterwards."""
        size = self._record_size()
        if size <= _LENGTH or self.records.size < size:
            return None
        start = _LENGTH + 1
        return bytes(self.records.bytes[_LENGTH:start]), self.records.view(start, size)

    def messages(self) -> tuple[bytes, int]:
        """Pop the next records of messages; return them and their number."""
        records = self.records
        places = find_messages(records.bytes, records.size)
        if not places:
            return b"", 0
        end = places[-1][1]
        with records.view(0, end) as view:
            line = bytes(view)
        records.drop(end)
        return line, len(places)

    def next_record(self) -> None:
        """Drop the record from `record`, whose view has been released."""
        self.records.drop(self._record_size())

    def send(self) -> None:
        """Send as much of `outbox` as fits; `step` sends the rest."""
        self._poll.register(self._inbox, select.POLLOUT)
        self._write()

    def _write(self) -> None:
        try:
            with self.outbox.view(0, self.outbox.size) as view:
                count = os.write(self._inbox, view[:BLOCK])
            self.outbox.drop(count)
        except BlockingIOError:
            return
        except OSError:  # the reader has ended
            self.outbox.size = 0
        if not self.outbox.size:
            self._poll.unregister(self._inbox)

    def kill(self, fault: str = "stopped") -> None:
        """Kill the process for this reason; `step` handles its end."""
        if self.fault:
            return
        self.fault = fault
        if self.status is None:
            self.zygote.kill()

    def _take_end(self) -> None:
        end = self.zygote.end()
        self._wall_end = time.monotonic()
        self._cpu_total, self.status = end.cpu, end.status
        self.peak, self.clean = end.peak * PEAK_UNIT, end.clean
        if self.fault == "wall" and not os.WIFSIGNALED(end.status):
            self.fault = ""  # it had already ended by itself
        for fd, buffer in list(self._fds.items()):
            # With too much output its start record may be unread.
            while fd in self._fds and (self.fault != "output" or buffer is self.records):
                size = self._fds[fd].size, self.err_total
                self._read(fd)
                if (self._fds[fd].size if fd in self._fds else -1, self.err_total) == size:
                    break

    def _close(self, fd: int) -> None:
        del self._fds[fd]
        self._poll.unregister(fd)
        os.close(fd)

    def close(self) -> None:
        """Ensure that the process has ended, and close the pipes."""
        if self.status is None:
            self.kill()
            self._take_end()
        for fd in (*self._fds, self._inbox):
            if fd >= 0:
                os.close(fd)
        self._fds.clear()
