"""Workflows in TorchRL; importing this module tells it how our spaces look there.

    from flowzoo.adapters.torchrl import pettingzoo_env
    env = pettingzoo_env(voting_v0.env())       # a PettingZooWrapper; one group per role
    GymWrapper(gymnasium.make("flowzoo/Voting-v0"))     # works as it is, once this is imported

Texts and chats are `NonTensor` entries: `td["aggregator", "observation", "messages"]`, with a row
for each agent of the role.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from pettingzoo import AECEnv, ParallelEnv
from tensordict import NonTensorData, NonTensorStack
from torchrl.data import NonTensor
from torchrl.envs.libs.gym import register_gym_spec_conversion
from torchrl.envs.libs.pettingzoo import PettingZooWrapper

from flowzoo.adapters.arrays import BareInfos
from flowzoo.envs.api.spaces import Messages, Prose, Tools, Turns


class TextSpec(NonTensor):
    """Texts that TorchRL can draw at random and hand on one by one, each whole."""

    prose: Prose
    """Space of the samples; a class attribute, since TorchRL copies specs by class and shape."""

    def rand(self, shape: Any = None) -> Any:
        """Texts drawn from the space, one for each element."""
        return self._draw(self.zero(shape))

    def _draw(self, texts: Any) -> Any:
        if not texts.batch_dims:
            return NonTensorData(self.prose.sample(), device=self.device)
        return NonTensorStack(*[self._draw(part) for part in texts.unbind(0)])

    def zero(self, shape: Any = None) -> Any:
        """The first sample of the space, for each element."""
        return super().rand(shape)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """The text, or an array of texts (dtype object): what PettingZooWrapper indexes."""
        if isinstance(val, str):
            return val
        values = val.tolist()
        if isinstance(values, str):
            return values
        texts = np.empty(len(values), dtype=object)
        texts[:] = values
        return texts

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (self.prose,), vars(self)


@lru_cache(maxsize=64)
def _texts_of(space: Prose) -> type[TextSpec]:
    return type("TextSpec", (TextSpec,), {"prose": space})


def _blank(prose: Prose) -> TextSpec:
    kind = _texts_of(prose)
    return kind.__new__(kind)


@register_gym_spec_conversion(Prose)
def text_spec(space: Prose, device: Any = None, **_: Any) -> NonTensor:
    """A text."""
    return _texts_of(space)((), device=device, example_data=space.samples[0])


@register_gym_spec_conversion(Messages)
@register_gym_spec_conversion(Tools)
@register_gym_spec_conversion(Turns)
def chat_spec(space: Messages | Tools | Turns, device: Any = None, **_: Any) -> NonTensor:
    """A chat, tools, or a transcript: a list of dicts."""
    return NonTensor((), device=device, example_data=[])


def pettingzoo_env(env: AECEnv | ParallelEnv, **options: Any) -> PettingZooWrapper:
    """A workflow's AEC or parallel environment in TorchRL.

    Args:
        env: the environment. Its infos hold texts, of which TorchRL would make tensors: they stay
            behind in `env.infos`.
        options: of PettingZooWrapper. By default `group_map` has a group for each role, and
            `use_mask` is true for an AEC environment, as it must be.
    """
    groups: dict[str, list[str]] = {}
    core: Any = env.unwrapped
    roles = getattr(core, "aec", core).workflow.agents
    for agent in env.possible_agents:
        groups.setdefault(roles[agent][0], []).append(agent)
    options = {"group_map": groups, **options}
    if isinstance(env, AECEnv):
        options = {"use_mask": True, **options}
    return PettingZooWrapper(BareInfos(env), **options)
