"""Facts about KL estimators by exact enumeration: a softmax policy over four tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from functions.training.kl import k1, k2, k3, kl_loss

REFERENCE = torch.log_softmax(torch.tensor([0.3, -1.0, 0.7, 0.1], dtype=torch.float64), -1)


def policy() -> Tensor:
    return torch.tensor([0.9, 0.2, -0.4, -1.1], dtype=torch.float64, requires_grad=True)


def exact_gradient(forward: bool) -> Tensor:
    """Of KL(pi || ref), or of KL(ref || pi), with respect to the logits."""
    logits = policy()
    log_pi = torch.log_softmax(logits, -1)
    if forward:
        kl = (log_pi.exp() * (log_pi - REFERENCE)).sum()
    else:
        kl = (REFERENCE.exp() * (REFERENCE - log_pi)).sum()
    kl.backward()
    assert logits.grad is not None
    return logits.grad


def on_policy_gradient(estimator: str) -> Tensor:
    """Expected gradient of the loss term: samples come from pi, gradients flow through log pi."""
    logits = policy()
    log_pi = torch.log_softmax(logits, -1)
    terms = kl_loss(estimator, log_pi, REFERENCE)  # type: ignore[arg-type]
    (log_pi.detach().exp() * terms).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_values() -> None:
    log_pi = torch.log_softmax(policy(), -1).detach()
    p = log_pi.exp()
    kl = float((p * (log_pi - REFERENCE)).sum())
    assert float((p * k1(log_pi, REFERENCE)).sum()) == pytest.approx(kl)
    assert float((p * k3(log_pi, REFERENCE)).sum()) == pytest.approx(kl)
    assert float((p * k2(log_pi, REFERENCE)).sum()) != pytest.approx(kl, rel=0.01)  # biased
    assert bool((k3(log_pi, REFERENCE) >= 0).all())


def test_k1_differentiated_plainly_would_do_nothing() -> None:
    logits = policy()
    log_pi = torch.log_softmax(logits, -1)
    (log_pi.detach().exp() * k1(log_pi, REFERENCE)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-12


@pytest.mark.parametrize("estimator", ["k1", "k2"])
def test_k1_and_k2_as_loss_descend_the_reverse_kl(estimator: str) -> None:
    torch.testing.assert_close(on_policy_gradient(estimator), exact_gradient(forward=True))


def test_k3_as_loss_descends_the_other_kl() -> None:
    torch.testing.assert_close(on_policy_gradient("k3"), exact_gradient(forward=False))
    assert not torch.allclose(on_policy_gradient("k3"), exact_gradient(forward=True), rtol=0.05)


def test_straight_through_k1_keeps_its_value() -> None:
    log_pi = torch.log_softmax(policy(), -1)
    torch.testing.assert_close(kl_loss("k1", log_pi, REFERENCE), k1(log_pi, REFERENCE))


@pytest.mark.parametrize(("estimator", "right"), [(k1, True), (k2, False), (k3, False)])
def test_in_the_reward_only_k1_has_the_gradient_of_the_kl(estimator: object, right: bool) -> None:
    assert callable(estimator)
    logits = policy()
    log_pi = torch.log_softmax(logits, -1)
    p = log_pi.detach().exp()
    penalty = estimator(log_pi.detach(), REFERENCE)
    (p * penalty * log_pi).sum().backward()  # score function: minimise E[penalty]
    assert logits.grad is not None
    assert torch.allclose(logits.grad, exact_gradient(forward=True)) is right


def test_an_absurd_token_stays_finite() -> None:
    far = torch.tensor([-300.0], requires_grad=True)
    value = kl_loss("k3", far, torch.tensor([-1.0]))
    value.backward()
    assert bool(value.isfinite()) and far.grad is not None and bool(far.grad.isfinite())
