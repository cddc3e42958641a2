"""Table of the named algorithms, with how each differs from its source."""

# For all of them, and not repeated in `differs`: one scalar advantage for every sampled token of a
# call; end-of-turn tokens are trained and pads never are; statistics are taken before any filter,
# padding or truncation rule; a reply that abstained (strict preset) is not paid for its team's
# success, and never more than the worst that was read; a user's reward function counts from the
# batch's lowest outcome where there is no baseline; a constant group gets 0; a loss that is not
# finite stops the run.

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from flowzoo.baselines.advantages.spec import PRESETS, AdvantageSpec
from flowzoo.baselines.learner.config import Aggregation, Clipping, Ratio
from flowzoo.errors import unknown

SamplerName = Literal["episodes", "tree", "joint"]
Sharing = Literal["any", "isolated"]
T = TypeVar("T", bound=Any)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One named algorithm."""

    name: str
    advantage: AdvantageSpec = field(default=PRESETS["grpo"], kw_only=True)
    """The preset of the algorithm's name, and grpo's where there is none."""
    source: str
    """Paper and place of the definition."""
    differs: str
    """Differences to that paper and to its released code."""
    sampling: SamplerName = "episodes"
    """`episodes`: whole episodes of one problem. `tree`: candidates at every turn, the best one
    executed. `joint`: a tree over the joint actions of phases."""
    sharing: Sharing = "any"
    """Map from roles to policies the algorithm is made for; `any` works with all."""
    ratio: Ratio = "token"
    """Weight of tokens in the loss: their ratio to the sampling policy, or their reply's; none: the
    plain policy gradient."""
    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    dual_clip: float | None = 3.0
    """Bound of the loss of a token with a negative advantage, in units of it."""
    clipping: Clipping = "objective"
    """Bounded quantity of the clip: the objective, or the weight of the gradient."""
    aggregation: Aggregation = "token-mean"
    constant: Literal["", "rows * max_tokens"] = ""
    """Divisor of `token-sum`."""
    kl: float = 0.0
    """Coefficient of the KL divergence to the reference policy."""

    @property
    def values(self) -> dict[str, Any]:
        """Values of the settings that a user may leave to the algorithm."""
        samples = 8 if self.sampling == "episodes" else 1
        same = ("clip_low", "clip_high", "dual_clip", "aggregation", "kl")
        return {"samples": samples, "candidates": 4} | {name: getattr(self, name) for name in same}

    def fill(self, settings: T) -> T:
        """Fill in what the settings of a run, or of one of its policies, leave to the algorithm."""
        values = self.values.items()
        return replace(settings, **{k: v for k, v in values if getattr(settings, k) is None})

    @property
    def usual_sharing(self) -> str:
        """`sharing` of a run whose settings leave it out."""
        return "isolated" if self.sharing == "isolated" else "shared"


_GRPO = "DeepSeekMath (arXiv 2402.03300), section 4.1.1, with outcome rewards"
_DR_MAS = "Dr. MAS (arXiv 2602.08847)"
_VERL = (
    "Its released code leaves a group of one its raw reward; here it gets 0. Its grouping and its "
    "deviation (sample) are the same."
)
_PLAIN: dict[str, Any] = {
    "ratio": "none",
    "clip_low": None,
    "clip_high": None,
    "dual_clip": None,
    "aggregation": "seq-mean-token-sum",
}
"""The plain policy gradient: -A logp, added up over a reply."""

_TABLE = (
    Algorithm(
        "grpo",
        source=_GRPO,
        differs="The paper has one call an episode and a KL term (0.04); here every call of an "
        "episode gets its (R - mean) / std over the problem's episodes, each counted once, and no "
        "KL.",
        aggregation="seq-mean-token-mean",
    ),
    Algorithm(
        "grpo_call",
        source=_GRPO + "; the control that Dr. MAS's ablation lacks",
        differs="As grpo, but an episode counts as often as it called, so that long episodes pull "
        "the mean: what a trainer does that pools rows. Dr. MAS's code has it as an option, "
        "compute_mean_std_cross_steps.",
        aggregation="seq-mean-token-mean",
    ),
    Algorithm(
        "dr_grpo",
        source="Understanding R1-Zero-Like Training (arXiv 2503.20783), section 3.2",
        differs="One call an episode in the paper. The sum over tokens is divided by a "
        "number fixed beforehand, rows times the longest reply allowed.",
        aggregation="token-sum",
        constant="rows * max_tokens",
    ),
    Algorithm(
        "dr_mas",
        source=_DR_MAS + ", (mu_k, sigma_k)",
        differs="Groups are (problem, role), so two agents of one role are compared with each "
        "other; the paper's agents have one copy each. " + _VERL,
    ),
    Algorithm(
        "dr_mas_mean",
        source=_DR_MAS + ", ablation (mu_k, sigma)",
        differs="The role's mean, the deviation over the problem's episodes. As dr_mas otherwise.",
    ),
    Algorithm(
        "dr_mas_std",
        source=_DR_MAS + ", ablation (mu, sigma_k)",
        differs="The mean over the problem's episodes, the role's deviation. As dr_mas otherwise.",
    ),
    Algorithm(
        "paper",
        source="When Does Multi-Agent RL Improve LLM Workflows? (arXiv 2605.24202), its code",
        differs="The same groups, trajectory names: the calls of a role in all episodes of a "
        "problem, but for three voters, which are three groups unless they write programs; a group "
        "of one keeps its raw reward. How often a policy is updated is a setting of the trainer.",
        clip_high=0.28,
        aggregation="seq-mean-token-mean",
    ),
    Algorithm(
        "at_grpo",
        source="Stronger-MAS (arXiv 2510.11062), AT-GRPO",
        differs="A group is the candidates of one prompt, found by its full key and the state's "
        "hash. The released code divides an index (env_idx // samples) to find it, and pads by "
        "copying rows before taking statistics.",
        sampling="tree",
    ),
    Algorithm(
        "magrpo",
        source="MAGRPO (arXiv 2508.04652), on sampled episodes",
        differs="Calls of one role and turn of a problem are compared across episodes; the "
        "outcome is counted once per agent. The released library grows a tree instead "
        "(magrpo_tree), discounts by 0.9 by default and replaces a non-finite loss by 0.1.",
        sharing="isolated",
        **_PLAIN,
    ),
    Algorithm(
        "magrpo_tree",
        source="MAGRPO (arXiv 2508.04652), as its library CoMLRL samples it",
        differs="A budgeted number of children per node instead of all G^T leaves, and crossed "
        "joint actions are averaged where the library sums them.",
        sampling="joint",
        sharing="isolated",
        **_PLAIN,
    ),
    Algorithm(
        "rloo",
        source="Back to Basics (arXiv 2402.14740), RLOO; in CoMLRL as MARLOO",
        differs="The paper has one call an episode and the KL inside the reward; here no KL.",
        **_PLAIN,
    ),
    Algorithm(
        "reinforce_max",
        source="CoMLRL's MAReMax",
        differs="The baseline is the best episode of the problem, each counted once. ReMax (arXiv "
        "2310.10505), after which it is named, takes the reward of a greedy reply instead.",
        **_PLAIN,
    ),
    Algorithm(
        "reinforce",
        source="Williams 1992; in CoMLRL as MAREINFORCE",
        differs="No baseline: the episode's return itself.",
        **_PLAIN,
    ),
    Algorithm(
        "reinforce_role",
        source="After SPIRAL's role-conditioned baseline (arXiv 2506.24119)",
        differs="The running mean is one per role, moved once per batch by the batch's mean and "
        "only after it was used; SPIRAL keeps one per game and role.",
        **_PLAIN,
    ),
    Algorithm(
        "reinforce_pp",
        source="REINFORCE++ (arXiv 2501.03262v9), global advantage normalization",
        differs="The paper has one call an episode and takes a KL penalty off the reward of every "
        "token; here no KL. The batch that mean and deviation are taken over is one policy's, each "
        "episode counted once. Problems need no second sample.",
    ),
    Algorithm(
        "reinforce_pp_base",
        source="REINFORCE++ (arXiv 2501.03262v9), its variant with a baseline",
        differs="The mean of the problem's episodes is taken off, then the rest is normalized over "
        "the batch, as reinforce_pp does it. The paper adds a KL loss (k2); here no KL.",
    ),
    Algorithm(
        "gspo",
        source="GSPO (arXiv 2507.18071), eq. 5 to 7, with grpo's advantages",
        differs="The ratio is that of a call, not of the whole episode; the clips are those of the "
        "paper's experiments, far narrower than a token's. GSPO-token is the same here, since all "
        "tokens of a call have one advantage.",
        ratio="sequence",
        clip_low=3e-4,
        clip_high=4e-4,
        dual_clip=None,
        aggregation="seq-mean-token-mean",
    ),
    Algorithm(
        "cispo",
        source="MiniMax-M1 (arXiv 2506.13585), eq. 4 and 5, with grpo's advantages",
        differs="The paper has no lower bound either and does not name its upper one: a weight of "
        "5 at most is ScaleRL's (arXiv 2510.13786). Its dynamic sampling is `refill`, its length "
        "penalty `truncated` shape.",
        clip_low=None,
        clip_high=4.0,
        dual_clip=None,
        clipping="weight",
    ),
)

ALGORITHMS: Mapping[str, Algorithm] = {
    row.name: replace(row, advantage=PRESETS.get(row.name, row.advantage)) for row in _TABLE
}
"""Name -> algorithm. Every preset has the algorithm of its name."""

SUPERVISED = "sft"
"""Algorithm in the record of a supervised run; no run of `flowzoo train` has it."""


def algorithm_named(name: str) -> Algorithm:
    """The algorithm of that name."""
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
