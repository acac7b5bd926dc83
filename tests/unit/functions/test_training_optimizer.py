from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

from functions.training.optimizer import AdamW, learning_rate
from rlhfless.errors import InternalError
from rlhfless.messages import Optimization

SETTINGS = Optimization(learning_rate=0.1, total_steps=10, grad_clip=None)


def settings(**changes: object) -> Optimization:
    return msgspec.structs.replace(SETTINGS, **changes)


def parameters() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {"w": nn.Parameter(torch.randn(3, 2)), "b": nn.Parameter(torch.randn(3))}


def test_warm_up_never_starts_at_zero_and_ends_at_the_peak() -> None:
    rates = [learning_rate(settings(warmup_steps=3), call, 1.0) for call in range(5)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1])


def test_schedules() -> None:
    linear, cosine = settings(schedule="linear"), settings(schedule="cosine", warmup_steps=2)
    assert [learning_rate(linear, c, 2.0) for c in (0, 5, 9, 10, 99)] == pytest.approx(
        [2, 1, 0.2, 0, 0]
    )
    assert [learning_rate(cosine, c, 2.0) for c in (2, 6, 10)] == pytest.approx([2, 1, 0])


def test_first_step_by_hand() -> None:
    """Adam's first step is the rate times the sign of the gradient; decay shrinks matrices only."""
    own = parameters()
    before = {name: p.detach().clone() for name, p in own.items()}
    for p in own.values():
        p.grad = torch.full_like(p, -3.0)
    norm = AdamW(own).step(settings(weight_decay=0.5), 0.1)
    assert float(norm) == pytest.approx(3 * 9**0.5)
    torch.testing.assert_close(own["w"].data, before["w"] * (1 - 0.1 * 0.5) + 0.1)
    torch.testing.assert_close(own["b"].data, before["b"] + 0.1)
    assert own["w"].grad is None


def test_clipping_bounds_the_norm() -> None:
    own = parameters()
    optimizer = AdamW(own)
    for p in own.values():
        p.grad = torch.full_like(p, 2.0)
    assert float(optimizer.step(settings(grad_clip=0.6), 0.1)) == pytest.approx(6)
    assert float(optimizer.state()["exp_avg/b"][0]) == pytest.approx(0.1 * 2.0 * 0.1, rel=1e-4)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    own = parameters()
    before = own["w"].detach().clone()
    own["w"].grad = torch.full_like(own["w"], torch.nan)
    with pytest.raises(FloatingPointError):
        AdamW(own).step(SETTINGS, 0.1)
    torch.testing.assert_close(own["w"].data, before)


def test_state_moves_to_another_optimizer() -> None:
    def advance(own: dict[str, nn.Parameter], optimizer: AdamW, seed: int) -> None:
        torch.manual_seed(seed)
        for p in own.values():
            p.grad = torch.randn_like(p)
        optimizer.step(SETTINGS, 0.1)

    own = parameters()
    optimizer = AdamW(own)
    assert optimizer.state() == {}
    for seed in range(3):
        advance(own, optimizer, seed)
    state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    other = {name: nn.Parameter(p.detach().clone()) for name, p in own.items()}
    resumed = AdamW(other)
    resumed.load_state(state)
    advance(own, optimizer, 9)
    advance(other, resumed, 9)
    for name, parameter in own.items():
        assert torch.equal(parameter, other[name])


def test_a_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InternalError, match="does not fit w"):
        AdamW(parameters()).load_state(
            {f"{key}/w": torch.zeros(1) for key in ("step", "exp_avg", "exp_avg_sq")}
        )
