"""Default prompts of a model: the texts that it can follow."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents.engines import plugin_engines
from flowzoo.agents.model_files import is_gguf
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError
from flowzoo.files import read_json

_log = logging.getLogger(__name__)
EXAMPLES = 4
"""Worked examples for a model that does not know the workflow."""
LEAST_CONTEXT = 2048
"""Tokens; a model with fewer has no room for examples."""
_LEVELS = 6
"""Number of parent folders that are searched for a model's run."""
_WITHOUT_MODEL = ("pocket", "scripted", "human")


class PromptStyle(NamedTuple):
    """Settings `texts` and `examples` of a workflow."""

    texts: str
    examples: int


SHORT, FULL = PromptStyle("short", 0), PromptStyle("full", EXAMPLES)


def usual_style(sources: Iterable[str]) -> PromptStyle:
    """The prompts for models (or policies) that play together; the first model decides."""
    # Pocket models were made on the short texts and read no others, so all that play beside one get
    # them. Other models get full texts with worked examples, or the texts of the run that trained
    # them.
    styles = [_style(source) for source in sources]
    return SHORT if not styles or SHORT in styles else styles[0]


def make_styled(
    make: Callable[..., Workflow], settings: Mapping[str, Any], sources: Iterable[str]
) -> tuple[Workflow, PromptStyle]:
    """`make(**settings)`, with the usual prompts for `sources` where the settings name none.

    A task that has no worked examples goes without, which is logged; if the settings ask for them,
    that is an error. Also returns the style in use.
    """
    given = dict(settings)
    if "task" in given:
        raise UsageError(f"the task is no option: name it with --task, got task={given['task']}.")
    # Published rules come with the published kind of prompt.
    style = usual_style(sources) if given.get("preset", "strict") == "strict" else SHORT
    given.setdefault("texts", style.texts)
    if style.examples and "examples" not in given:
        try:
            workflow = make(**given, examples=style.examples)
        except UsageError as error:
            without = make(**given)  # what is wrong apart from examples is raised here
            _log.warning("roles are shown no worked examples: %s", error)
            return without, PromptStyle(given["texts"], 0)
        return workflow, PromptStyle(given["texts"], style.examples)
    return make(**given), PromptStyle(given["texts"], given.get("examples", 0))


def _style(source: str) -> PromptStyle:
    kind, _, rest = source.partition(":")
    if kind in _WITHOUT_MODEL:
        return SHORT
    by_path = kind in ("hf", "vllm", *plugin_engines())
    path = Path(rest.partition("@http")[0] if by_path else source)
    if kind == "openai" or is_gguf(path) or not path.is_dir():
        return FULL
    settings = _settings_of_run(path)
    if settings is not None:
        return PromptStyle(settings.get("prompts") or "short", settings.get("examples") or 0)
    return SHORT if _context(path) < LEAST_CONTEXT else FULL


def _settings_of_run(folder: Path) -> dict[str, Any] | None:
    # Of an export, or within a run.
    above = [folder / "flowzoo.json"]
    above += [parent / "run.json" for parent in list(folder.resolve().parents)[:_LEVELS]]
    for file in above:
        with contextlib.suppress(OSError, ValueError):
            record = read_json(file)
            settings = record.get("settings", record.get("config"))
            if isinstance(settings, dict):
                return settings
    return None


def _context(folder: Path) -> float:
    try:
        config = read_json(folder / "config.json")
        return float(config.get("text_config", config)["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return float("inf")
