"""`concat_vec_envs_v1` on a parallel environment: two writers with one policy, eight pairs."""

import supersuit
from gymnasium_loop import learn
from writing import pair


def train(seed: int) -> list[float]:
    """Train, and return the rewards of the writers."""
    rows = supersuit.pettingzoo_env_to_vec_env_v1(pair())
    envs = supersuit.concat_vec_envs_v1(rows, 8, num_cpus=0, base_class="gymnasium")
    return learn(envs, 2, 60, seed)
