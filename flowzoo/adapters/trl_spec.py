"""One agent, or one role, of a workflow in TRL's `GRPOTrainer`, as its `environment_factory`.

    spec = TRLSpec("voting", "aggregator_0", others="vllm:MODEL@http://localhost:8000/v1")
    trainer = GRPOTrainer(model, args=..., train_dataset=spec.train_dataset,
                          environment_factory=spec.environment_factory,
                          reward_funcs=spec.reward_funcs)

`turns="one"` is for an agent that is asked once an episode. With `turns="many"` the model answers
by calling the tool `reply`, which returns the next prompt. TRL appends to one conversation: of a
chat that goes on, the last message is passed on; other chats end the run (`SeatError`).
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal

from flowzoo.adapters.outside import Others, OutsidePlay, check_served, data_set, policies_of
from flowzoo.agents.policy import Completion
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob
from flowzoo.agents.vllm.loop_thread import LoopThread
from flowzoo.aliases import StateDict
from flowzoo.envs import EpisodeRecord, Message, make_workflow
from flowzoo.envs.api.solo import own_agents
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import get_problem
from flowzoo.errors import UsageError, check_choice
from flowzoo.reward.visible import strip_thinking

Turns = Literal["one", "many"]
OVER = "The episode is over."
_OPENINGS = 32
"""Episodes under way while the data set is made."""


def _visible(message: Message) -> tuple[str, str]:
    # Without thoughts and outer blanks, which later prompts may leave out.
    return message["role"], strip_thinking(message["content"]).strip()


class SeatError(BaseException):
    """An episode that cannot go on: the run ends with it."""

    # TRL hands every `Exception` of a tool to the model and goes on to train on it. This is none,
    # so that an error of the workflow or of a policy of `others` is never taken for an observation.


class WorkflowSeat:
    """An agent's seat as TRL drives it: `reset` with a row of the data set, then replies."""

    def __init__(self, spec: TRLSpec) -> None:
        self._spec = spec
        self._plays = {agent: spec.play(agent) for agent in spec.agents}
        self._play = self._plays[spec.agents[0]]
        self._conversation: list[Message] = []

    def reset(
        self, index: int, sample: int = 0, agent: str | None = None, **row: Any
    ) -> str | None:
        """Begin the episode of a row; returns what the agent is shown, None if it is not asked."""
        self._play.close()
        self._play = self._plays[agent or self._spec.agents[0]]
        self._conversation = []
        request = self._play.start(self._spec.job(index, sample))
        return None if request is None else self._new_text(request.messages)

    def _new_text(self, messages: Sequence[Message]) -> str:
        # What the chat leaves out stays in the conversation, which cannot be shortened.
        *earlier, last = messages
        history = iter([*map(_visible, self._conversation)])
        if last["role"] != "user" or not all(_visible(message) in history for message in earlier):
            shape = ", ".join(message["role"] for message in messages)
            raise UsageError(
                f"{self._play.agent} was shown a chat ({shape}) that is new before its last "
                "message: TRL's environments add one message of the user at a time. Train with "
                "`flowzoo train` or `TRLRolloutWorker`."
            )
        self._conversation.append(last)
        return last["content"]

    def _answer(self, text: str) -> str | None:
        request = self._play.answer(Completion(text))
        self._conversation.append({"role": "assistant", "content": text})
        return None if request is None else self._new_text(request.messages)

    def _finish(self, text: str | None) -> EpisodeRecord | None:
        # After a last reply (None: there is none); None: the agent was never asked.
        play = self._play
        if not self._conversation:
            return None
        if text is not None and play.request is not None:
            play.answer(Completion(text))
        if play.request is not None and self._spec.turns == "one":
            raise UsageError(f'{play.agent} is asked again in an episode: use turns="many".')
        while play.request is not None:
            play.answer(Completion(""))
        assert play.record is not None
        return play.record


class WorkflowToolSeat(WorkflowSeat):
    """The same where the model answers by a tool call."""

    def reply(self, text: str) -> str:
        """Give your reply to what you were asked, and read what you are asked next.

        Args:
            text: Your whole reply.

        Returns:
            What you are asked next, or that the episode is over.
        """
        if not isinstance(text, str):  # the model's mistake, which TRL tells it
            raise TypeError(f"`text` must be a string, got {type(text).__name__}.")
        if self._play.request is None:
            return OVER
        try:
            prompt = self._answer(text)
        except Exception as error:
            raise SeatError(f"{type(error).__name__}: {error}") from error
        return OVER if prompt is None else prompt


