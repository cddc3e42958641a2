"""The sans-I/O core: rules 1-4, 6 and 9 of the design's core document."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flowzoo.envs import Ask, Classes, Episode, Grade, Graded, Outcome, Problem, Truth, Workflow
from flowzoo.envs.episode import WorkflowError
from flowzoo.envs.recording import record, state_hash
from flowzoo.envs.registry import WORKFLOWS, make_workflow
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.testing import advance, play_out
from flowzoo.errors import Diverged, UsageError

GRADED: list[str | None] = []
"""Every answer that `CountingMath` was asked to grade."""


@dataclass(frozen=True)
class CountingMath(MathTask):
    """The math task, counting what it grades."""

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[Graded]:
        GRADED.extend(answers)
        return super().grade_batch(problems, answers)


def toy(play: Callable[..., Any], **attributes: Any) -> Workflow:
    """A workflow of three writers and a judge whose script is `play(self, problem)`."""
    names = {
        "name": "toy_v0",
        "roles": {"writer": 3, "judge": 1},
        "play": play,
        "__module__": __name__,
        **attributes,
    }
    return dataclass(frozen=True)(type("Toy", (Workflow,), names))(task=CountingMath())


def start(play: Callable[..., Any]) -> Episode:
    workflow = toy(play)
    return Episode(workflow, workflow.task.problem(0))


def echo(self, problem):
    """Draft, grade, review."""
    draft = yield Ask("writer_0", "write")
    grade = yield Grade(draft.text, of=draft)
    review = yield Ask("judge_0", f"judge {draft.text}")
    return Outcome(review.text, grade.score)


# -- rule 1: the log has replies and effect results, and a replay runs no effect again ------------


def test_replays_do_not_run_effects_again():
    """Rule 1."""
    episode = start(echo)
    episode.reply("writer_0", "seven")
    GRADED.clear()
    advance(episode)
    assert GRADED == ["seven"]
    twin = episode.fork()
    assert [turn.agent for turn in twin.waiting] == ["judge_0"]
    twin.reply("judge_0", "ok")
    advance(twin)
    assert twin.done
    assert GRADED == ["seven"]


def test_the_log_holds_replies_and_results_in_order():
    """Rule 1."""
    episode = start(echo)
    episode.reply("writer_0", "seven")
    advance(episode)
    episode.reply("judge_0", "fine")
    assert [type(entry) for entry in episode.log] == [str, Graded, str]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_pickles_do_not_run_effects_again(name):
    """Rule 1, for the shipped workflows, in their final state."""
    workflow = make_workflow(name, CountingMath())
    episode = play_out(Episode(workflow, workflow.task.problem(1), "e"), "x")
    assert GRADED
    GRADED.clear()
    assert record(pickle.loads(pickle.dumps(episode))) == record(episode)
    assert not GRADED


# -- rule 2: a replay that differs raises Diverged ------------------------------------------------


class Changes:
    """A value that differs each time it is read: a clock, a global counter."""

    def __init__(self) -> None:
        self.count = itertools.count()

    def __str__(self) -> str:
        return str(next(self.count))

    def __bool__(self) -> bool:
        return next(self.count) == 0


def impure_prompt(self, problem):
    yield Ask("writer_0", f"the time is {self.world}")
    return Outcome(score=0.0)


def impure_agent(self, problem):
    yield Ask("writer_0" if self.world else "writer_1", "write")
    return Outcome(score=0.0)


def impure_phase(self, problem):
    if self.world:
        yield Ask("writer_0", "write")
        yield Ask("writer_1", "write")
    else:
        yield [Ask("writer_0", "write"), Ask("writer_1", "write")]
    return Outcome(score=0.0)


def impure_effect(self, problem):
    yield Grade(f"answer {self.world}")
    yield Ask("writer_0", "write")
    return Outcome(score=0.0)


def impure_effect_kind(self, problem):
    yield Grade("7") if self.world else Classes(("7",))
    yield Ask("writer_0", "write")
    return Outcome(score=0.0)


def impure_end(self, problem):
    yield Ask("writer_0", "write")
    if self.world:
        yield Ask("writer_1", "write")
    return Outcome(score=0.0)


def impure_work(self, problem):
    yield Ask("writer_0", "write")
    if not self.world:
        yield Grade("7")
    yield Ask("writer_1", "write")
    return Outcome(score=0.0)


IMPURE = [
    impure_prompt,
    impure_agent,
    impure_phase,
    impure_effect,
    impure_effect_kind,
    impure_end,
    impure_work,
]


def impure_episode(play: Callable[..., Any]) -> Episode:
    """An episode of `play` one step before it tells the world that was replayed."""
    workflow = toy(play, world=Changes())
    episode = Episode(workflow, workflow.task.problem(0))
    advance(episode)
    if play in (impure_phase, impure_end, impure_work):
        episode.reply("writer_0", "text")
        advance(episode)
    return episode


@pytest.mark.parametrize("play", IMPURE)
def test_an_impure_script_is_caught_when_forked(play):
    """Rule 2: prompts, agents, phases, effects and the end must come again."""
    with pytest.raises(Diverged, match="toy_v0: .* must not use clocks"):
        impure_episode(play).fork()


@pytest.mark.parametrize("play", IMPURE)
def test_an_impure_script_is_caught_when_unpickled(play):
    """Rule 2, through digests."""
    state = impure_episode(play).__getstate__()
    twin = Episode.__new__(Episode)
    with pytest.raises(Diverged, match="toy_v0: .* must not use clocks"):
        twin.__setstate__(state)


def test_a_pure_script_may_change_its_message_dicts_afterwards():
    """Rule 2: what was asked is kept as it was then, so no false alarm on replay."""

    def play(self, problem):
        message = {"role": "user", "content": "first"}
        yield Ask("writer_0", [message])
        message["content"] = "second"
        yield Ask("writer_1", [message])
        return Outcome(score=0.0)

    episode = start(play)
    episode.reply("writer_0", "x")
    assert [turn.messages[0]["content"] for turn in episode.fork().turns] == ["first", "second"]


MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from flowzoo.envs import Ask, Grade, Outcome, Workflow

@dataclass(frozen=True)
class Salted(Workflow):
    name: ClassVar = "salted_v0"
    roles: ClassVar = {"writer": 2}

    def play(self, problem):
        first = yield Ask("writer_0", "write \\ud800 π")
        words = set(first.text.split())
        yield Ask("writer_1", " ".join(words if self.credit == "team" else sorted(words)))
        return Outcome(score=1.0)
"""
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa"


