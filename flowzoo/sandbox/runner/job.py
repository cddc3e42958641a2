"""One job: a program and its tests in separate processes, or the session of a check."""

import fcntl
import os
import re
import signal

from channel import ByteBuffer, HostChannel, make_file, write_all
from confine import ConfinementPlan, job_limits
from inside import PEAK, START
from monitor import PEAK_UNIT, STDERR_KEPT, ProcessMonitor
from task import pack_head
from wire import CASE, DATA, DELAYED, STOP, FrameError
from workspace import OomKills
from zygote import Zygote

_CALL_RESULTS = {b"R": "returned", b"E": "raised", b"U": "unplain", b"M": "memory", b"O": "output"}
_PLAIN_TEXT = re.compile(rb"(?:[ !#-\[\]-~]|\\u[0-9a-f]{4})*")
_DIED_EARLY = "the process ended before it was confined"
_PARTS = 16  # most parts of a job per write
QUIET = 0.02  # seconds before the first read of a stdin program's output; most have ended by then
# Seconds for collecting answers, per pending call and at most: a frame costs more than many
# answers.
_GATHER_EACH, _GATHER_MOST = 20e-6, 0.002
_MOST_CALL = 1 << 24  # most bytes of a test's call


class BoxContext:
    """State shared by all jobs of a box."""

    __slots__ = ("buffers", "channel", "kills", "oom_kills", "plan", "zygote")

    def __init__(
        self, channel: HostChannel, plan: ConfinementPlan, zygote: Zygote, kills: OomKills | None,
        oom_kills: OomKills,
    ) -> None:  # fmt: skip
        self.channel, self.plan, self.zygote = channel, plan, zygote
        self.kills, self.oom_kills = kills, oom_kills
        # For stdout, stderr, records and messages of the running process.
        self.buffers = ByteBuffer(), ByteBuffer(), ByteBuffer(), ByteBuffer()


