"""What a warm start is taught and measured on: which transcripts, and whether rows are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.baselines.sft.choose import (
    TRAINABLE,
    SftCounts,
    check_problems,
    choose,
    hold_back,
)
from flowzoo.baselines.sft.sources import ScriptedPlay, Transcript, all_sources, is_scripted
from flowzoo.envs import Call, Problem, Workflow
from flowzoo.errors import UsageError
from flowzoo.seeding import key_digest


def read_transcripts(
    config: SftConfig, workflow: Workflow, problems: Sequence[Problem], counts: SftCounts
) -> tuple[list[Transcript], list[Transcript]]:
    """Those to train on, which are counted, and those to measure.

    Args:
        config: names the sources.
        workflow: whose transcripts they are.
        problems: the held-out ones, which nothing is trained on.
        counts: what was read and left out is added to it.

    Raises:
        UsageError: transcripts of held-out problems, or nothing to play for `validation`.
    """
    scripted = ScriptedPlay("train", config.n, config.samples, config.seed)
    found = all_sources(config.source, workflow, scripted)
    check_problems(found, TRAINABLE, problems)
    kept = choose(found, config, problems, counts)
    words, back = config.validation, list[Transcript]()
    if words and not problems and any(map(is_scripted, words)):
        raise UsageError(
            "`validation` scripted plays `eval_problems` problems, and these are 0: give some"
        )
    if not words:
        words = tuple(filter(is_scripted, config.source)) if problems else ()
        others = [one for one in kept if not is_scripted(one.source)]
        back = hold_back(others, config.held_back, config.seed)[1]
        gone = {id(one) for one in back}
        kept = [one for one in kept if id(one) not in gone]
    scripted = ScriptedPlay(config.eval_split, len(problems), 1, config.seed)
    shown = all_sources(words, workflow, scripted)
    check_problems(shown, (config.eval_split,))
    return kept, [*choose(shown, config, (), SftCounts()), *back]


def check_rows(rows: Mapping[str, Sequence[Call]], counts: SftCounts, config: SftConfig) -> None:
    """Refuse policies without a reply, and a stop by losses that nothing is held out for.

    Raises:
        UsageError: as said, with what was left out and why.
    """
    empty = [name for name, mine in rows.items() if not mine]
    if empty:
        told = counts.left_out + counts.replies_left_out
        why = ", ".join(f"{count} {reason}" for reason, count in told.items() if count)
        raise UsageError(
            f"no reply is left to teach policy {', '.join(empty)}: of "
            f"{counts.episodes} episodes {counts.kept} were kept; left out: "
            f"{why or 'none'}. Lower `threshold`, set `replies` to all, or name more sources"
        )
    if config.stop_patience and not counts.held_out:
        raise UsageError(
            "`stop_patience` compares held-out losses and there is no held-out reply: give "
            "`eval_problems`, `held_back` or `validation`"
        )


def rows_digest(rows: Mapping[str, Sequence[Call]]) -> str:
    """What names the rows that are trained on: 32 hexadecimal digits."""
    listed = [row for name in sorted(rows) for row in rows[name]]
    parts = (f"{row.policy} {row.prompt_ids} {row.output_ids}" for row in listed)
    return key_digest(*parts).hex()