def in_process(folder: Path, salt: str, code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": str(folder)}
    script = "import pickle, sys\nfrom flowzoo.envs.recording import state_hash\n" + code
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).resolve().parents[2],
    )


def test_salted_hashes_diverge_in_another_process_and_sorted_words_do_not(tmp_path):
    """Rule 2: digests do not depend on PYTHONHASHSEED, scripts that do are caught."""
    (tmp_path / "salted_flow.py").write_text(MODULE)
    make = textwrap.dedent(
        f"""
        from salted_flow import Salted
        from flowzoo.envs import Episode
        from flowzoo.envs.tasks import make_task
        for credit in ("team", "local"):
            flow = Salted(make_task("math"), credit=credit)
            episode = Episode(flow, flow.task.problem(0))
            episode.reply("writer_0", {WORDS!r})
            open(f"{tmp_path}/{{credit}}", "wb").write(pickle.dumps(episode))
            if credit == "local":
                print(state_hash(episode))
        """
    )
    made = in_process(tmp_path, "1", make)
    assert made.returncode == 0, made.stderr
    load = "print(state_hash(pickle.load(open(sys.argv[1], 'rb'))))"
    read = [
        in_process(tmp_path, "2", load.replace("sys.argv[1]", repr(f"{tmp_path}/{credit}")))
        for credit in ("team", "local")
    ]
    assert read[0].returncode == 1
    assert "Diverged" in read[0].stderr
    assert read[1].stdout == made.stdout


# -- rule 3: randomness is a function of the problem ----------------------------------------------


def test_the_problems_rng_starts_afresh_at_every_replay():
    """Rule 3."""

    def play(self, problem):
        rng = problem.rng()
        yield Ask("writer_0", str(rng.random()))
        yield Ask("writer_1", str(rng.random()))
        return Outcome(score=0.0)

    episode = start(play)
    episode.reply("writer_0", "x")
    prompts = [turn.messages for turn in episode.fork().turns]
    assert prompts == [turn.messages for turn in episode.turns]
    other = Episode(episode.workflow, episode.workflow.task.problem(1))
    assert other.turns[0].messages != prompts[0]


# -- rule 4: every yield is checked ---------------------------------------------------------------


def test_effects_may_come_before_the_first_ask_and_in_parallel():
    """Rule 4."""

    def play(self, problem):
        first = yield Grade(problem.gold)
        second, classes = yield [Grade("no"), Classes(("1", None, "1.0", "2"))]
        yield Ask("writer_0", f"{first.score} {second.score} {classes}")
        return Outcome(score=1.0)

    episode = start(play)
    assert (episode.waiting, len(episode.effects)) == ((), 1)
    advance(episode)
    assert episode.waiting[0].messages[0]["content"] == "1.0 0.0 (0, -1, 0, 1)"


