r"""Texts as arrays, for libraries that train on arrays: a choice among replies, encoded chats.

    env = Choose(Encode(voting_v0.env(), ByteEncoder()), ["\\boxed{1}", "\\boxed{2}"])

The wrappers take AEC, parallel and Gymnasium environments of flowzoo and give the same kind. They
need NumPy and the core of flowzoo; only `HiddenEncoder` needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Space
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper, BaseWrapper

from flowzoo.agents.chat.template import ChatTokenizer
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.traits import context_of
from flowzoo.aliases import AgentInfo, ResetOptions, StateDict
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.api.parallel import ParallelWorkflowEnv
from flowzoo.envs.api.solo import SoloEnv
from flowzoo.envs.api.spaces import Prose
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.script import Message
from flowzoo.envs.settings import check_whole, whole
from flowzoo.errors import UsageError, check_choice, unknown

Encoder = Callable[[list[Message]], NDArray[Any]]
"""From a chat to an array of constant shape. With an attribute `space`, that is its space."""
Replies = Sequence[str] | Mapping[str, Sequence[str]] | None
MaskPlace = Literal["info", "observation"]
MASK = "action_mask"
E = TypeVar("E", bound=AECEnv | ParallelEnv | gymnasium.Env)


def Choose(env: E, replies: Replies = None, *, mask: MaskPlace = "info") -> E:
    """An environment whose action is the number of a reply.

    A reply is legal where the workflow can read it: a number of one of the candidates, a move of
    the game's alphabet. `action_mask`, int8 of shape (k,), has 1 for legal replies, and only ones
    for an agent that is not asked or has no legal reply. Gymnasium environments have
    `action_masks()` as well, which MaskablePPO reads.

    Args:
        env: a workflow's environment, whose actions are texts.
        replies: the replies, or a sequence for each role or agent; by default the samples of the
            action space.
        mask: `info` for `info["action_mask"]`; `observation` for observations
            `{"observation": ..., "action_mask": ...}`, which Tianshou and RLlib read.

    Raises:
        UsageError: no replies, equal replies, replies that are not texts, no replies for a role.
    """
    return _wrap(env, _Choice(env, replies, mask))


def Encode(env: E, encoder: Encoder) -> E:
    """An environment whose observations are arrays.

    Args:
        env: a workflow's environment, whose observations are chats.
        encoder: makes the array of a chat, which is empty before an agent has been asked.

    Raises:
        UsageError: the encoder gives no array of numbers, or later one of another shape.
    """
    return _wrap(env, _Encoding(env, encoder))


def BareInfos(env: E) -> E:
    """An environment whose infos are empty but for `action_mask`; `env.unwrapped` has them all."""
    return _wrap(env, _Change(env))


@dataclass(frozen=True)
class ByteEncoder:
    """The last `length` bytes of a chat's texts as float32 from 0 to 1, zeros before them."""

    length: int = 256

    def __post_init__(self) -> None:
        check_whole("length", self.length, 1)

    @property
    def space(self) -> Box:
        """Space of the arrays."""
        return Box(0, 1, (self.length,), np.float32)

    def __call__(self, messages: list[Message]) -> NDArray[np.float32]:
        """The array of a chat."""
        text = _text(messages)[-self.length :].rjust(self.length, b"\0")
        return np.frombuffer(text, np.uint8).astype(np.float32) / np.float32(255)


