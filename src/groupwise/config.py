"""The settings, one dataclass per stage. Standard library only: reading a config never loads torch.

`AlgoConfig` carries verl 0.9.1's field names and defaults, so that the `algorithm:` section of a verl YAML
file builds one as it stands (`AlgoConfig.from_mapping`). The fields at its end are ours.

The text under a field is its line in docs/configuration.md; scripts/write_settings.py writes it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from groupwise.errors import BadValueError
from groupwise.sections import Section, read

__all__ = [
    "ActorConfig",
    "AlgoConfig",
    "DataConfig",
    "FilterGroupsConfig",
    "KLControlConfig",
    "ModelConfig",
    "OptimConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "Section",
    "TrainerConfig",
    "read",
]


@dataclass(frozen=True)
class KLControlConfig(Section):
    """The coefficient of the KL penalty: `fixed`, or `adaptive` (https://arxiv.org/abs/1909.08593)."""

    type: str = "fixed"
    """fixed, or adaptive: it grows while the KL is above the target and shrinks below it."""
    kl_coef: float = 0.001
    """The weight of the penalty; where it starts, if adaptive."""
    horizon: int = 10000
    """Adaptive: the weight changes by at most a fifth over so many answers."""
    target_kl: float = 0.1
    """Adaptive: the KL to hold."""


@dataclass(frozen=True)
class FilterGroupsConfig(Section):
    """Dynamic sampling (DAPO): drop groups whose `metric` is the same for every answer and sample others."""

    enable: bool = False
    """True samples further prompts in place of groups without a signal."""
    metric: str | None = None
    """What is compared inside a group, in verl's names: score, seq_reward, acc, ..."""
    max_num_gen_batches: int = 0
    """Batches to sample at most before giving up; 0 is without a limit."""
    max_inflight_gen_batches: int = 1
    """verl's; batches sampled at the same time."""


@dataclass(frozen=True)
class AlgoConfig(Section):
    """How scores become advantages."""

    gamma: float = 1.0
    """Discount per token."""
    lam: float = 1.0
    """GAE's trade between bias (0) and variance (1)."""
    adv_estimator: str = "gae"
    """A name in the registry of `groupwise.advantages`. verl's default is kept; a training run's own default is
    grpo."""
    norm_adv_by_std_in_grpo: bool = True
    """False switches the division by the group's standard deviation off in every estimator that has one."""
    use_kl_in_reward: bool = False
    """True takes the KL to the reference policy off the reward instead of adding it to the loss."""
    kl_penalty: str = "kl"
    """The KL estimator for that: kl, abs, mse or low_var_kl, with a + behind for the unbiased gradient."""
    kl_ctrl: KLControlConfig = field(default_factory=KLControlConfig)
    use_pf_ppo: bool = False
    """verl's; refused here: it resamples the batch behind the back of the groups."""
    pf_ppo: Mapping[str, Any] = field(default_factory=dict)
    """verl's, for `use_pf_ppo`."""
    filter_groups: FilterGroupsConfig | None = None
    rollout_correction: Mapping[str, Any] | None = None
    """verl's; for rollouts from another engine than the one that is trained."""
    gdpo_reward_keys: tuple[str, ...] | None = None
    """The parts of the reward that GDPO normalises apart, as named by the reward function."""
    gdpo_reward_weights: tuple[float, ...] | None = None
    """One weight per key; None weighs them alike."""

    epsilon: float | None = None
    """Added to the standard deviation; None is the estimator's own (1e-6 where verl has 1e-6)."""
    convention: str = "verl"
    """Whose GRPO: a row of `groupwise.advantages.CONVENTIONS`."""
    exclude_empty: bool = False
    """Leave answers without a single response token out of their group's statistics (verl keeps them in)."""
    k: int = 2
    """The k of the estimator `pass_at_k`."""

    def __post_init__(self) -> None:
        sections: dict[str, type[Section]] = {"kl_ctrl": KLControlConfig, "filter_groups": FilterGroupsConfig}
        for name, section in sections.items():
            given = getattr(self, name)
            if given is not None and not isinstance(given, section):
                object.__setattr__(self, name, section.from_mapping(given))
        for name in ("gdpo_reward_keys", "gdpo_reward_weights"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 <= self.lam <= 1.0:
            raise BadValueError(
                f"gamma={self.gamma}, lam={self.lam}: both are factors between 0 and 1; "
                "1.0 is no discounting and is what outcome rewards want"
            )


@dataclass(frozen=True)
class ModelConfig(Section):
    """The policy: any causal language model that transformers loads."""

    path: str = "embedded"
    """A folder, a hub id, a .gguf file, or "embedded": the small model that comes with the package."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU where there is one."""
    dtype: str = "auto"
    """float32, bfloat16 or float64; auto takes bfloat16 on a GPU and float32 elsewhere."""
    compile: bool = True
    """On a GPU, compile the model's layers: half a minute once, then steps twice as fast."""
    enable_gradient_checkpointing: bool = False
    """Compute the layers again in the backward pass and keep only what goes into them: less memory, a third slower."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Where prompts come from: a built-in task, or parquet and jsonl files."""

    task: str = "sums"
    """A row of `groupwise.tasks.TASKS`; not looked at where `train_files` are given."""
    difficulty: int = 2
    """How hard the built-in task is; what the number means is the task's own (digits, for sums)."""
    train_files: tuple[str, ...] = ()
    """Parquet or jsonl files to train on; none takes the built-in task."""
    val_files: tuple[str, ...] = ()
    """Files to evaluate on; none takes held-out questions of the built-in task, and with `train_files` nothing."""
    train_batch_size: int = 32
    """Prompts per step."""
    val_size: int = 256
    """Held-out prompts per evaluation, at most."""
    val_n: int = 4
    """Answers sampled per held-out prompt, for mean@n, pass@k and maj@n; 1 looks at the greedy answer alone."""
    max_prompt_length: int = 1024
    """Tokens; a longer prompt is refused before training starts."""
    max_response_length: int = 16
    """Tokens, the end-of-sequence token included."""
    shuffle: bool = True
    """Every pass through `train_files` in an order of its own; False keeps the order of the files."""
    max_bad_rows: float = 0.05
    """Share of unreadable rows in the data files above which a run is refused."""


@dataclass(frozen=True)
class RolloutConfig(Section):
    """How answers are sampled."""

    n: int = 16
    """Answers per prompt: the size of a group."""
    temperature: float = 1.0
    """Of the sampling, and of the log-probabilities that are trained."""
    top_p: float = 1.0
    """Keep the likeliest tokens that together have this probability; 1 keeps every token."""
    top_k: int = 0
    """0 keeps every token."""
    max_num_seqs: int = 512
    """Answers decoded at the same time; the others wait for a free row."""
    gpu_memory_utilization: float = 0.4
    """Share of a GPU's memory that the keys and values of prompts and answers may take."""


@dataclass(frozen=True)
class RewardConfig(Section):
    """What an answer is worth."""

    function: str | None = None
    """`path/to/file.py:name`, in verl's or TRL's signature; None is the task's own."""


@dataclass(frozen=True)
class OptimConfig(Section):
    """AdamW and its schedule."""

    lr: float = 2e-4
    """The highest learning rate of the run."""
    weight_decay: float = 0.0
    """AdamW's."""
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's."""
    lr_warmup_steps: int = 0
    """Steps over which the rate rises to `lr`."""
    lr_scheduler_type: str = "linear"
    """constant, linear or cosine: from lr to `min_lr_ratio` of it over the run."""
    min_lr_ratio: float = 0.1
    """What is left of `lr` in the last step."""
    master_weights: bool = True
    """Keep float32 weights and moments beside a model of lower precision. Without them an update smaller than the
    step between two bfloat16 numbers, a 256th of the weight, is lost."""


@dataclass(frozen=True)
class ActorConfig(Section):
    """Advantages to a loss, and the loss to steps of the optimiser. A field left at None is the recipe's."""

    recipe: str = "grpo"
    """A row of `groupwise.objectives.RECIPES`."""
    loss_mode: str | None = None
    """The surrogate by verl's name (vanilla, gspo, cispo, ...), over the recipe's."""
    loss_agg_mode: str | None = None
    """How token losses become one number: token-mean, token-sum, seq-mean-token-sum, seq-mean-token-sum-norm,
    seq-mean-token-mean or prompt-mean."""
    loss_scale_factor: int | None = None
    """The length that `seq-mean-token-sum-norm` divides by; None is the longest answer the run allows."""
    clip_ratio: float | None = None
    """Both bounds at once, for the one that is not given apart."""
    clip_ratio_low: float | None = None
    """How far the ratio may fall below 1."""
    clip_ratio_high: float | None = None
    """How far the ratio may rise above 1."""
    clip_ratio_c: float | None = None
    """Dual clip: the bound on the ratio where the advantage is negative."""
    tau_pos: float | None = None
    """SAPO: how sharp the gate is where the advantage is positive."""
    tau_neg: float | None = None
    """SAPO: the same where the advantage is negative."""
    clip_cov_ratio: float | None = None
    """Clip-Cov: the share of tokens that lose their gradient, of those with a covariance between lb and ub."""
    clip_cov_lb: float | None = None
    """Clip-Cov: the lower bound."""
    clip_cov_ub: float | None = None
    """Clip-Cov: the upper bound."""
    kl_cov_ratio: float | None = None
    """KL-Cov: the share of tokens, highest covariance first, that get a KL penalty."""
    ppo_kl_coef: float | None = None
    """KL-Cov: the weight of the penalty."""
    dro_beta: float | None = None
    """DRO: the weight of the squared log-ratio; it has no default."""
    use_kl_loss: bool = False
    """A KL penalty in the loss. The reference is a frozen copy of the starting policy, kept where a KL coefficient,
    here or in `algorithm.kl_ctrl`, is not 0."""
    kl_loss_coef: float = 0.001
    """Its weight."""
    kl_loss_type: str = "low_var_kl"
    """Its estimator: kl, abs, mse or low_var_kl, with a + behind for the unbiased gradient."""
    kl_loss_target: float | None = None
    """Steers `kl_loss_coef` from its first value so that the KL comes to this; None leaves it alone."""
    kl_loss_horizon: int = 10000
    """How fast `kl_loss_target` steers: answers after which the coefficient may have changed by a fifth."""
    ref_model_sync_steps: int | None = None
    """Every so many steps the policy as it is becomes the reference; None keeps the starting policy."""
    entropy_coeff: float = 0.0
    """The weight of an entropy bonus."""
    ppo_epochs: int = 1
    """Passes over a batch."""
    ppo_mini_batch_size: int | None = None
    """Prompts per optimiser step; None takes the whole batch in one step."""
    micro_batch_tokens: int = 16384
    """Tokens per forward and backward pass; the loss and the gradient do not depend on it."""
    grad_clip: float = 1.0
    """The largest norm of a gradient; a larger one is scaled down to it."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    @property
    def kl_in_loss(self) -> bool:
        """The loss has a KL term: it is asked for, and weighs something."""
        return self.use_kl_loss and self.kl_loss_coef != 0


@dataclass(frozen=True)
class TrainerConfig(Section):
    """The run: how long, where, how often it looks and saves."""

    run_dir: str | None = None
    """The run's folder; None makes a fresh one under runs/."""
    total_training_steps: int = 100
    """Batches to train on."""
    seed: int = 0
    """Of the prompts, of every answer, and of whatever else is drawn."""
    save_freq: int = 20
    """Steps from one checkpoint to the next."""
    test_freq: int = 10
    """Steps from one evaluation to the next."""
    max_ckpt_to_keep: int = 2
    """Checkpoints kept; older ones are removed."""
    num_threads: int | None = None
    """CPU threads; None takes torch's choice. Part of what makes a run repeatable."""
    max_bad_steps: int = 3
    """Steps in a row with a loss or gradient that is not finite, after which the run stops."""


@dataclass(frozen=True)
class RunConfig(Section):
    """Everything a run is made of, stage by stage in the order of the flow."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    algorithm: AlgoConfig = field(default_factory=lambda: AlgoConfig(adv_estimator="grpo"))
    actor: ActorConfig = field(default_factory=ActorConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