def with_yield(item: Any) -> Callable[..., Any]:
    def play(self, problem):
        yield item
        return Outcome(score=0.0)

    return play


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ([], "got an empty list"),
        ([Ask("writer_0", "a"), Grade("1")], "got Ask, Grade"),
        ([Ask("writer_0", "a"), Ask("writer_0", "b")], "asked only once in a phase"),
        (Ask("wirter_0", "a"), "unknown agent 'wirter_0'. Did you mean 'writer_0'"),
        ("write", "got str"),
        (None, "got NoneType"),
        ((Ask("writer_0", "a"), Ask("writer_1", "b")), "got tuple"),
        ([Truth(None, 1.0)], "got Truth"),  # type: ignore[arg-type]
        (Ask("writer_0", None), "prompt of writer_0 must be a str or a list"),  # type: ignore[arg-type]
        (Ask("writer_0", [{"role": "user"}]), "prompt of writer_0 must be"),
        (Ask("writer_0", ["hello"]), "prompt of writer_0 must be"),  # type: ignore[list-item]
        (Grade(14), "an answer must be a str or None, got int"),  # type: ignore[arg-type]
        (Grade("14", of="reply"), "takes a Reply, got str"),  # type: ignore[arg-type]
        (Classes(["1"]), "takes a tuple of answers, got list"),  # type: ignore[arg-type]
        (Classes((1,)), "an answer must be a str or None, got int"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_yield_names_workflow_line_and_problem(item, message):
    """Rule 4."""
    with pytest.raises(WorkflowError) as caught:
        start(with_yield(item))
    line = with_yield(item).__code__.co_firstlineno + 1
    text = str(caught.value)
    assert message in text
    assert text.startswith(f"toy_v0 (test_episode.py, line {line}), problem {MathTask().problem(0).id}: ")


def test_a_wrong_yield_of_a_helper_names_the_helpers_line():
    """Rule 4."""

    def helper():
        yield "nothing"

    def play(self, problem):
        yield from helper()
        return Outcome(score=0.0)

    with pytest.raises(WorkflowError, match=f"line {helper.__code__.co_firstlineno + 1}\\)"):
        start(play)


def test_play_must_return_an_outcome():
    """Rule 4."""

    def play(self, problem):
        yield Ask("writer_0", "a")

    episode = start(play)
    with pytest.raises(WorkflowError, match=r"must return an Outcome, got NoneType"):
        episode.reply("writer_0", "x")


# -- rule 6: an exception in a script is a WorkflowError with problem and transcript --------------


def failing(error: Exception) -> Callable[..., Any]:
    def play(self, problem):
        reply = yield Ask("writer_0", "write")
        if reply.text != "fine":
            raise error
        return Outcome(score=1.0)

    return play


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), UsageError("of a helper")])
def test_an_exception_in_a_script_carries_problem_transcript_and_line(error):
    """Rule 6, for any exception, the package's own included."""
    play = failing(error)
    episode = start(play)
    with pytest.raises(WorkflowError, match=type(error).__name__) as caught:
        episode.reply("writer_0", "bad")
    assert caught.value.__cause__ is error
    assert caught.value.problem == MathTask().problem(0).id
    assert [(row["agent"], row["reply"]) for row in caught.value.transcript] == [
        ("writer_0", "bad")
    ]
    assert f"test_episode.py, line {play.__code__.co_firstlineno + 3})" in str(caught.value)


def test_a_raising_parser_is_a_workflow_error():
    """Rule 6."""

    def play(self, problem):
        yield Ask("writer_0", "write", parse=int)
        return Outcome(score=1.0)

    with pytest.raises(WorkflowError, match=r"the parser of writer_0 raised ValueError"):
        start(play).reply("writer_0", "seven")


def test_workflow_errors_survive_pickling():
    error = WorkflowError("broken", "math/train/0/0", [{"agent": "writer_0"}])
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.problem, twin.transcript) == (
        str(error),
        error.problem,
        error.transcript,
    )


# -- rule 9: phases -------------------------------------------------------------------------------


def phase(self, problem):
    drafts = yield [Ask(f"writer_{slot}", f"draft {slot}") for slot in range(3)]
    yield Ask("judge_0", " ".join(draft.text for draft in drafts))
    return Outcome(score=1.0)


