import pytest

from groupwise.config import OptimConfig
from groupwise.errors import UnknownNameError
from groupwise.update import learning_rate


def rates(total, **settings):
    config = OptimConfig(lr=1.0, **settings)
    return [learning_rate(config, step, total) for step in range(total)]


def test_linear_reaches_its_end_in_the_last_step():
    # From 1 to 0.2 in four equal parts of 0.2.
    assert rates(5, min_lr_ratio=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_is_halfway_in_the_middle():
    # (1 + cos(pi / 4)) / 2 = 0.853553; the middle of 1 and 0.2 is 0.6.
    falling = [1.0, 0.2 + 0.8 * 0.8535534, 0.6, 0.2 + 0.8 * 0.1464466, 0.2]
    assert rates(5, lr_scheduler_type="cosine", min_lr_ratio=0.2) == pytest.approx(falling)


def test_warm_up_rises_in_equal_parts_to_the_full_rate():
    assert rates(6, lr_warmup_steps=3, min_lr_ratio=0.0) == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0, 0.5, 0.0])
    assert rates(3, lr_warmup_steps=2, lr_scheduler_type="constant") == pytest.approx([0.5, 1.0, 1.0])


def test_beyond_the_run_the_rate_stays_where_it_ended():
    assert learning_rate(OptimConfig(lr=1.0, min_lr_ratio=0.1), 50, 10) == pytest.approx(0.1)
    assert rates(1) == [1.0]


def test_an_unknown_schedule_is_refused():
    with pytest.raises(UnknownNameError, match="nearest is 'cosine'"):
        learning_rate(OptimConfig(lr_scheduler_type="cosin"), 0, 10)