@dataclass(frozen=True)
class NgramEncoder:
    """Counts of a chat's sequences of `n` bytes in `size` places by hash, float32 of norm 1."""

    size: int = 512
    n: int = 3

    def __post_init__(self) -> None:
        check_whole("size", self.size, 1)
        check_whole("n", self.n, 1, 8)

    @property
    def space(self) -> Box:
        """Space of the arrays."""
        return Box(0, 1, (self.size,), np.float32)

    def __call__(self, messages: list[Message]) -> NDArray[np.float32]:
        """The array of a chat."""
        text = np.frombuffer(_text(messages), np.uint8).astype(np.uint64)
        codes = np.zeros(max(len(text) - self.n + 1, 0), np.uint64)
        for offset in range(self.n):
            codes = codes * np.uint64(256) + text[offset : offset + len(codes)]
        # Multiplication by 2**64 over the golden ratio spreads neighbouring codes.
        hashed = (codes * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        places = (hashed % np.uint64(self.size)).astype(np.int64)
        counts = np.bincount(places, minlength=self.size).astype(np.float32)
        return counts / max(float(np.linalg.norm(counts)), 1.0)


class HiddenEncoder:
    """The last hidden state of a model that has read the chat, float32 of the model's width.

    A chat that is longer than the model's context is cut at its beginning. The model is loaded
    where it is needed, so that other processes get its name alone.
    """

    def __init__(self, model: str | Path = "") -> None:
        """Load the model.

        Args:
            model: folder, GGUF file or hub id; by default the pocket model of mathematics.
        """
        self.model = str(model or pocket_path())
        width = self._loaded[0].config.hidden_size
        self.space = Box(-np.inf, np.inf, (width,), np.float32)

    def __getstate__(self) -> StateDict:
        return {name: value for name, value in vars(self).items() if name != "_loaded"}

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        # Here, since it takes torch.
        from flowzoo.agents.hf.policy import load_model

        model, tokenizer = load_model(self.model, "float32")
        return model.eval(), ChatTokenizer(tokenizer)

    def __call__(self, messages: list[Message]) -> NDArray[np.float32]:
        """The array of a chat."""
        import torch

        model, tokenizer = self._loaded
        ids = tokenizer.measure(messages or [{"role": "user", "content": ""}]).ids
        with torch.inference_mode():
            inputs = torch.tensor([ids[-(context_of(model.config) or len(ids)) :]])
            states = model(input_ids=inputs, output_hidden_states=True).hidden_states
        return states[-1][0, -1].float().numpy()


def _text(messages: Sequence[Message]) -> bytes:
    return "\n".join(message["content"] for message in messages).encode("utf-8", "replace")


class _Change:
    """A wrapper's changes; this one leaves infos out."""

    def __init__(self, env: Any) -> None:
        self.workflow = _core(env).workflow

    def observation_space(self, agent: str, space: Space[Any]) -> Space[Any]:
        return space

    def action_space(self, agent: str, space: Space[Any]) -> Space[Any]:
        return space

    def observation(self, agent: str, seen: Any, turn: Turn | None) -> Any:
        return seen

    def reply(self, agent: str, action: Any) -> Any:
        return action

    def info(self, agent: str, info: AgentInfo, turn: Turn | None) -> AgentInfo:
        return {name: value for name, value in info.items() if name == MASK}


class _Encoding(_Change):
    """Chats become arrays."""

    def __init__(self, env: Any, encoder: Encoder) -> None:
        super().__init__(env)
        self.encoder = encoder
        self.space = getattr(encoder, "space", None) or _space_of(encoder([]))

    def observation_space(self, agent: str, space: Space[Any]) -> Space[Any]:
        if not (isinstance(space, Dict) and "messages" in space.spaces):
            raise UsageError(f"Encode takes chats: wrap with it first, got observations {space!r}.")
        return self.space

    def observation(self, agent: str, seen: Any, turn: Turn | None) -> Any:
        array = self.encoder(seen["messages"])
        if not self.space.contains(array):
            raise UsageError(
                f"the encoder's arrays must lie in {self.space!r}, got for {agent} "
                f"{getattr(array, 'dtype', type(array).__name__)} of shape {np.shape(array)}: "
                f"{array!r:.60}."
            )
        return array

    def info(self, agent: str, info: AgentInfo, turn: Turn | None) -> AgentInfo:
        return info


def _space_of(array: Any) -> Box:
    kind = np.asarray(array).dtype
    if not isinstance(array, np.ndarray) or kind.kind not in "fiu":
        raise UsageError(f"an encoder must give an array of numbers, got {array!r:.60}.")
    limits: Any = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    return Box(limits.min, limits.max, array.shape, kind.type)


class _Choice(_Change):
    """Numbers become replies."""

    def __init__(self, env: Any, replies: Replies, mask: MaskPlace) -> None:
        super().__init__(env)
        check_choice("mask", mask, MaskPlace)
        self.in_observation = mask == "observation"
        self._masks: dict[str, tuple[Turn | None, NDArray[np.int8]]] = {}
        roles = {agent: role for agent, (role, _) in self.workflow.agents.items()}
        played = getattr(env.unwrapped, "own", None) or env.possible_agents
        if isinstance(replies, Mapping):
            if wrong := replies.keys() - {*roles, *roles.values()}:
                raise unknown("role or agent in `replies`", min(wrong), {*roles, *roles.values()})
            given = {agent: replies.get(agent, replies.get(roles[agent])) for agent in played}
        else:
            given = dict.fromkeys(played, self.workflow.samples() if replies is None else replies)
        self.replies = {agent: _check_replies(agent, texts) for agent, texts in given.items()}
        counts = {agent: len(texts) for agent, texts in self.replies.items()}
        if isinstance(env, gymnasium.Env) and len({*counts.values()}) > 1:
            raise UsageError(f"the agents of a role need equal numbers of replies, got {counts}.")

    def observation_space(self, agent: str, space: Space[Any]) -> Space[Any]:
        if not self.in_observation:
            return space
        return Dict({"observation": space, MASK: MultiBinary(len(self.replies[agent]))})

    def action_space(self, agent: str, space: Space[Any]) -> Space[Any]:
        if not isinstance(space, Prose):
            raise UsageError(f"Choose takes environments whose actions are texts, got {space!r}.")
        return Discrete(len(self.replies[agent]))

    def observation(self, agent: str, seen: Any, turn: Turn | None) -> Any:
        if not self.in_observation:
            return seen
        return {"observation": seen, MASK: self.legal(agent, turn)}

    def reply(self, agent: str, action: Any) -> Any:
        if action is None:
            return None
        number, texts = whole(action), self.replies[agent]
        if number is None or not 0 <= number < len(texts):
            raise UsageError(
                f"the action of {agent} must be a whole number from 0 to {len(texts) - 1}, got "
                f"{action!r:.60}."
            )
        return texts[number]

    def info(self, agent: str, info: AgentInfo, turn: Turn | None) -> AgentInfo:
        return info if self.in_observation else {**info, MASK: self.legal(agent, turn)}

    def legal(self, agent: str, turn: Turn | None) -> NDArray[np.int8]:
        """1 for every reply that the agent's open turn can read, or for all."""
        # The same array as long as the turn is open: PettingZoo's tests compare infos.
        if agent not in self._masks or self._masks[agent][0] is not turn:
            texts, parse = self.replies[agent], turn.parse if turn is not None else None
            mask = np.array([parse is None or parse(text) is not None for text in texts], np.int8)
            self._masks[agent] = turn, mask if mask.any() else np.ones_like(mask)
        return self._masks[agent][1]

    def __getstate__(self) -> StateDict:
        return {**vars(self), "_masks": {}}  # turns hold functions


def _check_replies(agent: str, texts: Sequence[str] | None) -> tuple[str, ...]:
    if texts is None:
        raise UsageError(f"`replies` has none for {agent}: add them under its name or its role.")
    if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"the replies of {agent} must be one or more texts, got {texts!r:.60}.")
    if len(set(texts)) < len(texts):
        raise UsageError(f"the replies of {agent} must be different, got {texts!r:.60}.")
    return tuple(texts)


