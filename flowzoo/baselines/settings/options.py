"""Settings of a run by subject; the learner's own are in `flowzoo.baselines.learner.config`.

None leaves a choice to the algorithm's row in `flowzoo.baselines.settings.algorithms`, or to the
model (`flowzoo.baselines.settings.model_defaults`), as the texts say. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flowzoo.agents.rollout.joint import Joint
from flowzoo.agents.rollout.tree import Select, Value
from flowzoo.agents.traits import EngineDTypeChoice
from flowzoo.agents.vllm.settings import Placement, WeightTransfer
from flowzoo.baselines.learner.config import (
    Aggregation,
    ComputeOptions,
    KlEstimate,
    LoraTargets,
    RowOptions,
    UpdateOptions,
)
from flowzoo.errors import UsageError
from flowzoo.sandbox.tier import SandboxName

StopOn = Literal["collapse"]


BackendName = Literal["local", "torchrun", "ray"]
Sharding = Literal["none", "full"]
SHARD_JOBS: dict[BackendName, int] = {"local": 0, "torchrun": 16, "ray": 16}
"""Default number of episodes of a shard, by backend."""


@dataclass(frozen=True)
class WorkflowOptions:
    """Workflow, task and prompts, of training runs and warm starts."""

    workflow: str = field(default="voting", metadata={"positional": "[WORKFLOW]"})
    """Name of the workflow, e.g. `voting` or `voting_v0`, or `module:Class`."""
    task: str | None = None
    """Task the workflow works on; default: the workflow's own, e.g. math."""
    sandbox: SandboxName | None = None
    """Isolation of programs, for tasks that run them; default: the best this machine has."""
    max_calls: int | None = None
    """Most calls of an episode; a workflow that asks more is an error. Default: 1,000."""
    prompts: str | None = None
    """`short` or `full` texts, or a TOML file of texts and system messages, as `flowzoo prompts`
    prints it; default: short for pocket models, full for others."""
    system: tuple[str, ...] = ()
    """System messages, as ROLE=TEXT."""
    examples: int | None = None
    """Worked examples of its job that every role is shown, as earlier turns of its chat; default: 0
    for pocket models and warm starts, 4 for others."""
    options: tuple[str, ...] = ()
    """Further settings of the workflow or the task, as NAME=VALUE, e.g. n_votes=5 level=2; with
    `env`, arguments of its function as well."""
    program: str | None = None
    """In place of a workflow, a program that asks its agents by an OpenAI client: the function
    `module:solve` or `path/to/file.py:solve`, or a command, e.g. "node agent.js"."""

    def replace_workflow(self, setting: str, name: str) -> None:
        """Set `workflow` to `name` if `setting` (`program` or `env`) is given.

        Raises:
            UsageError: a workflow is named, too.
        """
        given = getattr(self, setting)
        if given is None:
            return
        if self.workflow not in ("", WorkflowOptions.workflow, name):
            raise UsageError(
                f"`{setting}` {given} is played in place of a workflow: leave out "
                f"{self.workflow!r}, or leave out `{setting}`"
            )
        object.__setattr__(self, "workflow", name)


@dataclass(frozen=True)
class ProcessOptions:
    """Seed, threads, device and directory, of training runs and warm starts."""

    seed: int = 0
    """Seed of the problem stream and of sampling. Evaluation problems do not depend on it."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's own choice (OMP_NUM_THREADS)."""
    device: str = "auto"
    """Device of the learner; auto: the GPU where there is one (of learner workers: one that they
    were given)."""
    out: str = ""
    """Run directory; empty: `runs/` and a name made of the settings."""


@dataclass(frozen=True)
class RunSettings(ProcessOptions, WorkflowOptions):
    """Length of a run, when it ends, and callbacks."""

    env: str | None = None
    """In place of a workflow, any PettingZoo AEC environment of text: `package.module:function` or
    `path/to/file.py:function`, which returns an AECEnv or a `TextEnv`. See docs/aec.md."""
    steps: int = 40
    """Iterations: one batch of rollouts and one update of every policy each."""
    token_budget: int = 0
    """End after the iteration in which this many training tokens have been sampled; 0: `steps`
    alone decides. For controls at equal training tokens."""
    stop_patience: int = 0
    """Evaluations in a row without a gain beyond noise after which the run ends; 0: never."""
    stop_at: float | None = None
    """End after the evaluation whose accuracy is at least this, from 0 to 1; None: never."""
    stop_on: StopOn | None = None
    """`collapse`: end when two evaluations in a row show that the accuracy, a checking role's
    judgment, the candidates or the form of replies have collapsed; None: never."""
    callback: tuple[str, ...] = ()
    """Functions that are called after every step, as module:function or file.py:function; what they
    may change is in docs/hooks.md."""


