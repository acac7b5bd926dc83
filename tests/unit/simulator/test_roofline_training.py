from functools import cache

import pytest

from rlhfless.errors import UserError
from simulator.hardware import GIB, Catalog, load_catalog
from simulator.model_shape import load_shape
from simulator.roofline import (
    Layout,
    TrainingCost,
    check_fits,
    delta_bytes,
    fabric_of,
    kv_blocks,
    kv_bytes,
    smallest_tensor_parallel,
    transfer_s,
    weights_bytes_per_accelerator,
)
from simulator.roofline.published import comparisons

TOKENS, LENGTH = 2**20, 2048


@cache
def catalog() -> Catalog:
    return load_catalog()


def training(
    layout: Layout, model: str = "Llama-3.1-8B", accelerator: str = "H100", per_node: int = 8
) -> TrainingCost:
    found = catalog().accelerator(accelerator)
    fabric = fabric_of(catalog(), found, per_node)
    return TrainingCost(load_shape(model), found, fabric, layout)


def seconds(layout: Layout, model: str = "Llama-3.1-8B", accelerator: str = "H100") -> float:
    return training(layout, model, accelerator).step(TOKENS, TOKENS * LENGTH / 2).total_s


def mfu(layout: Layout, model: str, accelerator: str) -> float:
    """6 N a token over the peak."""
    shape, peak = load_shape(model), catalog().accelerator(accelerator).tflops["bfloat16"] * 1e12
    used = 6 * shape.active_parameters * TOKENS
    return used / (seconds(layout, model, accelerator) * layout.accelerators * peak)


def test_published_training_throughput_is_predicted() -> None:
    runs = [each for each in comparisons(catalog()) if each.kind == "training"]
    assert {each.what: each.error for each in runs if abs(each.error) > 0.2} == {}
    assert sum(abs(each.error) for each in runs) / len(runs) < 0.12


def test_reinforcement_learning_with_fsdp_reaches_the_usual_share_of_the_peak() -> None:
    assert 0.30 < mfu(Layout(data=8), "Llama-3.1-8B", "H100") < 0.39
    assert mfu(Layout(data=16), "Qwen2.5-7B", "L40S") < mfu(Layout(data=8), "Qwen2.5-7B", "H100")


def test_parts_add_up_and_depend_on_what_they_should() -> None:
    plain = training(Layout(data=8)).step(TOKENS, TOKENS * LENGTH / 2)
    parts = (plain.compute_s, plain.tensor_parallel_s, plain.exposed_s, plain.bubble_s)
    assert plain.total_s == pytest.approx(sum(parts) + plain.update_s)
    assert (plain.tensor_parallel_s, plain.bubble_s) == (0, 0)
    longer = training(Layout(data=8)).step(TOKENS, TOKENS * 4 * LENGTH / 2)
    assert longer.compute_s > plain.compute_s
    assert longer.exposed_s == plain.exposed_s


def test_recomputation_costs_part_of_a_forward_pass() -> None:
    none, selective, full = (
        training(Layout(data=8, recompute=each)).step(TOKENS, 0).compute_s
        for each in ("none", "selective", "full")
    )
    assert selective / none == pytest.approx(7 / 6)
    assert full / none == pytest.approx(4 / 3)


def test_training_few_parameters_saves_their_gradients_and_updates() -> None:
    full, adapter = Layout(data=8), Layout(data=8, trainable=0.01)
    a, b = (training(each).step(TOKENS, 0) for each in (full, adapter))
    assert b.compute_s / a.compute_s == pytest.approx((2 + 2 + 2.02) / 8)
    assert b.update_s == pytest.approx(a.update_s / 100)
    assert training(adapter).memory().optimizer == pytest.approx(
        training(full).memory().optimizer / 100
    )


