"""Tic-tac-toe by `OpenSpielCompatibilityV0` in `TextEnv`: the first player's seat as a choice."""

import numpy as np
import torch
from shimmy.openspiel_compatibility import OpenSpielCompatibilityV0

from flowzoo.adapters.arrays import Choose, Encode
from flowzoo.adapters.outside import make_seat
from flowzoo.envs import TextEnv, random_move
from flowzoo.envs.external.workflow import make_aec_workflow


def game() -> TextEnv:
    """A second player who moves at random."""
    env = OpenSpielCompatibilityV0(game_name="tic_tac_toe")
    show = lambda board, *_: " ".join(str(int(number)) for number in board.flat)  # noqa: E731
    read = lambda reply, *_: int(reply)  # noqa: E731
    return TextEnv(env, show, read, scripted={"player_1": random_move}, score_range=(-1, 1))


def train(seed: int) -> list[float]:
    """Train, and return the scores of the episodes: 0.5 for a draw."""
    torch.manual_seed(seed)
    net, paid = torch.nn.Linear(27, 9), list[float]()
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    read = lambda chat: np.array(chat[-1]["content"].split() if chat else [0] * 27, "f")  # noqa: E731
    seat = make_seat(make_aec_workflow("benchmarks/third_party/shimmy_board.py:game"))
    env = Choose(Encode(seat, read), [*"012345678"])
    for _ in range(900):
        (seen, info), reward, over, loss = env.reset(), 0.0, False, torch.zeros(())
        while not over:
            scores = net(torch.as_tensor(seen)) + torch.as_tensor(info["action_mask"]).log()
            square = (drawn := torch.distributions.Categorical(logits=scores)).sample()
            seen, reward, over, _, info = env.step(square.item())  # type: ignore[arg-type]
            loss -= drawn.log_prob(square)
        optimizer.zero_grad()
        (loss * (reward - sum(paid[-50:]) / 50)).backward()
        optimizer.step()
        paid.append(reward)
    return paid