def test_all_prompts_of_a_phase_are_open_at_its_start():
    """Rule 9."""
    assert [turn.messages[0]["content"] for turn in start(phase).waiting] == [
        "draft 0",
        "draft 1",
        "draft 2",
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_replies_out_of_order_are_committed_in_slot_order(order):
    """Rule 9."""
    episode = start(phase)
    for slot in order:
        assert len(episode.log) == 0
        episode.reply(f"writer_{slot}", f"text{slot}")
    assert episode.log == ["text0", "text1", "text2"]
    assert episode.waiting[0].messages[0]["content"] == "text0 text1 text2"


def test_forks_keep_the_buffered_replies_of_an_open_phase():
    """Rule 9."""
    episode = start(phase)
    episode.reply("writer_2", "late")
    twin = episode.fork("other")
    assert (twin.key, episode.key) == ("other", "")
    assert [turn.agent for turn in twin.waiting] == ["writer_0", "writer_1"]
    for name in ("writer_0", "writer_1"):
        twin.reply(name, name)
    assert twin.log == ["writer_0", "writer_1", "late"]
    assert episode.log == []


def make_open_phase() -> Episode:
    workflow = make_workflow("voting_v0")
    episode = Episode(workflow, workflow.task.problem(0))
    episode.reply("generator_1", "\\boxed{2}")
    return episode


def test_a_pickled_open_phase_goes_on_where_it_was():
    """Rule 9."""
    twin = pickle.loads(pickle.dumps(make_open_phase()))
    assert [turn.agent for turn in twin.waiting] == ["generator_0", "generator_2"]
    twin.reply("generator_0", "a")
    twin.reply("generator_2", "c")
    assert twin.log == ["a", "\\boxed{2}", "c"]


def test_replying_twice_or_for_a_closed_turn_is_an_error():
    episode = start(phase)
    episode.reply("writer_0", "x")
    with pytest.raises(UsageError, match=r"unknown agent with an open turn 'writer_0'.*writer_1"):
        episode.reply("writer_0", "y")
    with pytest.raises(UsageError, match=r"must be a str, got NoneType"):
        episode.reply("writer_1", None)  # type: ignore[arg-type]


def test_resolving_is_checked():
    episode = start(echo)
    with pytest.raises(UsageError, match="no effect is pending"):
        episode.resolve([])
    episode.reply("writer_0", "x")
    with pytest.raises(UsageError, match="expected 1 effect results, got 2"):
        episode.resolve([Graded(1.0, "a"), Graded(1.0, "b")])
    with pytest.raises(UsageError, match=r"tuple is no result of Grade"):
        episode.resolve([(0, 1)])
    episode.resolve([Graded(1.0, "pinned")])
    assert episode.truths == {0: 1.0}


def test_reading_results_before_the_end_is_an_error():
    with pytest.raises(UsageError, match="not finished"):
        record(start(echo))


# -- state hashes ---------------------------------------------------------------------------------


def own_rule(parts):
    return parts["team"]


def test_state_hashes_tell_settings_problems_and_replies_apart():
    def hashed(level: int = 1, text: str = "x", **options: Any) -> str:
        workflow = make_workflow("single_v0", level=level, **options)
        episode = Episode(workflow, workflow.task.problem(0))
        episode.reply("generator_0", text)
        return state_hash(episode)

    same = hashed()
    assert same == hashed()
    others = [hashed(level=3), hashed(text="y"), hashed(preset="paper"), hashed(credit=own_rule)]
    assert len({same, *others}) == 5
    # By name: the repr of a function has an address, which differs between processes.
    workflow = make_workflow("single_v0", credit=own_rule)
    assert workflow.spec["credit"].endswith("test_episode.own_rule")


def test_calls_of_one_phase_share_a_state_hash():
    workflow = make_workflow("voting_v0")
    finished = record(play_out(Episode(workflow, workflow.task.problem(0), "e"), 1))
    hashes = [call.state_hash for call in finished.calls]
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]


def test_max_cycles_cuts_a_phase_that_does_not_fit():
    workflow = toy(phase)
    episode = Episode(workflow, workflow.task.problem(0), max_cycles=3)
    for slot in range(3):
        episode.reply(f"writer_{slot}", "x")
    assert (episode.done, episode.truncated) == (True, True)
    assert record(episode).score == 0.0
    assert len(record(episode.fork()).calls) == 3


class Marked(Workflow):
    """Only to show that a workflow without a script says so."""

    name: ClassVar[str] = "marked_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}


def test_a_workflow_without_a_script_says_so():
    workflow = Marked(task=MathTask())
    problem = replace(workflow.task.problem(0))
    with pytest.raises((WorkflowError, NotImplementedError), match=r"must define play\(\)"):
        Episode(workflow, problem)