def test_a_pipeline_idles_less_with_more_microbatches() -> None:
    few = training(Layout(pipeline=4, microbatch_tokens=TOKENS // 4)).step(TOKENS, 0)
    many = training(Layout(pipeline=4, microbatch_tokens=TOKENS // 64)).step(TOKENS, 0)
    assert few.bubble_s / few.compute_s == pytest.approx(3 / 4, rel=0.1)
    assert many.bubble_s / many.compute_s == pytest.approx(3 / 64, rel=0.5)


def test_tensor_parallelism_is_in_the_way_more_without_nvlink() -> None:
    for accelerator, least, most in (("H100", 0.02, 0.4), ("L40S", 0.4, 4)):
        layout = Layout(data=2, tensor=4)
        step = training(layout, accelerator=accelerator).step(TOKENS, 0)
        assert least < step.tensor_parallel_s / step.compute_s < most


def test_a_slow_network_shows_when_microbatches_are_small() -> None:
    large, small = (
        training(Layout(data=16, microbatch_tokens=tokens), "Qwen2.5-7B", "L40S").step(TOKENS, 0)
        for tokens in (16_384, 1024)
    )
    assert large.exposed_s < 0.1 * large.compute_s
    assert small.exposed_s > small.compute_s


def test_updates_each_take_their_share_of_tokens() -> None:
    one, four = (training(Layout(data=8)).step(TOKENS, 0, updates=n) for n in (1, 4))
    assert four.compute_s == pytest.approx(one.compute_s)
    assert four.update_s == pytest.approx(4 * one.update_s)


def test_a_forward_pass_is_a_quarter_of_a_recomputing_step() -> None:
    cost = training(Layout(data=8))
    step = cost.step(TOKENS, 0)
    assert cost.forward(TOKENS, 0) == pytest.approx(step.compute_s / 4, rel=0.01)


def test_memory_is_sharded_and_recomputation_saves_activations() -> None:
    one, eight = training(Layout()).memory(), training(Layout(data=8)).memory()
    shape = load_shape("Llama-3.1-8B")
    assert one.weights + one.gradients + one.optimizer == 18 * shape.parameters
    assert eight.optimizer == one.optimizer / 8
    assert one.gathered == 0
    assert one.total > catalog().accelerator("H100").memory_bytes > eight.total
    none, full = (training(Layout(data=8, recompute=r)).memory() for r in ("none", "full"))
    assert none.activations > 5 * full.activations
    small = training(Layout(data=8)).memory(microbatch_tokens=1024)
    assert small.logits == full.logits / 8


def test_torchtitan_fits_in_memory_about_as_predicted() -> None:
    """8 H100, length 8192, local batch 2, selective recomputation: 77.0 GiB with compile."""
    layout = Layout(data=8, microbatch_tokens=16_384, recompute="selective")
    assert training(layout).memory().total / GIB == pytest.approx(77, rel=0.25)


def test_degrees_must_divide_the_model() -> None:
    with pytest.raises(UserError, match="pipeline 5 does not divide the 32 layers"):
        training(Layout(pipeline=5))
    with pytest.raises(UserError, match="tensor_parallel 3 does not divide"):
        training(Layout(tensor=3))


def test_blocks_for_keys_and_values_are_what_is_left() -> None:
    h100, l40s = catalog().accelerator("H100"), catalog().accelerator("L40S")
    assert kv_blocks(load_shape("Llama-3-8B"), h100) == pytest.approx(27_284, rel=0.03)
    assert kv_blocks(load_shape("Llama-3.1-70B"), l40s) == 0
    one, two = (kv_blocks(load_shape("Qwen2.5-7B"), l40s, degree) for degree in (1, 2))
    assert two > 2 * one
    replicated = kv_blocks(load_shape("Qwen2.5-3B"), h100, 4)
    halves = kv_blocks(load_shape("Qwen2.5-3B"), h100, 2)
    assert replicated == pytest.approx(halves, rel=0.1), "two heads: four ranks keep two copies"


def test_what_does_not_fit_is_answered_by_what_would() -> None:
    accelerators = catalog().accelerators
    big = load_shape("Llama-3.1-70B")

    def problem(name: str, degree: int, context: int, per_node: int) -> str:
        with pytest.raises(UserError) as raised:
            check_fits(big, name, accelerators, degree, context, per_node, "pools.gpu")
        assert raised.value.param == "pools.gpu"
        return raised.value.detail

    message = problem("L40S", 1, 4096, 8)
    assert message.startswith("pools.gpu: Llama-3.1-70B (131.4 GiB of weights in bfloat16)")
    assert message.endswith("does not fit on L40S; it fits with tensor_parallel 4")
    assert problem("L40S", 2, 4096, 2).endswith("B200 holds it")
    assert problem("B200", 1, 10**6, 1).endswith("it fits on 4 x H200")
    assert "has room for" in problem("B200", 1, 10**6, 1)
    assert problem("H100", 1, 10**9, 8).endswith("nothing known holds it")
    check_fits(big, "H100", accelerators, 4, 4096, 8, "pools.gpu")
    assert smallest_tensor_parallel(big, accelerators["H100"], 4096, 8) == 2
    assert smallest_tensor_parallel(big, accelerators["H100"], 65_536, 8) == 4
    assert smallest_tensor_parallel(big, accelerators["L4"], 4096, 4) is None


def test_transfers_are_bound_by_the_slowest_stretch() -> None:
    shape = load_shape("Qwen2.5-7B")
    assert transfer_s(1e9, 2e9, 5e8, 4e9, latency_s=0.1) == pytest.approx(2.1)
    assert transfer_s(0, 1.0, latency_s=3) == 0
    assert weights_bytes_per_accelerator(shape, 4) == shape.weight_bytes / 4
    assert kv_bytes(shape, 1000) == 1000 * 57_344
    assert delta_bytes(shape, 0.01) == pytest.approx(457e6, rel=0.01)
    assert delta_bytes(shape, 0.9) == shape.weight_bytes
