from pathlib import Path

import pytest
import yaml

from rlhfless.errors import UserError
from simulator.hardware import GIB, load_catalog, show_usd


def facts_file(folder: Path, **sections: object) -> str:
    path = folder / "facts.yaml"
    path.write_text(yaml.safe_dump(sections))
    return str(path)


def problem(folder: Path, **sections: object) -> str:
    with pytest.raises(UserError) as raised:
        load_catalog([facts_file(folder, **sections)])
    return raised.value.detail


def test_every_built_in_fact_has_a_source_and_a_price_entry() -> None:
    catalog = load_catalog()
    for name, accelerator in catalog.accelerators.items():
        assert accelerator.source
        for operator in ("gemm", "decode_attention", "prefill_attention", "training"):
            assert getattr(accelerator, operator).source
        assert name in catalog.prices or name == "cpu-core"
    assert all(link.source for link in catalog.links.values())
    assert all(start.source for start in catalog.cold_starts.values())


@pytest.mark.parametrize("name", ["H100", "h100", "NVIDIA-H100-80GB-HBM3", "H100-80GB"])
def test_accelerators_go_by_their_aliases_too(name: str) -> None:
    assert load_catalog().accelerator_name(name) == "H100"


def test_datasheet_numbers_come_in_si_units() -> None:
    accelerator = load_catalog().accelerator("A100")
    assert accelerator.memory_bytes == 79.15 * GIB
    assert accelerator.bytes_per_s == 2039e9


def test_an_unknown_accelerator_is_answered_by_the_nearest() -> None:
    with pytest.raises(UserError, match="no accelerator H1000; did you mean H100"):
        load_catalog().accelerator("H1000")
    with pytest.raises(UserError, match="did you mean A100-80GB"):
        load_catalog().accelerator("A100-SXM4-80G")
    with pytest.raises(UserError, match="known: A100-40GB, A100-80GB"):
        load_catalog().accelerator("zzz")


def test_an_unknown_price_is_unknown_not_zero() -> None:
    catalog = load_catalog()
    price = catalog.price("L4")
    assert price is not None
    assert price.on_demand is None
    assert catalog.price("cpu-core") is None
    assert show_usd(None) == "unknown"
    assert show_usd(0.0) == "$0.00"


def test_a_range_of_prices_is_as_good_as_its_middle() -> None:
    price = load_catalog().price("H100")
    assert price is not None
    assert price.spot is not None
    assert price.spot.typical == pytest.approx(2.24)


def test_a_users_facts_change_the_fields_they_name_and_leave_the_rest(tmp_path: Path) -> None:
    before = load_catalog().accelerator("H100")
    path = facts_file(
        tmp_path,
        accelerators={
            "H100": {"memory_gib": 93.1, "gemm": {"compute": 0.7}},
            "H20": {"like": "H100", "tflops": {"bfloat16": 148}, "source": "datasheet"},
        },
        prices={"H20": {"lab": {"on_demand": 2, "spot": None, "date": "2026-11", "source": "x"}}},
    )
    catalog = load_catalog([path])
    after = catalog.accelerator("H100")
    assert (after.memory_gib, after.gemm.compute) == (93.1, 0.7)
    assert after.gemm.memory == before.gemm.memory
    assert after.tflops == before.tflops
    new = catalog.accelerator("h20")
    assert new.tflops["bfloat16"] == 148
    assert new.tflops["float8"] == before.tflops["float8"]
    assert new.aliases == ()
    price = catalog.price("H20", "lab")
    assert price is not None
    assert price.on_demand is not None
    assert price.on_demand.typical == 2
    assert catalog.price("H20", "elsewhere") is None


def test_a_zone_of_its_own_goes_before_any(tmp_path: Path) -> None:
    zone = {"on_demand": 5, "spot": 5, "date": "2026-11", "source": "x"}
    catalog = load_catalog([facts_file(tmp_path, prices={"H100": {"eu": zone}})])
    eu, other = catalog.price("H100", "eu"), catalog.price("H100", "us")
    assert eu is not None
    assert eu.spot is not None
    assert eu.spot.typical == 5
    assert other == load_catalog().price("H100")


def test_mistakes_are_named_with_their_place_and_the_right_name(tmp_path: Path) -> None:
    assert "no section accelerator; did you mean accelerators" in problem(tmp_path, accelerator={})
    wrong = problem(tmp_path, accelerators={"H100": {"memry_gib": 3}})
    assert "accelerators.H100.memry_gib: unknown field; did you mean memory_gib" in wrong
    wrong = problem(tmp_path, accelerators={"H100": {"gemm": {"compte": 0.5}}})
    assert "accelerators.H100.gemm.compte: unknown field; did you mean compute" in wrong
    wrong = problem(tmp_path, accelerators={"H100": {"gemm": {"compute": 1.5}}})
    assert "accelerators.H100.gemm.compute: input should be less than or equal to 1" in wrong
    wrong = problem(tmp_path, accelerators={"new": {"memory_gib": 3}})
    assert "accelerators.new.tflops: required" in wrong
    wrong = problem(tmp_path, accelerators={"new": {"like": "H10"}})
    assert "accelerators.new.like: there is no entry H10; did you mean H100" in wrong
    wrong = problem(tmp_path, accelerators={"H100": {"link": "nvlink9"}})
    assert "accelerators.H100.link: there is no link nvlink9; did you mean nvlink" in wrong
    negative = {"any": {"on_demand": -1, "date": "now", "source": "x"}}
    assert "prices.H100.any.on_demand" in problem(tmp_path, prices={"H100": negative})
    falling = {"any": {"on_demand": [3, 2], "date": "now", "source": "x"}}
    assert "low (3.0) is above high (2.0)" in problem(tmp_path, prices={"H100": falling})
    fine = {"any": {"on_demand": 3, "date": "now", "source": "x"}}
    assert "prices.H10: there is no accelerator H10" in problem(tmp_path, prices={"H10": fine})
    assert "links.nvlink3 must be a mapping" in problem(tmp_path, links={"nvlink3": 3})


def test_a_missing_facts_file_is_named_with_its_nearest(tmp_path: Path) -> None:
    facts_file(tmp_path)
    with pytest.raises(UserError, match=r"there is no facts file .*did you mean .*facts.yaml"):
        load_catalog([str(tmp_path / "fact.yaml")])


@pytest.mark.parametrize(
    ("profile", "weight_gb", "seen_s"),
    [("network_volume", 3.65, 59), ("network_volume", 23.6, 277), ("fresh_node", 54, 966)],
)
def test_cold_starts_that_were_seen_are_predicted(
    profile: str, weight_gb: float, seen_s: float
) -> None:
    start = load_catalog().cold_start(profile)
    assert start.seconds(weight_gb * 1e9, 5e9, engine=True) == pytest.approx(seen_s, rel=0.2)


def test_only_an_engine_compiles_and_captures_graphs() -> None:
    start = load_catalog().cold_start("warm_node")
    assert start.seconds(0, 1e9, engine=False) == 17.5
    assert start.seconds(4e9, 1e9, engine=False) == 17.5 + 4
    assert start.seconds(4e9, 9e9, engine=True) == 17.5 + 2 + 12 + 6
