"""Rendering of chat templates, which are code by the maker of the model.

A template runs in Jinja's sandbox in a worker process, which ends at a limit of time or memory:
there is no other bound for what one expression can cost, such as a value that contains itself.
"""

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from flowzoo.errors import ChatError, UsageError
from flowzoo.sandbox.pool import JobResult, WorkerPool

Variables = Mapping[str, object]

MOST_SECONDS = 5.0
"""Most CPU seconds for up to 16 chats, and a tenth of the most seconds by the clock."""
MOST_GROWTH, MOST_ADDED = 8, 2**20
"""Most characters of a prompt: for each byte of the chats and the template, and beside them."""
_AT_ONCE = 16
_TEXTS, _REFUSED, _LONG = range(3)
_LIMITS = {
    "timeout": f"takes more than {MOST_SECONDS:g} s",
    "memory": "takes more than 1 GiB of memory",
    "crashed": "ends the process that renders it",
}
_POOL = WorkerPool(f"{__name__}:setup", workers=1, fresh=False, name="chat templates")


def warm() -> None:
    """Start the worker without waiting for it."""
    _POOL.warm()


def render(
    tokenizer: Any, chats: Sequence[tuple[Sequence[object], Variables]], opened: bool = True
) -> list[str]:
    """The prompts of chats, each with its variables, by a tokenizer's chat template.

    They equal what `apply_chat_template` returns. `opened`: the reply's opening is included.

    Raises:
        ChatError: the template does not take these messages.
        UsageError: the template exceeds a limit.
    """
    usual = {
        **tokenizer.special_tokens_map,
        "tools": None,
        "documents": None,
        "add_generation_prompt": opened,
    }
    jobs = [
        (
            tokenizer.get_chat_template(given.get("chat_template"), given.get("tools")),
            {**usual, **given, "messages": messages},
        )
        for messages, given in chats
    ]
    texts = list[str]()
    for start in range(0, len(jobs), _AT_ONCE):
        job = pickle.dumps(jobs[start : start + _AT_ONCE])
        (result,) = _POOL.run([job], MOST_SECONDS)
        texts += _read(result, tokenizer)
    return texts


def refuse(tokenizer: Any, fault: str) -> NoReturn:
    """Raise `UsageError` for a chat template that cannot be used."""
    raise UsageError(
        f"the chat template of {tokenizer.name_or_path!r:.200} {fault}: use another model, or set "
        "`tokenizer.chat_template` to a template that you know"
    )


def _read(result: JobResult, tokenizer: object) -> list[str]:
    if result.status != "ok":
        refuse(tokenizer, _LIMITS[result.status])
    kind, value = json.loads(result.value.decode("utf-8", "surrogatepass"))
    if kind == _LONG:
        refuse(tokenizer, f"makes a prompt of {value:,} characters, too many for its chat")
    if kind == _REFUSED:
        raise ChatError(f"the model's chat template does not take these messages: {value}")
    return value


def setup() -> Callable[[bytes], bytes]:
    """Import Jinja in the worker; return the handler of jobs."""
    _compile("{% generation %}{{ 1 | tojson }}{% endgeneration %}").render()
    return handle


def handle(job: bytes) -> bytes:
    """Render pairs of template and variables, a pickle, to JSON."""
    pairs, texts = pickle.loads(job), list[str]()  # noqa: S301  # of the process that started this
    try:
        for template, variables in pairs:
            texts.append(_compile(template).render(variables))
        longest = max(map(len, texts))
        fits = longest <= MOST_GROWTH * len(job) + MOST_ADDED
        answer: tuple[int, object] = (_TEXTS, texts) if fits else (_LONG, longest)
    except MemoryError:
        raise
    except Exception as error:  # a template may raise any
        answer = _REFUSED, " ".join(str(error).split())[:500]
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")


@lru_cache(64)
def _compile(template: str) -> Any:
    # With what transformers adds to Jinja for chat templates.
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`: what a model writes, rendered as a separate call."""

        tags = frozenset({"generation"})  # type: ignore[assignment]

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("inside"), [], [], body).set_lineno(line)

        def inside(self, caller: Callable[[], str]) -> str:
            return caller()

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
        sort_keys: bool = False,
    ) -> str:  # fmt: skip
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
            sort_keys=sort_keys,
        )  # fmt: skip

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, LoopControlExtension]
    )
    environment.filters["tojson"] = to_json
    functions = {
        "raise_exception": raise_exception,
        "strftime_now": lambda text: datetime.now().strftime(text),
    }
    return environment.from_string(template, functions)