@dataclass(frozen=True)
class ModelSettings:
    """Models, and the policies that they start."""

    model: str = "pocket"
    """Starting weights of every policy: `pocket` (the model of the task that is played; of another
    task or size: `pocket:TASK`, `pocket:SCALE`, `pocket:TASK-SCALE`, with the scales xs, s and m),
    or a model in Hugging Face layout or a .gguf file."""
    models: tuple[str, ...] = ()
    """Starting weights of single policies that differ from `model`, as POLICY=PATH."""
    sharing: tuple[str, ...] = ()
    """`shared` (one policy), `isolated` (one per role), or ROLE=POLICY for every role or agent;
    none: what the algorithm is made for, isolated for magrpo and magrpo_tree, else shared."""
    frozen: tuple[str, ...] = ()
    """Policies that play but are never trained."""
    lora_rank: int = 0
    """Rank of one LoRA adapter per policy on a shared, frozen `model`; 0 trains all weights."""
    lora_alpha: int = 32
    """An adapter's update is scaled by lora_alpha / lora_rank."""
    thinking: tuple[str, ...] = ()
    """Thinking before a reply: on, off, or POLICY=on for single ones; none: the chat template's
    choice. Thoughts are trained on, and stripped before other roles and graders read."""
    lora_targets: LoraTargets = "linear"
    """Layers with adapters: `linear`, linear layers but the output head and the routers of
    mixtures of experts; `all`, what PEFT calls all-linear, in some families routers and experts
    too. A line at the start names them."""


@dataclass(frozen=True)
class DecodingOptions:
    """Number format and batches of decoding, of training runs and warm starts."""

    engine_dtype: EngineDTypeChoice = "auto"
    """Number format that is sampled in: of a vLLM engine's weights, or with `transformers` of a
    copy of the learner's linear layers, renewed after every update. What the learner keeps is
    `weights`. `int8`: of transformers on a CPU, weights and activations quantized by row. `auto`:
    bfloat16 where the hardware multiplies it and all models have 100 million weights or more, else
    float32, and float32 for a server. Printed at the start."""
    max_batch: int = 1024
    """Most sequences that are decoded together; lower it if memory runs out."""


@dataclass(frozen=True)
class EngineOptions(DecodingOptions):
    """Engines that sample."""

    engine: str = "transformers"
    """Engine that samples: `transformers` (the learner's module), `vllm`, `openai` (a running
    `vllm serve` at `endpoint`), or an engine of an installed package. There is no fallback."""
    endpoint: tuple[str, ...] = ()
    """URL of the server for `engine=openai`, or POLICY=URL for each policy with full weights."""
    placement: Placement = "colocated"
    """Process of a vLLM engine: this one (`colocated`), or another (`split`), as in rollout workers
    (`backend` ray)."""
    engine_devices: str = ""
    """GPUs of split engines, as CUDA_VISIBLE_DEVICES writes them; Ray assigns the GPUs of rollout
    workers (`rollout_gpus`)."""
    weight_transfer: WeightTransfer = "file"
    """Way of all weights of a policy to a split vLLM engine after an update: `file`, a file in
    shared memory; `ipc`, memory of the GPU that learner and engine share; `nccl`, from the
    learner's GPU to another (`engine_devices`). Adapters are files always."""
    engine_memory: float = 0.0
    """GiB of KV cache of all vLLM engines together, or of all in a rollout worker; 0: a share of a
    GPU, and on a CPU 0.25 each or, if that is more, one sequence of the greatest length, with a
    note."""
    engine_sleep: bool = False
    """Release a colocated engine's GPU memory while the learner runs."""
    engine_restarts: int = 2
    """Most restarts of vLLM engines in one step, after which the run stops."""
    sync_tolerance: float = 0.0
    """Largest difference between engine and learner log-probs after a sync, above which the run
    stops: of the largest one where both compute in float32, else of the mean. 0: 1e-3 in float32,
    else 0.15. With int8, of the mean over trained rows."""
    sync_check_every: int = 0
    """Steps between probes of a vLLM engine after a sync; in the steps between, the rows that are
    trained on must give the learner the sampler's log-probs, or the run stops. It is probed at the
    start, after a restart and before every evaluation as well. 0: 10, or 1 where rows prove nothing
    (with `max_staleness`, ranks or rollout workers). With transformers, steps between checks of the
    copies that sample in another number format."""
    max_logp_gap: float = 0.0
    """Largest mean difference of sampler and learner log-probs, in nats per trained token before
    the first optimizer step (`learn/logp_gap_mean`), above which the run stops; 0: any."""
    max_staleness: int = 0
    """Batches that are sampled ahead while the learner works, so that each comes from weights that
    are that many steps older: 0, or 1 with a split vLLM engine, a server or rollout workers.
    Rollout workers (`backend` ray) and runs that are not `deterministic` take more, which evens out
    slow steps of either side."""
    deterministic: bool = True
    """Batches in canonical order, so that runs repeat; off, requests leave as they come, which
    keeps a vLLM engine fuller, and with `max_staleness` it gets new weights between the turns of
    episodes: every call records its version, at most `max_staleness` steps old."""


