"""Rollouts of code tasks: programs run in batches over episodes, off the event loop."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from flowzoo.agents import Completion, PolicyMap, Request
from flowzoo.agents.policy import Batching
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import EpisodeRecord, make_workflow
from flowzoo.envs.script import GradeResult, Run, RunResult
from flowzoo.envs.tasks.code.task import CodeTask
from flowzoo.envs.tasks.task import Problem


@dataclass(frozen=True)
class Counting(CodeTask):
    """Notes the sizes of the batches it is given."""

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        SIZES["grades"].append(len(answers))
        return super().grade_batch(problems, answers)

    def run_batch(self, runs: Sequence[Run]) -> list[RunResult]:
        SIZES["runs"].append(len(runs))
        return super().run_batch(runs)


SIZES: dict[str, list[int]] = {"grades": [], "runs": []}


def test_programs_of_many_episodes_share_a_batch():
    SIZES.update(grades=[], runs=[])
    workflow = make_workflow("voting_v0", Counting(), aggregate="majority")
    policy = ScriptedPolicy(workflow, 0.7)
    jobs = [EpisodeJob(workflow.task.problem(index)) for index in range(20)]
    records = Rollout(workflow, PolicyMap({"generator": policy})).run(jobs)
    assert SIZES["grades"] == [60]
    # Equal programs of a problem are run once.
    assert len(SIZES["runs"]) == 1
    assert 20 <= SIZES["runs"][0] <= 60
    assert 0.4 < sum(record.score for record in records) / 20 <= 1


GRADES, OTHERS_ARE_DONE = threading.Event(), threading.Event()


@dataclass(frozen=True)
class Held(CodeTask):
    """Grades the first problem once the episodes of the others are over."""

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        if any(problem.index == 0 for problem in problems):
            GRADES.set()
            assert OTHERS_ARE_DONE.wait(60), "the others were held up"
        return super().grade_batch(problems, answers)


class Loops:
    """Writes a program that never ends for one problem, and the right one for the others.

    The others get theirs when the first is being graded, for which the loop has to be free.
    """

    name = "loops"
    batching: Batching = "stream"

    def __init__(self, oracle: ScriptedPolicy, slow: str) -> None:
        self.oracle, self.slow = oracle, slow

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        if requests[0].problem == self.slow:
            text = "```python\nwhile True:\n    pass\n```"
            return [Completion(text, finish="scripted")]
        while not GRADES.is_set():
            await asyncio.sleep(0.005)
        return await self.oracle.generate(requests)

    async def close(self) -> None:
        pass


async def test_a_program_that_never_ends_holds_up_neither_the_loop_nor_the_others():
    GRADES.clear()
    OTHERS_ARE_DONE.clear()
    workflow = make_workflow("single_v0", Held(cpu_s=0.5))
    problems = [workflow.task.problem(index) for index in range(3)]
    done: list[str] = []

    def note(record: EpisodeRecord) -> None:
        done.append(record.problem)
        if len(done) == 2:
            OTHERS_ARE_DONE.set()

    policy = Loops(ScriptedPolicy(workflow, 1.0), problems[0].id)
    rollout = Rollout(
        workflow, PolicyMap({"generator": policy}), deterministic=False, on_episode=note
    )
    records = await rollout.arun([EpisodeJob(problem) for problem in problems])
    assert [record.score for record in records] == [0.0, 1.0, 1.0]
    assert records[0].facts["status"] == "TLE"
    assert done[-1] == problems[0].id
