"""The stages of a run and the run as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from groupwise.config.algorithm import AlgoConfig
from groupwise.config.sections import Section


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
    external_lib: tuple[str, ...] = ()
    """Python files or modules to import before anything else: the estimators, losses and models they register can be
    named in the settings."""


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

    lr: float = 3e-4
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
    total_training_steps: int = 900
    """Batches to train on."""
    seed: int = 0
    """Of the prompts, of every answer, and of whatever else is drawn."""
    save_freq: int = 100
    """Steps from one checkpoint to the next."""
    test_freq: int = 50
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
