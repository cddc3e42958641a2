"""A running box on the host's side, and the set of warm boxes."""

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

from flowzoo.sandbox.backends import Backend, BoxConnection, BoxError, BoxRefusedError
from flowzoo.sandbox.runner.wire import BROKEN, READY, Frame, FrameDecoder, FrameError, pack

_log = logging.getLogger(__name__)

# Seconds for a box to become ready; a container on a busy machine needs several.
START_SECONDS = 60.0
START_PAUSES = (0.0, 0.05, 0.5)  # seconds before each try to start a box
SEND_SECONDS = 30.0  # seconds for a box to read a frame
RECYCLE_AFTER = 1000  # programs after which a box is replaced
AHEAD = 64  # most queued frames on the host's side; a box that sends more is blocked

# Frames with their box; None is the end of the box.
Inbox: TypeAlias = "asyncio.Queue[tuple[Box, Frame | None]]"


class BoxStartError(BoxError):
    """No box could be started in several attempts."""


class Box:
    """One box in one event loop."""

    def __init__(self, wire: BoxConnection) -> None:
        self.wire = wire
        self.facts: dict[str, Any] = {}
        self.served = 0  # number of programs that it has run
        # True if it could not restore itself, or broke the protocol.
        self.dirty = False
        # Queue of its frames; the two boxes of a check share one.
        self.inbox: Inbox = asyncio.Queue(AHEAD)
        self._trouble = ""
        self._ended = False
        # Unpredictable ids, so a program cannot forge frames.
        self._ids = itertools.count(secrets.randbits(48))
        self._listener = asyncio.create_task(self._listen())

    @property
    def reusable(self) -> bool:
        """True if it can run another program."""
        return not (self._ended or self.dirty or self.inbox.qsize())

    def next_id(self) -> int:
        """The id of the next job."""
        return next(self._ids)

    async def warm_up(self) -> None:
        """Wait until it can run programs."""
        _, frame = await self.receive(self.inbox, START_SECONDS)
        if frame.kind != READY:
            raise BoxError(f"it sent frame {frame.kind} before it was ready")
        self.facts = frame.head

    async def send(self, kind: int, head: dict[str, Any], blobs: list[bytes] | None = None) -> None:
        """Send a frame."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self.wire.write(pack(kind, head, blobs or []))
        except TimeoutError:
            raise BoxError(f"it did not read a frame within {SEND_SECONDS:.1f} s") from None
        except OSError as error:
            raise self.failure() from error

    async def receive(self, inbox: Inbox, seconds: float) -> "tuple[Box, Frame]":
        """The next frame in `inbox`, from this box or the other one of a check."""
        try:
            async with asyncio.timeout(seconds):
                box, frame = await inbox.get()
        except TimeoutError:
            raise BoxError(f"it did not answer within {seconds:.1f} s") from None
        if frame is None:
            raise box.failure()
        if frame.kind == BROKEN:
            box.dirty = True
            raise BoxRefusedError(f"it reports: {str(frame.head.get('detail', ''))[:600]}")
        return box, frame

    def failure(self) -> BoxError:
        """Make an error that describes its end."""
        return BoxError(self._trouble or self.wire.exit_summary())

    async def kill(self) -> None:
        """Kill the box and wait until nothing of it is left."""
        self.dirty = True
        self._listener.cancel()
        await asyncio.wait([self._listener])
        await self.wire.kill()

    async def _listen(self) -> None:
        unpacker = FrameDecoder()
        try:
            while data := await self.wire.read():
                for frame in unpacker.feed(data):
                    await self.inbox.put((self, frame))
        except FrameError as error:
            self._trouble = f"it broke the protocol: {error}"
        self._ended = True
        await self.inbox.put((self, None))


class BoxSet:
    """Boxes of one kind, kept warm between programs. Callers bound their number."""

    def __init__(self, backend: Backend) -> None:
        self.boxes: set[Box] = set()  # all running boxes, idle or leased
        self.started = 0  # number of boxes that have become ready so far
        self._backend = backend
        self._idle: list[Box] = []

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Box]:
        """Lease a warm box for one program, or a new one if none is idle."""
        # The box is discarded if the body raises, or if it cannot run another program.
        box = await self._take()
        try:
            yield box
        except BaseException:
            box.dirty = True
            raise
        finally:
            box.served += 1
            if box.reusable and box.served < RECYCLE_AFTER:
                self._idle.append(box)
            else:
                await self.discard(box)

    def add(self, box: Box) -> None:
        """Add a box that is ready."""
        self.boxes.add(box)
        self.started += 1
        self._idle.append(box)

    async def discard(self, box: Box) -> None:
        """End a box."""
        await box.kill()
        self.boxes.discard(box)

    async def close(self) -> None:
        """End all boxes."""
        self._idle.clear()
        ends = [self.discard(box) for box in tuple(self.boxes)]
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(error, Exception):  # the backend's `close` removes the rest
                _log.warning("a box could not be ended: %r", error)

    async def _take(self) -> Box:
        while self._idle:
            box = self._idle.pop()  # the most recently used one has warm caches
            if box.reusable:
                return box
            await self.discard(box)
        try:
            box = await start_box(self._backend, self.boxes)
        except BoxError as error:
            raise BoxStartError(
                f"no {self._backend.tier} box starts: {str(error).rstrip('.')}"
            ) from error
        self.started += 1
        return box


async def start_box(backend: Backend, boxes: set[Box], once: bool = False) -> Box:
    """Start a box until it is ready; a box that ends, e.g. killed from outside, is replaced."""
    trouble = BoxError("it was not tried")
    for pause in START_PAUSES:
        await asyncio.sleep(pause)
        try:
            return await _start_box(backend, boxes)
        except BoxError as error:
            trouble = error
            if once and isinstance(error, BoxRefusedError):
                break
    raise trouble


async def _start_box(backend: Backend, boxes: set[Box]) -> Box:
    box = Box(await backend.start())
    boxes.add(box)
    try:
        await box.warm_up()
    except BaseException:
        await box.kill()
        boxes.discard(box)
        raise
    return box
