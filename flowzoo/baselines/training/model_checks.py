"""Checks of `flowzoo doctor --model`: whether a model would be sampled and trained rightly."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flowzoo.agents.chat.rendering import render
from flowzoo.agents.chat.template import ChatTokenizer, stop_tokens
from flowzoo.agents.chat.thoughts import thinks_unasked
from flowzoo.agents.hf.decode import DecodeRequest, check_decoding, decode, near_borders
from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.identity import identify
from flowzoo.agents.policy import Completion, Sampling
from flowzoo.agents.traits import borders_of, context_of, dtype_for
from flowzoo.baselines.engines.hf import LoadedPolicy
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.run.export import merge_adapter
from flowzoo.envs.script import Message
from flowzoo.errors import FlowzooError, UsageError

_log = logging.getLogger("flowzoo")
CLOSE = 1e-3
"""Most that log-probs in float32 may differ by for rounding."""
_SHOWN, _REPLY = 200, 16
"""Characters of a prompt that are shown, and tokens of a reply."""
_ADAM, _GIB = 16, 2**30
"""Bytes of a trained weight: itself, its gradient and two moments in float32."""


def _chat(*contents: str) -> list[Message]:
    # User and assistant take turns.
    roles = ("user", "assistant")
    return [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(contents)]


class ExaminedModel:
    """A model under examination; its parts are made when a check first asks for them."""

    def __init__(self, folder: str, parts: tuple[object, object] | None = None) -> None:
        self.folder = folder
        self._parts = parts

    @cached_property
    def parts(self) -> tuple[Any, Any]:
        """The model in float32 and its tokenizer."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return self._parts or load_model(self.folder, "float32", device)

    @property
    def model(self) -> Any:
        """The model."""
        return self.parts[0]

    @cached_property
    def dtype(self) -> str:
        """Number format of sampling by default."""
        return dtype_for("auto", self.folder, self.model.device.type)

    @cached_property
    def chat(self) -> ChatTokenizer:
        """The tokenizer with its chat template."""
        return ChatTokenizer(self.parts[1])

    @cached_property
    def ends(self) -> frozenset[int]:
        """Ids that end a reply."""
        return stop_tokens(*self.parts)

    def written(self, chat: list[Message], opened: bool = False) -> str:
        """A chat as the template writes it, with the reply's opening if `opened`."""
        return render(self.chat.tokenizer, [(chat, {})], opened=opened)[0]

    @cached_property
    def replies(self) -> list[Completion]:
        """Sampled replies: to a short prompt, to a longer one, and across every border."""
        check_decoding(self.model)
        prompt = self.chat.measure(_chat("1+1")).ids
        most = (context_of(self.model.config) or 2**62) - _REPLY
        sizes = [256, *(border - _REPLY // 2 for border in near_borders(self.model))]
        prompts = [prompt, *((prompt * size)[: max(1, min(size, most))] for size in sizes)]
        rows = [DecodeRequest(ids, key, _REPLY) for key, ids in enumerate(prompts)]
        outputs, _ = decode(self.model, rows, Sampling(), frozenset(), lambda: False)
        return [
            Completion("", row.prompt, tuple(output.tokens), tuple(output.logps), "length")
            for row, output in zip(rows, outputs, strict=True)
        ]


class ModelCheck(NamedTuple):
    """A line of the report."""

    name: str
    examine: Callable[[ExaminedModel], str]
    """Returns what was found; raises `FlowzooError` for a fault."""
    remedy: str
    at_start: bool = False
    """True if training asks it, too: it takes no forward pass, and nothing else there asks it."""


class CheckResult(NamedTuple):
    """Result of a check."""

    name: str
    ok: bool
    detail: str
    remedy: str


def _weights(examined: ExaminedModel) -> str:
    model = examined.model
    millions = model.num_parameters() / 1e6
    return f"{type(model).__name__}, {millions:.1f} million weights, sampled in {examined.dtype}"


def _identity(examined: ExaminedModel) -> str:
    digests = identify(examined.folder).digests
    return ", ".join(f"{name} {digest[:8]}" for name, digest in digests.items())


def _template(examined: ExaminedModel) -> str:
    prompt = examined.written(_chat("TEXT"), opened=True)
    return f"{examined.chat.template_id}: {prompt!r:.{_SHOWN}}"


def _vocabulary(examined: ExaminedModel) -> str:
    rows = examined.model.get_input_embeddings().weight.shape[0]
    prompt = examined.chat.measure(_chat("Is 7 + 5 = 12? Größe ∑ 漢字.")).ids
    highest = max(*prompt, *examined.ends)
    if highest >= rows:
        raise UsageError(f"the tokenizer has id {highest}, and the model has {rows} embeddings")
    return f"{len(examined.chat.tokenizer)} tokens, {rows} embeddings"


def _ends(examined: ExaminedModel) -> str:
    names = examined.chat.tokenizer.convert_ids_to_tokens(sorted(examined.ends))
    end = examined.chat.end_of_turn(examined.ends)
    turn = examined.chat.tokenizer.convert_ids_to_tokens(end)
    return f"{', '.join(names)} end a reply; the template writes {turn}"


def _thoughts(examined: ExaminedModel) -> str:
    if not thinks_unasked(examined.chat.tokenizer):
        return "none unless they are switched on"
    return "written unasked: prompts and replies need room for them"


def _tools(examined: ExaminedModel) -> str:
    try:
        return f"called in the notation of {examined.chat.family}"
    except UsageError as error:
        return f"none: {str(error).partition(';')[0].partition(':')[0]}"


def _history(examined: ExaminedModel) -> str:
    text = examined.written(_chat("A", "<think>\nTHOUGHT\n</think>\n\nREPLY", "B"), opened=True)
    if "REPLY" not in text:
        raise UsageError("the chat template leaves out an earlier reply")
    return "earlier thoughts are kept" if "THOUGHT" in text else "earlier thoughts are left out"


def _rows(examined: ExaminedModel) -> str:
    chat, text = examined.chat, "The answer is 12."
    row = chat.row(_chat("A"), (), text, examined.ends)
    if row is None and chat.thoughts.opened:
        return "its replies begin with a thought: text without one is not learned from"
    whole = examined.written(_chat("A", text))
    if row is None:
        raise UsageError(f"a reply does not follow the prompt in what the template writes: {whole}")
    end = chat.end_of_turn(examined.ends)
    taught = chat.tokenizer.decode([*row.prompt, *row.reply, end])
    if not whole.startswith(taught):
        raise UsageError(f"a row reads {taught!r} where the template writes {whole!r}")
    return "prompt, reply and end are what the template writes"


def _borders(examined: ExaminedModel) -> str:
    context = context_of(examined.model.config)
    borders = borders_of(examined.model.config)
    windows = f"; other computation from {', '.join(map(str, borders))}" if borders else ""
    return f"{context or 'any number of'} tokens{windows}"


def _batches(examined: ExaminedModel) -> str:
    check_decoding(examined.model)
    check_decoding(examined.model, share_prefixes=examined.dtype != "float32")
    borders, near = borders_of(examined.model.config), near_borders(examined.model)
    where = f" at {', '.join(map(str, near))} tokens" if near else ""
    far = ", ".join(map(str, borders[len(near) :]))
    return f"rows are alone what they are in batches{where}" + (far and f"; not asked at {far}")


def _learner(examined: ExaminedModel) -> str:
    replies = examined.replies
    learner = Learner(examined.model, LearnerConfig(layout="auto"))
    pairs = zip(replies, learner.plain_logps(replies), strict=True)
    gaps = [torch.tensor(row.logps) - torch.tensor(logps) for row, logps in pairs]
    gap = float(torch.cat(gaps).abs().max())
    if not gap <= CLOSE:
        raise UsageError(f"log-probs of the sampler and the learner differ by {gap:.2g}")
    longest = max(len(row.prompt_ids) + len(row.output_ids) for row in replies)
    return f"log-probs differ by {gap:.0e}, rows of up to {longest} tokens are {learner.layout}"


@torch.no_grad()
def _adapter(examined: ExaminedModel) -> str:
    model = examined.model
    ids = torch.tensor([examined.replies[0].prompt_ids], device=model.device)
    adapter = LoraBase(model, examined.folder, LoraSettings(rank=2)).add("doctor", 0)
    with adapter.active():
        before = model(input_ids=ids).logits[0].log_softmax(-1)
        for parameter in adapter.parameters():
            parameter += torch.full_like(parameter, 0.01)
        adapted = model(input_ids=ids).logits[0].log_softmax(-1)
    with tempfile.TemporaryDirectory() as folder:
        adapter.save(Path(folder))
        merged = merge_adapter(Path(folder), examined.folder).to(model.device)
    gap = float((merged(input_ids=ids).logits[0].log_softmax(-1) - adapted).abs().max())
    moved = float((adapted - before).abs().max())
    if not (gap <= CLOSE < moved):
        raise UsageError(f"log-probs differ by {gap:.2g} after merging, and {moved:.2g} before")
    return f"log-probs of the merged model differ by {gap:.0e}"


def _memory(examined: ExaminedModel) -> str:
    weights = examined.model.num_parameters()
    if examined.model.device.type == "cpu":
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        room = torch.cuda.mem_get_info(examined.model.device)[1]
    needs = f"{weights * _ADAM / _GIB:.1f} GiB, with LoRA {weights * 4 / _GIB:.1f} GiB"
    detail = f"training in float32 takes {needs}, and rows beside it; {room / _GIB:.1f} GiB here"
    if weights * 4 > room:
        raise UsageError(detail)
    return detail


_OTHER = "take another model, or another version of it"
CHECKS = (
    ModelCheck("weights", _weights, "put configuration, tokenizer and weights of one model there"),
    ModelCheck("identity", _identity, "make its files readable"),
    ModelCheck("template", _template, "take an instruct model, or add a chat_template.jinja"),
    ModelCheck("vocabulary", _vocabulary, "take tokenizer and weights from one place", True),
    ModelCheck("ends", _ends, "name its end of turn in its generation config", True),
    ModelCheck("thoughts", _thoughts, _OTHER),
    ModelCheck("tools", _tools, _OTHER),
    ModelCheck("history", _history, "use it for workflows of one turn", True),
    ModelCheck("rows", _rows, "train it with rewards, and not with `flowzoo sft`", True),
    ModelCheck("context", _borders, _OTHER),
    ModelCheck("batches", _batches, "use `--engine vllm`"),
    ModelCheck("sampler and learner", _learner, "use `--layout padded`"),
    ModelCheck("merged adapter", _adapter, "train all weights, without --lora-rank"),
    ModelCheck("memory", _memory, "take a smaller model, or a larger machine"),
)  # fmt: skip
"""The lines of the report in order; without the first there are no others."""


def examine_model(examined: ExaminedModel, *, at_start: bool = False) -> Iterator[CheckResult]:
    """Results of all checks, or of the checks at the start of training."""
    for check in CHECKS:
        if at_start and not check.at_start:
            continue
        try:
            yield CheckResult(check.name, True, check.examine(examined), "")
        except FlowzooError as error:
            yield CheckResult(check.name, False, " ".join(str(error).split()), check.remedy)
            if check is CHECKS[0]:
                return


def warn_of_faults(policies: Mapping[str, LoadedPolicy]) -> None:
    """Log the faults that checks without forward passes find in the models of a run."""
    models = {
        loaded.model.path: (loaded.weights.model, loaded.tokenizer) for loaded in policies.values()
    }
    for folder, parts in models.items():
        for result in examine_model(ExaminedModel(folder, parts), at_start=True):
            if not result.ok:
                _log.warning("%s: %s: %s; %s", folder, result.name, result.detail, result.remedy)
