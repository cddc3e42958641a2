"""Checks that parsers and scripts terminate."""

import re
import signal
import string
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain

from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.tasks.task import Task
from flowzoo.envs.testing.playthrough import (
    HOSTILE,
    expert_replies,
    play_out,
    play_with,
    problem_at,
    require,
    sampled_reply,
)
from flowzoo.envs.workflow import Workflow
from flowzoo.reward.visible import strip_thinking

_LOOK_S = 0.1


class _OverLimitError(BaseException):
    """Raised in the function; not an `Exception`, so the function does not catch it."""


@contextmanager
def time_limit(subject: str, seconds: float) -> Iterator[None]:
    """Interrupt the block when the main thread has spent `seconds` of CPU time in it.

    The clock is the thread's, so a busy machine or other threads do not shorten the limit. Regular
    expressions are interrupted too: Python's `re` checks for signals while it matches. There is no
    limit outside the main thread or without such timers (Windows). The error names `subject`.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return
    start, over = time.thread_time(), False

    def look(number: int, frame: object) -> None:
        nonlocal over
        if time.thread_time() - start > seconds:
            over = True
            raise _OverLimitError

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_S, _LOOK_S)
    try:
        yield
    except _OverLimitError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    if over:
        raise AssertionError(f"{subject} takes more than {seconds:g} s of CPU time")


# Repeated in replies. A pattern with nested repetitions, `(a+)+$`, takes time exponential in the
# length of a reply that almost matches: a model that repeats itself triggers it, and training
# hangs.
UNITS = ("a", "1", "word ", "1, ", " ", "\n", "\\", "{", "[", "(", '"', "*", "-", "<a>", "x = 1\n")
# Beginnings that parsers search for.
OPENINGS = ("", "\\boxed{", "<answer>", "Answer: ", "```python\n", '{"answer": "', "[[")
# CPU seconds that a parser may take for one reply; parsers of flowzoo's tasks take milliseconds for
# a megabyte.
LIMIT_S = 5.0
_TIMES, _CUTS = 60, 24
_PART = re.compile(r"\w+|\s+|[^\w\s]")


def repetitions(reply: str = "") -> Iterator[str]:
    """Replies that repeat one text and then break off, or end unexpectedly."""
    # They start with an opening, or with a part of `reply`. Without a start, every character and
    # every part of `reply` is repeated as well.
    parts = list(_PART.finditer(reply))
    cuts = parts[:: max(1, len(parts) // _CUTS)]
    for head in dict.fromkeys((*OPENINGS, *(reply[: part.end()] for part in cuts))):
        more = () if head else (*string.printable, *reply, *(part[0] for part in parts))
        for unit in dict.fromkeys((*UNITS, *more)):
            for end in ("", "!", "\x00"):
                yield head + _TIMES * unit + end


def check_ends(workflow: Workflow) -> None:
    """Check that scripts end within `max_calls` calls."""
    for number in range(2):
        play_out(Episode(workflow, problem_at(workflow, number)), "ends", number)


def check_parsers(workflow: Workflow) -> None:
    """Check that the parsers of every role read any reply within `LIMIT_S` of CPU time.

    They must read the same reply twice as equal values, and an empty one never as False.

    A parser is checked once per role; parsers with the same name count as one.
    """
    problem = problem_at(workflow, 0)
    replies = (*expert_replies(workflow.task, problem), sampled_reply(workflow, "parsers"))
    seen = set[tuple[str, str]]()

    def respond(turn: Turn) -> str:
        role = workflow.agents[turn.agent][0]
        for parser in filter(None, (turn.parse, turn.lenient)):
            name = function_name(parser)
            if (role, name) not in seen:
                seen.add((role, name))
                subject = f"the parser {name} of {turn.agent}"
                read_all(subject, parser, replies)
                _check_values(subject, parser, (*replies, *workflow.samples()))
        return sampled_reply(workflow, "parsers", turn.call)

    play_with(Episode(workflow, problem), respond)


def _check_values(subject: str, parser: Callable[[str], object], replies: Sequence[str]) -> None:
    require(parser("") is not False, f"{subject} reads an empty reply as False: return None")
    for reply in replies:
        first, again = parser(reply), parser(reply)
        require(
            first == again,
            f"{subject} reads {reply!r:.80} as {first!r:.80} and as {again!r:.80}: a value must "
            "depend on the reply alone, and equal the same one",
        )


def check_readers(task: Task) -> None:
    """Check that the readers of answers read any reply within `LIMIT_S` of CPU time."""
    problem = task.problem(0, "train")
    for name in ("answer", "answer_lenient", "answer_published"):
        read_all(f"{name}()", getattr(task, name), expert_replies(task, problem) or [""])


def read_all(subject: str, parser: Callable[[str], object], replies: Sequence[str]) -> None:
    """Run a parser on hostile replies and repetitions that start like `replies`."""
    texts = chain(HOSTILE.values(), *map(repetitions, replies))
    for text in dict.fromkeys(map(strip_thinking, texts)):
        with time_limit(f"{subject}, given {text!r:.80},", LIMIT_S):
            try:
                parser(text)
            except Exception as error:
                raise AssertionError(f"{subject} raised {error!r} for {text!r:.80}") from error


def function_name(function: object) -> str:
    """The name of a function or of a `functools.partial`."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__)