class RunnerJob:
    """A running job."""

    def __init__(self, box: BoxContext, head: dict, sizes: list[int]) -> None:
        self.box, self.channel = box, box.channel
        self.id: int = head["id"]
        self.style: str = head["style"]
        self.stop = bool(head.get("stop"))
        self.limits: dict = head["limits"]
        self.session = self.style in ("serve", "check", "lockstep", "alone")
        self.tests = 1 if self.session else int(head["tests"])
        limits = job_limits(box.plan, self.limits)
        most = int(self.limits["output_bytes"])
        start = pack_head(self.style, head.get("entry") or "", most, limits, sizes)
        self.places: list[tuple[int, int]] = []  # offset and size of the blobs in the job's file
        offset = len(start)
        for size in sizes:
            self.places.append((offset, size))
            offset += size
        self._file = make_file()
        parts: list[bytes | memoryview] = [start]
        for size in sizes:
            for part in self.channel.read_blob(size):
                parts.append(part)
                if len(parts) > _PARTS:
                    write_all(self._file, parts)
                    parts = []
        write_all(self._file, parts)
        seal_file(self._file)
        self.index = 0  # index of the next test
        self._started = False
        self._compiled = False
        self._loaded = False
        self._over = False
        self._stopping = False
        self._messages = bytearray()  # pending records for the host
        self._under_way = 0  # number of calls without an answer
        self.clean = True  # True if none of its processes is left
        self.cpu = 0.0  # CPU seconds of its last test

    @property
    def is_test(self) -> bool:
        """True for the half of a check that makes the calls."""
        return self.session and self.style != "serve"

    def run(self) -> None:
        """Run the tests and send the CASE frames."""
        while self.index < self.tests and not self._over and self.clean:
            self._run_process()
        os.close(self._file)

    def _run_process(self) -> None:
        null = -1 if self.style == "stdin" else os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        own_in = self._stdin() if self.style == "stdin" else null
        out = os.pipe() if self.style == "stdin" else (-1, null)
        err, says = os.pipe(), os.pipe()
        inbox = os.pipe() if self.session else (-1, -1)
        child_fds = [own_in, out[1], err[1], says[1], self._file]
        cases = self.tests - self.index if self.style == "call" else 1
        self.box.zygote.start(
            1 + self.index,
            int(self.limits.get("session_s") or self.limits["cpu_s"] * cases) + 2,
            [*child_fds, inbox[0]] if self.session else child_fds,
            int(self.limits["files_mb"]),
        )
        for fd in {own_in, out[1], err[1], says[1], inbox[0]} - {-1}:
            os.close(fd)
        watch = ProcessMonitor(
            self.box.zygote, out[0], err[0], says[0], inbox[1], self.limits, self.box.buffers,
            _MOST_CALL if self.is_test else 0, self.box.plan.proc,
        )  # fmt: skip
        if self.style == "stdin":
            watch.gather(QUIET)
        self._started = self._compiled = self._loaded = False
        try:
            self._follow(watch)
        finally:
            watch.close()
            self.clean &= watch.clean
            self.cpu = watch.cpu

    def _stdin(self) -> int:
        start, size = self.places[1 + self.index]
        file = make_file()
        while size:
            count = os.sendfile(file, self._file, start, size)
            start, size = start + count, size - count
        os.lseek(file, 0, os.SEEK_SET)
        seal_file(file)
        return file

    def _follow(self, watch: ProcessMonitor) -> None:
        first = self.index
        while watch.status is None and not watch.fault and not self._over:
            if self.channel.waiting or watch.step(self.channel.source):
                self._from_host(watch)
            if self._take_records(watch):
                return
            if watch.was_delayed:
                watch.was_delayed = False
                self.channel.send(DELAYED, {"id": self.id})
        if self._over:
            return
        while watch.status is None:
            watch.step()
        if not self._take_records(watch):  # written before the process ended
            self._send_end(watch, first)

    def _take_records(self, watch: ProcessMonitor) -> bool:
        """Handle the available records; True after the last one."""
        while not self._over and self.index < self.tests:
            if self.session:
                self._take_messages(watch)
            record = watch.record()
            if record is None:
                break
            kind, view = record
            with view as content:
                self._take(watch, kind, content)
            watch.next_record()
        self._send_messages()
        return self._over or self.index >= self.tests

    def _take_messages(self, watch: ProcessMonitor) -> None:
        messages, count = watch.messages()
        self._messages += messages
        if self.is_test:
            self._count(watch, count)
        elif count:
            if self._loaded and count <= self._under_way:  # no time limit without a call
                watch.begin_call()
            self._count(watch, -count)

    def _send_messages(self) -> None:
        # Ignore records after a stop.
        if self._stopping:
            self._messages = bytearray()
        if self._messages:
            self.channel.send(DATA, {"id": self.id}, [memoryview(self._messages)])
            self._messages = bytearray()

    def _take(self, watch: ProcessMonitor, kind: bytes, content: memoryview) -> None:
        if kind == b"S" and not self._started:  # a repeated start does not reset the clocks
            self._started = True
            watch.begin(*START.unpack(content))
        elif kind == b"C":
            self._compiled = True
        elif kind == b"L":
            self._loaded = True
            self._over |= self._stopping
            self._count(watch, 0)
        elif kind == b"F" and not self._started:
            self._send_rest(watch, "setup", content)
        elif kind == b"X" and not self._compiled:
            self._send_rest(watch, "compile", content)
        elif kind in _CALL_RESULTS and self.style != "stdin":
            self._take_result(watch, kind, content)

    def _count(self, watch: ProcessMonitor, calls: int) -> None:
        # The clock is stopped for the waiting half.
        self._under_way += calls
        if calls and self._under_way > 1 and not self.is_test:
            watch.gather(min(_GATHER_EACH * self._under_way, _GATHER_MOST))
        if self._loaded and self.session and (self._under_way > 0) == self.is_test:
            watch.rest()
        else:
            watch.go_on()

    def _take_result(self, watch: ProcessMonitor, kind: bytes, content: memoryview) -> None:
        # A load failure is final for all tests.
        outcome = _CALL_RESULTS[kind]
        if self.style == "call" and self._loaded:
            watch.peak = int.from_bytes(content[: PEAK.size], "little") * PEAK_UNIT
            content = content[PEAK.size :]
        text = kind in (b"E", b"U", b"M")
        if not self._loaded:
            self._send_rest(watch, outcome, content)
            return
        blob = None if text else content
        self._send_case(watch, outcome, content if text else b"", blob)
        if self.stop and outcome != "returned":
            self._over = True
        watch.err.size = 0
        watch.begin_case()

    def _send_end(self, watch: ProcessMonitor, first: int) -> None:
        outcome, code, number = watch.fault, 0, 0
        status = watch.status or 0
        box_limit, machine_limit = self._is_out_of_memory(status)
        detail: bytes | memoryview = b""
        if not self._started:
            outcome, detail = "setup", _DIED_EARLY.encode()
        elif not outcome and (box_limit or machine_limit):
            outcome = "memory" if box_limit else "oom"
        elif not outcome and watch.cpu > watch.most_cpu:
            outcome = "cpu"
        elif not outcome and not self._compiled:
            outcome, detail = "compile", b"the compiler did not survive it"
        elif not outcome and os.WIFSIGNALED(status):
            outcome, number = "signaled", os.WTERMSIG(status)
            if number == signal.SIGXCPU:
                outcome = "cpu"
        elif not outcome:
            outcome, code = "exited", os.WEXITSTATUS(status)
            if code and self._ends_with_memory_error(watch):
                outcome = "memory"
        is_final = self.style == "call" and not self._loaded and self.index == first
        if is_final or outcome in ("setup", "compile"):
            self._send_rest(watch, outcome, detail, code, number)
            return
        self._send_case(watch, outcome, detail, None, code, number)
        self._over = self.stop and not (outcome == "exited" and code == 0)

    def _is_out_of_memory(self, status: int) -> tuple[bool, bool]:
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return False, False
        box_kills, all_of_them = self.box.kills, self.box.oom_kills.more()
        return box_kills is not None and box_kills.more(), all_of_them

    def _ends_with_memory_error(self, watch: ProcessMonitor) -> bool:
        err = watch.err
        last = err.bytes.rfind(b"\n", 0, max(0, err.size - 1)) + 1
        return err.bytes.startswith(b"MemoryError", last, err.size)

    def _send_rest(
        self, watch: ProcessMonitor, outcome: str, detail: bytes | memoryview = b"", code: int = 0,
        number: int = 0,
    ) -> None:  # fmt: skip
        # All remaining tests would end the same way.
        while self.index < self.tests:
            self._send_case(watch, outcome, detail, None, code, number)
            if self.stop:
                break
        self._over = True

    def _send_case(
        self, watch: ProcessMonitor, outcome: str, detail: bytes | memoryview = b"",
        blob: memoryview | None = None, code: int = 0, number: int = 0,
    ) -> None:  # fmt: skip
        self._send_messages()
        if watch.status is None:
            watch.drain_errors()
        size = min(watch.out.size, watch.most)
        head = {
            "id": self.id,
            "index": self.index,
            "outcome": outcome,
            "code": code,
            "signal": number,
            "started": self._started,
            "cpu_s": round(watch.cpu, 6),
            "wall_s": round(watch.wall, 6),
            "memory": watch.peak,
            "truncated": [watch.out.size > watch.most, watch.err_total > STDERR_KEPT],
        }
        output = watch.out.view(0, size) if blob is None else blob
        stderr = watch.err.view(max(0, watch.err.size - STDERR_KEPT), watch.err.size)
        if not _PLAIN_TEXT.fullmatch(detail):
            detail = b"(a message that cannot be shown)"
        self.channel.send(CASE, head, [output, stderr], detail)
        if blob is None:
            output.release()
        stderr.release()
        self.index += 1

    def _from_host(self, watch: ProcessMonitor) -> None:
        frame = self.channel.next_frame()
        if frame is None:
            raise FrameError("the stream ended within a job")
        kind, head, sizes = frame
        if kind == DATA and len(sizes) == 1 and head.get("id") == self.id and self.session:
            _, _, _, outbox = self.box.buffers
            outbox.ensure(outbox.size + sizes[0])
            for part in self.channel.read_blob(sizes[0]):
                outbox.append(part)
            count = int(head["count"])
            self._count(watch, -count if self.is_test else count)
            watch.send()
        elif kind == STOP and not sizes:
            if head.get("id") == self.id:
                self._stopping = True
                self._over = self.style != "serve" or self._loaded
        else:
            raise FrameError(f"frame {kind} within a job")


def seal_file(file: int) -> None:
    """Seal a file in memory: writes would use memory that no limit counts."""
    if hasattr(fcntl, "F_ADD_SEALS"):  # Python may be built without them
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