def _core(env: Any) -> WorkflowEnv:
    inner = getattr(env, "unwrapped", env)
    if isinstance(inner, SoloEnv | ParallelWorkflowEnv):
        inner = inner.aec.unwrapped
    if isinstance(inner, WorkflowEnv):
        return inner
    raise UsageError(f"expected an environment of flowzoo, got {env!r:.80}.")


def _open_turn(env: Any, agent: str) -> Turn | None:
    waiting = _core(env).episode.waiting
    return next((turn for turn in waiting if turn.agent == agent), None)


def _wrap(env: Any, change: _Change) -> Any:
    if isinstance(env, ParallelEnv):
        return ChangedParallel(env, change)
    return ChangedSolo(env, change) if isinstance(env, gymnasium.Env) else ChangedAEC(env, change)


class _Agents:
    """Spaces of a wrapper of several agents."""

    def __init__(self, env: Any, change: _Change) -> None:
        super().__init__(env)  # type: ignore[call-arg] - of PettingZoo's wrapper
        self.change = change
        agents = env.possible_agents
        self.observation_spaces = {
            agent: change.observation_space(agent, env.observation_space(agent)) for agent in agents
        }
        self.action_spaces = {
            agent: change.action_space(agent, env.action_space(agent)) for agent in agents
        }

    def observation_space(self, agent: str) -> Space[Any]:
        """Space of the agent's observations."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """Space of the agent's actions."""
        return self.action_spaces[agent]