@dataclass(frozen=True)
class LengthOptions:
    """Token budgets, of training runs and warm starts."""

    max_tokens: int | None = None
    """Most tokens in one reply. None: 64 for the pocket models and others of less than 10 million
    weights, 4096 for models that think, else what the task takes (generated mathematics 128 to 256,
    GSM8K and functions 512, MATH and contests 1024); never more than the generation config says or
    half of the context. Printed at the start."""
    max_prompt: int = 0
    """Most tokens in one prompt, beyond which what is quoted in it is shortened (the problem stays)
    and counted; 0: what the model's context holds."""
    lengths: tuple[str, ...] = ()
    """Budgets of single roles, as ROLE=PROMPT/REPLY in tokens; either number may be left out."""


@dataclass(frozen=True)
class SamplingOptions(LengthOptions):
    """Problems, episodes and sampling of an iteration."""

    problems: int = 16
    """Problems in a batch of rollouts."""
    samples: int | None = None
    """Episodes per problem: the group that advantages compare. None: the algorithm's."""
    candidates: int | None = None
    """Replies sampled at every decision by algorithms that branch; None: the algorithm's."""
    candidate_value: Value = "now"
    """Value of a candidate: `now`, alpha * team + local, which are known at once; `rollout`, the
    outcome of playing on from it."""
    value_rollouts: int = 1
    """Times that an episode is played on from a candidate, with `candidate_value` rollout."""
    select: Select = "best"
    """Candidate that the episode goes on from."""
    joint: Joint = "aligned"
    """Pairing of the replies of a phase to joint actions, for algorithms on joint nodes."""
    leaves: int = 16
    """Most finished episodes of one tree of joint nodes."""
    temperature: float | None = None
    """Sampling temperature of training rollouts. None: 1, or with a `correction` that of the
    model's generation config."""
    top_p: float | None = None
    """Nucleus of training rollouts; below 1 a `correction` is needed. None: as `temperature`."""
    top_k: int | None = None
    """Most likely tokens kept in training rollouts; above 0 a `correction` is needed. None: 0, or
    with a `correction` that of the model's generation config."""
    refill: int = 0
    """Times that the problems of groups without variance are replaced by fresh ones (DAPO's dynamic
    sampling); 0: all groups are used as they came."""
    difficulty: str = ""
    """A file of pass rates that `flowzoo filter` wrote: only problems within `pass_rates` are
    trained on."""
    pass_rates: tuple[float, float] = (0.1, 0.9)
    """Lowest and highest pass rate of problems taken from `difficulty`."""
    curriculum: tuple[str, ...] = ()
    """Settings of the task that hold from a step on, as STEP:NAME=VALUE, e.g. 50:level=2."""
    split: str = "train"
    """Split that training problems come from."""
    length_cache: int = 0
    """Tokens before the limit over which the punishment of `truncated` shape grows from 0 to
    `truncation_penalty`; 0: a fifth of the limit, as in DAPO."""
    reward: str = ""
    """Function that scores training episodes in place of the task's grader, as module:function or
    file.py:function, or judge:FILE.toml for a rubric of named, weighted criteria; evaluations keep
    the task's own scores."""
    judge: str = ""
    """Policy that answers what a workflow or a rubric asks a judge: openai:MODEL@URL, hf:PATH,
    vllm:PATH@URL or scripted:P. It is never trained, answers greedily, and its replies are kept in
    the cache folder."""


