"""Gloo: by hand, and its calibration."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.replay.cluster import load_cluster
from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.fit import fit_machine, fitted_costs
from foretrace.replay.costs.collectives.gloo import GlooConstants, gloo_costs
from foretrace.replay.costs.collectives.price import price
from foretrace.replay.costs.collectives.shapes import KINDS

CPU = load_cluster("cpu-10g")
HOST = GlooConstants(call_us=10, round_us=5, host_gb_s=2, sum_gb_s=8)


@pytest.mark.parametrize(
    ("kind", "rounds", "moved", "added"),
    [
        ("all_reduce", 6, 1.5, 0.75),
        ("all_gather", 3, 0.75, 0),
        ("reduce_scatter", 6, 1.5, 0.75),
        ("broadcast", 2, 2, 0),
        ("reduce", 2, 2, 2),
        ("all_to_all", 3, 0.75, 0),
        ("send_recv", 1, 1, 0),
    ],
)
def test_four_processes_of_one_host(kind: str, rounds: int, moved: float, added: float) -> None:
    size = 8e6
    made = gloo_costs(Collectives.of(KINDS.index(kind), size, 4, 1), CPU, constants=HOST)
    by_hand = 10 + 5 * rounds + moved * size / 2e3 + added * size / 8e3
    assert made.time_us[0] == pytest.approx(by_hand)
    assert made.algorithm == ["Gloo"]


def test_hosts_go_at_the_speed_of_their_network() -> None:
    ops = Collectives.of(0, [1e3, 1e9], 4, 4)
    one, four = gloo_costs(Collectives.of(0, [1e3, 1e9], 4, 1), CPU), gloo_costs(ops, CPU)
    assert (four.time_us > one.time_us).all()
    assert four.time_us[1] >= 1.5e9 / 1.2e3  # 1.5 times the bytes through 10 Gbit/s at 96 %


def test_a_cpu_cluster_is_priced_and_calibrated_as_gloo() -> None:
    ops = Collectives.of(0, 2.0 ** np.arange(8, 27), 2, 1)
    assert set(price(ops, CPU).algorithm) == {"Gloo"}
    truth = 300 + ops.size_bytes / 700
    fit = fit_machine(ops, truth, CPU)
    assert np.median(np.abs(fitted_costs(ops, CPU, fit).time_us / truth - 1)) < 0.05