class TRLSpec:
    """Data set, environments and reward of one agent for `GRPOTrainer`; see the module."""

    def __init__(
        self,
        workflow: Any,
        role: str,
        *,
        others: Others = "scripted:1",
        turns: Turns = "one",
        task: Any = None,
        split: str = "train",
        problems: int = 256,
        samples: int = 1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """Describe the seat; nothing is loaded before it is needed.

        Args:
            workflow: name of a workflow, `module:Class`, a Workflow subclass or instance.
            role: the agent that TRL trains, or a role: then a row of the data set is for one of
                its agents.
            others: who plays the others, the agent's siblings in its role too; by default the
                workflow's scripted expert.
            turns: `one` if the agent is asked once an episode, else `many`.
            task: name of a task, or a Task; by default the workflow's own.
            split: of the problems.
            problems: number of distinct problems in the data set.
            samples: rows for each problem and agent, each with other replies of the others.
            seed: of the others.
            options: of the workflow and its task.

        Raises:
            UsageError: a name, a number or an option that there is not, a workflow with a judge,
                or one with tools for `role`.
        """
        check_choice("turns", turns, Turns)
        check_whole("problems", problems, 1)
        check_whole("samples", samples, 1)
        self.workflow = make_workflow(workflow, task, **options)
        self.agents = own_agents(self.workflow, role)
        check_served(self.workflow, {self.workflow.agents[agent][0] for agent in self.agents})
        self.turns, self.split, self.seed = turns, split, seed
        self._others, self._problems, self._samples = others, problems, samples

    def __getstate__(self) -> StateDict:
        # Without what was made so far, so that the factory reaches another process.
        cached = ("_loop", "_policies", "rows", "train_dataset")
        return {name: value for name, value in vars(self).items() if name not in cached}

    @cached_property
    def _loop(self) -> LoopThread:
        loop = LoopThread("flowzoo-trl")
        atexit.register(loop.close)  # a seat that is left in the middle of an episode still waits
        return loop

    @cached_property
    def _policies(self) -> dict[str, Any]:
        return policies_of(self.workflow, self._others, self.agents, self.seed)

    def play(self, agent: str) -> OutsidePlay:
        """The episodes of `agent`, the others' policies around it."""
        return OutsidePlay(self.workflow, agent, self._policies, self._loop, self.seed)

    def job(self, index: int, sample: int) -> EpisodeJob:
        """The episode of a row."""
        return EpisodeJob(get_problem(self.workflow.task, index, self.split), sample)

    def _is_asked(self, row: Mapping[str, Any], play: OutsidePlay) -> bool:
        is_asked = play.start(self.job(row["index"], row["sample"])) is not None
        play.close()
        return is_asked

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the data set."""
        # Every row's episode is played until the agent is asked. Rows in which it is not asked are
        # left out, with a warning.
        rows = [
            {
                "prompt": [{"role": "user", "content": ""}],
                "problem": problem.id,
                "index": problem.index,
                "sample": sample,
                "agent": agent,
            }
            for problem in distinct_problems(self.workflow.task, self.split, self._problems)
            for sample in range(self._samples)
            for agent in self.agents
        ]
        plays = [self.play(row["agent"]) for row in rows]  # here: threads would make policies twice
        with ThreadPoolExecutor(_OPENINGS) as threads:
            flags = [*threads.map(self._is_asked, rows, plays)]
        names = ", ".join(self.agents)
        if not any(flags):
            raise UsageError(f"{names}: asked in none of {len(rows)} episodes, so nothing trains.")
        if not all(flags):
            out = flags.count(False)
            warnings.warn(
                f"{out} of {len(rows)} rows are left out: {names} would not be asked in them.",
                stacklevel=3,
            )
        return [row for row, flag in zip(rows, flags, strict=True) if flag]

    @cached_property
    def train_dataset(self) -> Any:
        """`rows` as a `datasets.Dataset`; the environment completes the empty prompts."""
        return data_set(self.rows, "the data set of a TRLSpec")

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """Pays what the workflow pays the agent."""
        return [workflow_reward]

    def environment_factory(self) -> WorkflowSeat:
        """Make a seat; TRL keeps as many as it has episodes under way."""
        return WorkflowSeat(self) if self.turns == "one" else WorkflowToolSeat(self)


def workflow_reward(
    environments: Sequence[WorkflowSeat], completions: Sequence[Any], **columns: Any
) -> list[float | None]:
    """The pay of each seat for its episode, which is played to its end."""
    # None, which TRL leaves out of the group, where the agent was not asked although it was when
    # the data set was made: a policy of `others` does not repeat itself. Logs the mean score of the
    # episodes as `workflow_score`.
    rewards: list[float | None] = []
    scores: list[float] = []
    for seat, completion in zip(environments, completions, strict=True):
        record = seat._finish(last_reply(completion))
        rewards.append(None if record is None else record.returns[seat._play.agent])
        scores += [] if record is None else [record.score]
    log = columns.get("log_metric")
    if log is not None and scores:
        log("workflow_score", sum(scores) / len(scores))
    return rewards


def last_reply(completion: Any) -> str | None:
    """Text of the last reply of a completion; None if it ends with a tool call or a tool result."""
    last = completion if isinstance(completion, str) else completion[-1]
    if isinstance(last, str):
        return last
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    return last.get("content") or ""