@dataclass(frozen=True)
class HeldOutOptions:
    """Held-out problems and checkpoints, of training runs and warm starts."""

    eval_split: str = "validation"
    """Split that evaluations use."""
    eval_temperature: float = 1.0
    """Sampling temperature of evaluations; 0 is greedy."""
    keep_last: int = 2
    """Newest checkpoints that stay, beside the best by held-out accuracy."""


@dataclass(frozen=True)
class EvaluationOptions(HeldOutOptions):
    """Evaluations, checkpoints and boards."""

    eval_problems: int | None = None
    """Distinct held-out problems of each evaluation; None: by the model, 500 of a pocket model and
    100 of others, which take minutes on a CPU."""
    eval_samples: int = 1
    """Episodes of every held-out problem in an evaluation. Above 1 the accuracy is their mean
    (avg@k), and pass@1, pass@2, pass@4 … pass@k are measured, with intervals over problems."""
    eval_every: int = 0
    """Steps between evaluations; step 0 and the last step are always evaluated. 0: a fifth of
    `steps`, at most 10, and 20 from 100 steps on, so that there are six evaluations or more (a
    finding on cliffs needs five). The number used is in run.json, and a continued run keeps it."""
    checkpoint_every: int = 0
    """Steps between checkpoints. 0: as `eval_every`, so that the best evaluation has a checkpoint,
    and 10 at most; with `eval_at`, 10, and every step that is evaluated."""
    keep_every: int = 0
    """Checkpoints of steps divisible by this stay too; 0: none."""
    transcripts_every: int = 10
    """Steps between saved training transcripts; evaluations are always saved."""
    wandb: str = ""
    """Project on Weights & Biases that the metrics are sent to as well; empty: none. Needs
    `flowzoo[wandb]` and a login, or WANDB_MODE=offline in the environment."""
    trackio: str = ""
    """Project in Trackio that the metrics are written to as well; empty: none. Needs
    `flowzoo[trackio]`; `trackio show` opens it."""
    swap_probe: bool = False
    """After the last step, evaluate with the policies of every two roles exchanged: roles that have
    specialized fall."""
    eval_at: tuple[int, ...] = ()
    """Steps that are evaluated, e.g. 1 2 5, in place of every `eval_every`-th; step 0 and the last
    step are always evaluated."""


@dataclass(frozen=True)
class LossOptions(RowOptions):
    """Loss that is minimized."""

    algorithm: str = "grpo"
    """One of `flowzoo algorithms`: grpo, dr_mas, at_grpo …"""
    advantage: tuple[str, ...] = ()
    """Choices of the advantage that differ from the algorithm's, as NAME=VALUE."""
    gamma: float = 1.0
    """Discount per turn, for algorithms that judge a call by its return to go."""
    clip_low: float | None = None
    """The probability ratio is clipped at 1 - clip_low; None: the algorithm's."""
    clip_high: float | None = None
    """… and at 1 + clip_high."""
    aggregation: Aggregation | None = None
    """Aggregation of tokens to a loss; None: the algorithm's."""
    kl: float | None = None
    """Weight of the KL divergence from the starting weights; None: the algorithm's."""
    role_kl: tuple[str, ...] = ()
    """Weights of single roles that differ from `kl`, as ROLE=WEIGHT."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    role_weights: tuple[str, ...] = ()
    """Weights of single roles' rows in the loss, as ROLE=WEIGHT; the others' are 1. The weight of a
    policy's only role does nothing under AdamW, whose steps do not depend on the scale of the loss:
    give it a lower learning rate (`role_lr`)."""
    kl_estimate: KlEstimate = "corrected"
    """Estimator of `kl` from sampled tokens: `corrected` weighs k3 by the probability ratio to
    the sampler, `plain` does not."""
    dual_clip: float | None = None
    """Most that a token with a negative advantage loses, in units of that advantage (dual clip); 0:
    any; None: the algorithm's."""
    advantage_function: str = ""
    """Function that has the last word on advantages, as module:function or file.py:function."""
    loss: str = ""
    """Function in place of the clipped objective, as module:function or file.py:function."""