class ChangedAEC(_Agents, BaseWrapper[str, Any, Any]):
    """An AEC environment with other observations, actions or infos."""

    def observe(self, agent: str) -> Any:
        """The latest observation of an agent."""
        seen = self.env.observe(agent)
        return self.change.observation(agent, seen, _open_turn(self.env, agent))

    def step(self, action: Any) -> None:
        """Submit the action of the selected agent; see `WorkflowEnv.step`."""
        self.env.step(self.change.reply(self.env.agent_selection, action))

    @property
    def infos(self) -> dict[str, AgentInfo]:  # type: ignore[override]
        """Infos by agent."""
        return {
            agent: self.change.info(agent, info, _open_turn(self.env, agent))
            for agent, info in self.env.infos.items()
        }


class ChangedParallel(_Agents, BaseParallelWrapper[str, Any, Any]):
    """A parallel environment with other observations, actions or infos."""

    def reset(
        self, seed: int | None = None, options: ResetOptions | None = None
    ) -> tuple[dict[str, Any], dict[str, AgentInfo]]:
        """Start an episode; see `WorkflowEnv.reset`."""
        return self._change(*self.env.reset(seed=seed, options=options))

    def step(self, actions: Mapping[str, Any]) -> Any:
        """Submit the action of every agent; see `ParallelWorkflowEnv.step`."""
        replies = {agent: self.change.reply(agent, action) for agent, action in actions.items()}
        observations, *results, infos = self.env.step(replies)
        observations, infos = self._change(observations, infos)
        return observations, *results, infos

    def _change(self, seen: dict[str, Any], infos: dict[str, AgentInfo]) -> tuple[Any, Any]:
        turns = {agent: _open_turn(self.env, agent) for agent in seen}
        change = self.change
        return (
            {agent: change.observation(agent, each, turns[agent]) for agent, each in seen.items()},
            {agent: change.info(agent, info, turns[agent]) for agent, info in infos.items()},
        )


class ChangedSolo(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A Gymnasium environment with other observations, actions or infos."""

    def __init__(self, env: gymnasium.Env[Any, Any], change: _Change) -> None:
        RecordConstructorArgs.__init__(self, change=change)
        super().__init__(env)
        self.change = change
        self.observation_space = change.observation_space(self._agent, env.observation_space)
        self.action_space = change.action_space(self._agent, env.action_space)

    @property
    def _agent(self) -> str:
        solo: Any = self.env.unwrapped
        core = solo.aec.unwrapped
        return core.agent_selection if getattr(core, "agents", ()) else solo.own[0]

    def reset(
        self, *, seed: int | None = None, options: ResetOptions | None = None
    ) -> tuple[Any, AgentInfo]:
        """Start an episode; see `SoloEnv.reset`."""
        return self._change(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, AgentInfo]:
        """Submit the action; see `SoloEnv.step`."""
        reply = self.change.reply(self._agent, action)
        seen, reward, ended, cut, info = self.env.step(reply)
        seen, info = self._change(seen, info)
        return seen, float(reward), ended, cut, info

    def _change(self, seen: Any, info: AgentInfo) -> tuple[Any, AgentInfo]:
        agent, turn = self._agent, _open_turn(self.env, self._agent)
        return self.change.observation(agent, seen, turn), self.change.info(agent, info, turn)

    def action_masks(self) -> NDArray[np.int8]:
        """Legal actions now, as MaskablePPO asks for them."""
        if not isinstance(self.change, _Choice):
            raise UsageError("`action_masks` is Choose's: wrap with it last.")
        return self.change.legal(self._agent, _open_turn(self.env, self._agent))
