"""Batches to test with: hand-made and drawn, and every outcome estimator with the options it needs."""

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from groupwise.advantages import CONVENTIONS, RunningBaseline, advantages_from_scores


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def at_the_end(scores, width=3, dtype=torch.float32):
    """Rewards [B, width] whose last column holds the scores."""
    rewards = torch.zeros(len(scores), width, dtype=dtype)
    rewards[:, -1] = torch.as_tensor(scores, dtype=torch.float64).to(dtype)
    return rewards


def same_bits(left, right):
    """Equal in value, dtype and shape, NaN equal to NaN; -0.0 counts as 0.0."""
    return (
        left.dtype == right.dtype
        and torch.equal(left.isnan(), right.isnan())
        and torch.equal(left.nan_to_num(), right.nan_to_num())
    )


class KeysOnly:
    """A batch like a TensorDict: `in` is refused, `.keys()` and item access work."""

    def __init__(self, fields):
        self._fields = dict(fields)

    def keys(self):
        return self._fields.keys()

    def __getitem__(self, key):
        return self._fields[key]

    def __setitem__(self, key, value):
        self._fields[key] = value

    def __contains__(self, key):
        raise NotImplementedError("a TensorDict does not take `in`")


@dataclass
class Data:
    """What `compute_advantage` takes."""

    batch: Any
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


# Steps of 1/64 keep every score and every difference exact; the decimals do not.
awkward = st.sampled_from([0.0, 1.0, -1.0, 0.1, 0.35, 0.7, 100.1, 1 / 3])
dyadic = st.integers(-640, 640).map(lambda n: n / 64)
coarse = st.integers(-3, 3).map(float)
scores_in_range = st.one_of(awkward, dyadic, coarse)


@dataclass
class Rows:
    """A batch of answers: a score, a second part of the reward and a length for each, and its prompt's label."""

    scores: list[float]
    second: list[float]
    lengths: list[int]
    labels: list[Any]

    def __len__(self):
        return len(self.scores)

    def pick(self, rows):
        return Rows(
            *([column[row] for row in rows] for column in (self.scores, self.second, self.lengths, self.labels))
        )

    def rows_of(self, label):
        return [row for row, other in enumerate(self.labels) if other == label]


@st.composite
def batches(draw, values=scores_in_range, min_size=2, min_groups=1, max_groups=4):
    """Groups of different sizes in mixed order; the first has at least three answers."""
    first = draw(st.integers(max(3, min_size), 6))
    sizes = [first, *draw(st.lists(st.integers(min_size, 5), min_size=min_groups - 1, max_size=max_groups - 1))]
    labels = draw(st.permutations([f"prompt {g}" for g, size in enumerate(sizes) for _ in range(size)]))
    count = len(labels)
    columns = [draw(st.lists(kind, min_size=count, max_size=count)) for kind in (values, coarse, st.integers(1, 9))]
    return Rows(*columns, list(labels))


@dataclass(frozen=True)
class Case:
    """An outcome estimator with its options, and what is true of it."""

    estimator: str
    options: dict[str, Any] = field(default_factory=dict)
    per_answer: tuple[str, ...] = ()
    is_per_group: bool = True
    """Its answers depend on their own group alone."""
    keeps_lone_scores: bool = False
    """An answer alone in its group keeps its raw score, so a shift of all scores shows."""

    def __call__(self, rows, scores=None, failed=None):
        options = dict(self.options)
        if "lengths" in self.per_answer:
            options["lengths"] = rows.lengths
        if "parts" in self.per_answer:
            options["parts"] = [rows.scores if scores is None else scores, rows.second]
        if self.estimator == "running_baseline":
            options["baseline"] = RunningBaseline()
        given = f64(rows.scores) if scores is None else scores
        return advantages_from_scores(given, rows.labels, self.estimator, failed=failed, **options)


CASES = {
    **{
        f"grpo, {name}": Case("grpo", {"convention": name}, keeps_lone_scores=row.singleton == "score")
        for name, row in CONVENTIONS.items()
    },
    "grpo without std": Case("grpo", {"norm_adv_by_std_in_grpo": False}, keeps_lone_scores=True),
    "grpo_vectorized": Case("grpo_vectorized", keeps_lone_scores=True),
    "dr_grpo": Case("dr_grpo"),
    "maxrl": Case("maxrl"),
    "rloo": Case("rloo", keeps_lone_scores=True),
    "rloo_vectorized": Case("rloo_vectorized", keeps_lone_scores=True),
    "opo": Case("opo", per_answer=("lengths",), keeps_lone_scores=True),
    "opo by answers": Case("opo", keeps_lone_scores=True),
    "gpg with alpha": Case("gpg", {"alpha": 1.5, "f_norm": 2.0}, keeps_lone_scores=True),
    "gpg": Case("gpg", is_per_group=False, keeps_lone_scores=True),
    "gdpo": Case("gdpo", {"weights": [1.0, 0.5]}, ("lengths", "parts"), False, keeps_lone_scores=True),
    "reinforce_plus_plus_baseline": Case(
        "reinforce_plus_plus_baseline", {}, ("lengths",), is_per_group=False, keeps_lone_scores=True
    ),
    "grpo_passk": Case("grpo_passk"),
    "pass_at_k": Case("pass_at_k", {"k": 2}),
    "pass_at_k without std": Case("pass_at_k", {"k": 2, "norm_adv_by_std_in_grpo": False}),
    "shrinkage": Case("shrinkage", is_per_group=False),
    "running_baseline": Case("running_baseline", is_per_group=False),
}
PER_GROUP = [name for name, case in CASES.items() if case.is_per_group]
BATCH_WIDE = [name for name, case in CASES.items() if not case.is_per_group]
