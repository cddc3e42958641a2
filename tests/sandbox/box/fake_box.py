"""A box that fails on demand: speaks the frames, runs nothing. The source says what to do.

Each word of the source is done once, in order, before the job is answered with its inputs echoed:
`die`, `hang`, `garbage`, `otherid`, `setup`, `killed`, `broken`, `unclean`, `short`, `slow`; with
`once:PATH:` in front only where PATH does not exist yet, which it does afterwards. `note:PATH`
adds a line to a file, `until:PATH` waits until there is one.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "flowzoo" / "sandbox" / "runner"))

import wire


def send(kind: int, head: dict, blobs: tuple[bytes, ...] = ()) -> None:
    data = wire.pack(kind, head, blobs)
    while data:
        data = data[os.write(1, data) :]


def wanted(word: str) -> str:
    if not word.startswith("once:"):
        return word
    _, path, word = word.split(":")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return ""
    return word


def answer(job: int, index: int, outcome: str, output: bytes) -> None:
    figures = {"code": 0, "signal": 9, "cpu_s": 0.001, "wall_s": 0.002, "memory": 2**20}
    head = {"id": job, "index": index, "outcome": outcome, **figures}
    send(wire.CASE, head, (output, b""))


def serve(frame: wire.Frame) -> None:
    job, inputs = frame.head["id"], frame.blobs[1:]
    orders = [wanted(word) for word in frame.blobs[0].decode().split()]
    for word in orders:
        if word.startswith("note:"):
            with open(word[5:], "a") as file:
                file.write("here\n")
        while word.startswith("until:") and not os.path.exists(word[6:]):
            time.sleep(0.005)
    if "die" in orders:
        sys.stderr.write("Fatal: the box was asked to die\n")
        sys.stderr.flush()
        os._exit(3)
    if "hang" in orders:
        time.sleep(600)
    if "garbage" in orders:
        os.write(1, b"\xff" * 64)
    if "broken" in orders:
        send(wire.BROKEN, {"detail": "the disk is full"})
    if "slow" in orders:
        time.sleep(0.05)
    for index, text in enumerate(inputs[: 1 if "short" in orders else None]):
        outcome = "setup" if "setup" in orders else "signaled" if "killed" in orders else "exited"
        answer(job + ("otherid" in orders), index, outcome, text)
    send(wire.DONE, {"id": job, "clean": "unclean" not in orders})


def main() -> None:
    if sys.argv[1] == "landlock":
        send(wire.BROKEN, {"detail": "this kernel has no Landlock"})
        return
    unpacker = wire.FrameDecoder()
    send(wire.READY, {"pid": os.getpid()})
    while data := os.read(0, 1 << 16):
        for frame in unpacker.feed(data):
            if frame.kind == wire.JOB:
                serve(frame)


main()