@dataclass(frozen=True)
class OptimizerOptions(UpdateOptions, ComputeOptions):
    """Schedule, optimizer steps and measurements of the learner."""

    lr: float | None = None
    """Peak learning rate (AdamW). None: by the model: 2e-4 for the pocket models and others of less
    than 10 million weights, 5e-5 below 100 million, 5e-6 below 400 million, else 1e-6; with
    `lora_rank` 2e-4, 2e-4, 1e-4, below a billion 5e-5, else 1e-5. Printed at the start."""
    schedule_steps: int = 0
    """Ticks of the schedule's clock after which linear and cosine stay at `min_lr`; 0: the `steps`
    that the run begins with. A run that is continued beyond them must set it."""
    updates: int = 1
    """Optimizer steps per policy and iteration, for any number of rows; 0: one for every
    `rows_per_update` rows."""
    probe_every: int = 10
    """Steps between probes of how parallel agents of one role add up, the first step included; 0:
    none. A probe takes one to three times as long as the update itself."""
    policy_lr: tuple[str, ...] = ()
    """Learning rates of single policies that differ from `lr`, as POLICY=RATE."""
    role_lr: tuple[str, ...] = ()
    """Learning rates of single roles that differ from `lr`, as ROLE=RATE, for policies
    of one role. Within a policy of several roles it takes sgd."""


@dataclass(frozen=True)
class ScaleOptions:
    """Processes that play, learn and grade."""

    backend: BackendName = "local"
    """`local`: in this process. `torchrun`: by several processes (ranks) that share rollouts and
    updates, on one machine or, started with torchrun, on several. `ray`: by this process, which
    learns unless `learner_workers` do, and by workers of a Ray cluster, which play. See
    docs/scale.md."""
    ranks: int = 0
    """Processes that are started on this machine with `backend` torchrun; 0: none are started,
    since torchrun has started this one."""
    shard: Sharding = "none"
    """With `backend` torchrun, or `learner_workers`: `none`, every rank has the whole model, and
    gradients are added up; `full`, weights, gradients and optimizer are spread over the ranks
    (FSDP2), for which the engine must have separate weights (rollout workers do; with torchrun,
    vllm with `placement` split)."""
    shard_jobs: int | None = None
    """Episodes that are played as one batch; 0: all of a step. The log-probs of a reply depend on
    its batch in their last bits, so this is part of the run's numbers. None: 0 with `backend`
    local, else 16; a run that is continued keeps its own."""
    ray_address: str = ""
    """The cluster of `backend` ray: HOST:PORT of its head, or `local`, which starts one on this
    machine for as long as the run lasts."""
    rollout_workers: int = 0
    """Workers that play with `backend` ray; each takes `threads` cores, or one, and has engines of
    its own: with `engine` vllm (`placement` split) one per base of adapters, or one per policy."""
    rollout_gpus: float = 0.0
    """GPUs of a rollout worker, which may share one (0.5); 0: it plays on the CPU. A worker's vLLM
    engines share one GPU, or have equal numbers of GPUs, over which each is spread (tensor
    parallel)."""
    learner_workers: int | tuple[str, ...] = 0
    """Workers of `backend` ray that learn; each takes `threads` cores, or one. A number: all
    policies take turns as ranks of one learner group. POLICY=NUMBER for every policy that is
    trained (generator=4 evaluator=2): a learner group for each, and they learn at the same time;
    adapters of one base share one learner group, for which they give the same number. 0: the
    process that runs the loop learns."""
    learner_gpus: float = 0.0
    """GPUs of every learner worker: 1, or 0 for the CPU; one alone in its learner group may share
    one (0.5)."""
    graders: int = 0
    """Actors of `backend` ray that grade for the rollout workers, on CPUs of whichever nodes have
    them; each takes `threads` cores, or one. 0: every rollout worker grades what it plays. For
    slow grading (programs, hard mathematics) where nodes with GPUs have few cores."""
