"""From recorded kernels to estimates: joins, decoding, origins, retiming."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.replay.costs import literal_sets as sets

from foretrace.replay.cluster import load_gpu
from foretrace.replay.costs.device import gpu_of_device
from foretrace.replay.costs.efficiency import MEMORY_DEFAULTS
from foretrace.replay.costs.gemm import gemm_seconds
from foretrace.replay.costs.kernel import Origin, estimate, smooth
from foretrace.replay.costs.kernel_book import make_book, products, samples_of
from foretrace.replay.costs.kernel_class import KERNEL_CLASSES, is_matrix, kernel_classes, tile_of
from foretrace.replay.costs.kernel_table import KernelTable, read_kernels
from foretrace.replay.costs.kernel_work import Work, describe
from foretrace.replay.costs.retime import to_gpu, to_shapes
from foretrace.replay.costs.roofline import fit_memory, memory_seconds
from foretrace.traces.errors import LayoutError

A100 = load_gpu("a100")
GEMM_NAME = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"
HALF = '["c10::BFloat16", "c10::BFloat16"]'
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def work(name: str, operator: str, shapes: object, dtypes: object, inputs: object = ()) -> Work:
    text = (name, operator, json.dumps(shapes), json.dumps(dtypes), json.dumps(list(inputs)))
    return describe([text])[0]


def product(m: int, n: int, k: int) -> Work:
    return work(GEMM_NAME, "aten::mm", [[m, k], [k, n]], ["c10::BFloat16"] * 2)


@pytest.fixture
def kernels(tmp_path: Path) -> KernelTable:
    """Two products, one with shapes only on an outer operator, and a collective beside one."""
    rows = [
        sets.operator("aten::linear", 0, 90, "[[64, 32], [16, 32]]", HALF),
        sets.operator("aten::t", 2, 3, "[[16, 32]]", HALF),
        sets.operator("aten::mm", 10, 30, "[[64, 32], [32, 16]]", HALF),
        sets.operator("aten::bare", 42, 8, "", ""),
        sets.launch(20, 1),
        sets.launch(45, 2),
        sets.launch(300, 3),
        sets.kernel(GEMM_NAME, 1000, 50, correlation=1),
        sets.kernel(ADD, 2000, 60, correlation=2),
        sets.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1990, 100, correlation=3, stream=9),
    ]
    return read_kernels(sets.trace_set(tmp_path / "a.trace", rows), 0)


def test_kernels_join_the_innermost_operator_with_shapes(kernels: KernelTable) -> None:
    assert [kernels.operator.text(i) for i in range(3)] == ["aten::mm", "", "aten::linear"]
    assert kernels.shapes.text(0) == "[[64, 32], [32, 16]]"
    assert kernels.communicates.tolist() == [False, True, False]
    assert kernels.blocks.tolist() == [20, 20, 20]
    assert kernels.threads.tolist() == [128, 128, 128]
    assert len(set(kernels.identity().tolist())) == 3


def test_samples_leave_out_kernels_under_communication(kernels: KernelTable) -> None:
    samples = samples_of(kernels)
    assert samples.name == (GEMM_NAME,)
    assert samples.seconds[0] == pytest.approx(50e-9)
    assert products(samples, "bf16")[0].tolist() == [[1, 64, 16, 32]]


def test_external_ids_join_where_no_launch_was_recorded(tmp_path: Path) -> None:
    rows = [
        sets.operator("aten::mm", 10, 30, "[[8, 4], [4, 2]]", HALF, external_id=77),
        sets.kernel(GEMM_NAME, 1000, 50, external_id=77),
        sets.kernel(GEMM_NAME, 1100, 50, external_id=5),
    ]
    table = read_kernels(sets.trace_set(tmp_path / "b.trace", rows), 0)
    assert [table.operator.text(i) for i in range(2)] == ["aten::mm", ""]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (GEMM_NAME, "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1", "gemm"),
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>",
            "attention",
        ),
        ("void cutlass::device_kernel<dpsk::grouped_gemm::cuda::GemmKernel>", "grouped_gemm"),
        ("void at::native::elementwise_kernel<{lambda(int)#1}>", "elementwise"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", "copy"),
        ("cudnn_volta_scudnn_128x64_relu_small_nn_v1", "convolution"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>", "optimizer"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", "norm"),
        ("_no_such_word_", "other"),
    ],
)
def test_names_have_classes(name: str, kind: str) -> None:
    assert KERNEL_CLASSES[kernel_classes([name])[0]] == kind
    assert is_matrix([name])[0] == (kind in ("gemm", "attention", "grouped_gemm", "convolution"))


def test_tiles_are_read_out_of_names() -> None:
    assert tile_of(GEMM_NAME) == (128, 256)
    assert tile_of("sm90_xmma_gemm_bf16_tn_n_tilesize128x64x64_warpgroupsize1x1x1") == (128, 64)
    assert tile_of("Cijk_Alik_Bljk_B_UserArgs_MT256x128x64_MI16x16x1") == (256, 128)
    assert tile_of("attn_fwd") == (0, 0)


def test_products_are_decoded() -> None:
    batched = work(GEMM_NAME, "aten::baddbmm", [[7], [3, 8, 4], [3, 4, 5]], ["", "float", "float"])
    assert batched.sides.tolist() == [[3, 8, 5, 4]]
    assert batched.flops[0] == 2 * 3 * 8 * 5 * 4
    tf32 = work("cutlass_80_tensorop_s1688gemm_64x64", "aten::mm", [[8, 4], [4, 2]], ["float"] * 2)
    assert tf32.dtype.tolist() == ["tf32"]
    assert tf32.bytes[0] == 4 * (8 * 4 + 4 * 2 + 8 * 2)


def test_attention_is_decoded() -> None:
    name, half = "flash_fwd_kernel", ["c10::BFloat16"] * 3
    dense = work(name, "aten::_flash_attention_forward", [[2, 10, 3, 64]] * 3, half, ["0.", "True"])
    assert dense.sides.tolist() == [[6, 10, 10, 64]]
    assert dense.causal[0]
    scaled = work(
        name, "aten::_scaled_dot_product_flash_attention", [[2, 3, 10, 64]] * 3, half, ["False"]
    )
    assert scaled.sides.tolist() == [[6, 10, 10, 64]]
    assert not scaled.causal[0]
    packed = work(name, "FlashAttnVarlenFunc", [[4096, 8, 64]] * 3 + [[5], [5]], half)
    assert packed.sides.tolist() == [[32, 1024, 1024, 64]]


def test_traffic_of_memory_bound_kernels() -> None:
    add = work(ADD, "aten::add", [[10, 20], [20]], ["float", "float"])
    assert add.bytes[0] == 4 * (200 + 20 + 200)
    rows = work(
        "indexSelectLargeIndex",
        "aten::index_select",
        [[100, 8], [], [3]],
        ["float", "", "long int"],
    )
    assert rows.bytes[0] == 2 * 3 * 8 * 4
    lists = work("multi_tensor_apply_kernel", "aten::_foreach_add_", [[[4], [6]], [[4], [6]]],
                 [["float", "float"], ["float", "float"]])  # fmt: skip
    assert lists.bytes[0] == 2 * 4 * 20


def test_origins_and_uncertainty_grow_with_distance(kernels: KernelTable) -> None:
    samples = samples_of(kernels)
    book = make_book(A100, samples)
    measured = estimate(product(64, 16, 32), A100, book)
    near = estimate(product(64, 16, 64), A100, book)
    far = estimate(product(8192, 8192, 8192), A100, book)
    curve = estimate(work(ADD, "aten::add", [[1 << 20]], ["float"]), A100, book)
    assert Origin(measured.origin[0]) == Origin.MEASURED
    assert measured.seconds[0] == pytest.approx(50e-9)
    assert Origin(near.origin[0]) == Origin.OTHER_SHAPE
    assert measured.uncertainty[0] < near.uncertainty[0] < far.uncertainty[0]
    assert Origin(curve.origin[0]) == Origin.ROOFLINE
    unknown = estimate(work("mystery", "", [], []), A100, book)
    assert Origin(unknown.origin[0]) == Origin.UNKNOWN
    assert np.isnan(unknown.seconds[0])


def test_without_a_book_everything_is_a_roofline() -> None:
    got = estimate(product(4096, 4096, 4096), A100)
    assert Origin(got.origin[0]) == Origin.ROOFLINE
    assert got.seconds[0] == gemm_seconds(1, 4096, 4096, 4096, gpu=A100)[0]


def test_a_book_of_another_gpu_is_refused(kernels: KernelTable) -> None:
    book = make_book(A100, samples_of(kernels))
    with pytest.raises(LayoutError, match="'a100', the estimate is for 'h100'"):
        estimate(product(8, 8, 8), load_gpu("h100"), book)


def test_smoothing_returns_what_was_seen_and_forgets_far_away() -> None:
    timed = np.array([[1.0, 1024, 1024, 1024]])
    shift, left = smooth(timed, np.array([0.3]), np.array([[1.0, 1024, 1024, 1024], [1, 8, 8, 8]]))
    assert shift[0] == pytest.approx(0.3 * 0.15**2 / (0.15**2 + 0.05**2))
    assert abs(shift[1]) < 1e-6
    assert left[0] < left[1]


def test_retiming_keeps_what_the_model_misses() -> None:
    h100 = load_gpu("h100")
    base = product(4096, 4096, 4096)
    same = to_gpu(np.array([1e-3]), base, A100, A100)
    assert same.seconds[0] == pytest.approx(1e-3)
    there = to_gpu(np.array([1e-3]), base, A100, h100)
    assert 0.25e-3 < there.seconds[0] < 0.6e-3
    wider = to_shapes(np.array([1e-3]), base, product(8192, 4096, 4096), A100)
    assert 1.7e-3 < wider.seconds[0] < 2.3e-3
    unknown = to_gpu(np.array([1e-3]), work("mystery", "", [], []), A100, h100)
    assert unknown.seconds[0] == pytest.approx(1e-3 * 2039 / 3350)
    assert unknown.uncertainty[0] > there.uncertainty[0]


def test_a_memory_curve_recovers_its_line() -> None:
    prior = MEMORY_DEFAULTS["elementwise"]
    moved = np.geomspace(1e5, 1e9, 30)
    seconds = 4e-6 + moved / (A100.hbm_bytes_per_s * 0.7)
    seconds[3] *= 5  # one outlier
    found = fit_memory(moved, seconds, A100, prior)
    assert found.share == pytest.approx(0.7, rel=0.02)
    assert found.latency_s == pytest.approx(4e-6, rel=0.05)
    assert np.allclose(memory_seconds(moved, A100, found)[10:], seconds[10:], rtol=0.02)
    assert fit_memory(moved[:2], seconds[:2], A100, prior) is prior


def test_devices_have_types() -> None:
    assert gpu_of_device("NVIDIA A100-SXM4-80GB").name == "a100"
    assert gpu_of_device("NVIDIA A100-SXM4-40GB").name == "a100-40g"
    assert gpu_of_device("NVIDIA GH200 480GB").name == "gh200"
    assert gpu_of_device("Tesla V100-SXM2-32GB").name == "v100"
    with pytest.raises(LayoutError, match="no known GPU type"):
        gpu_of_device("GeForce 256")


def test_products_carry_between_the_public_pair(shared_data: Path, tmp_path: Path) -> None:
    from foretrace.traces.importers import import_paths
    from foretrace.traces.store import TraceSet

    totals, found = {}, {}
    for name, gpu in (("h100", load_gpu("h100")), ("mi300", load_gpu("mi300x"))):
        source = shared_data / "traces" / "single-rank" / f"tracelens-qwen-{name}.json.gz"
        import_paths([str(source)], str(tmp_path / f"{name}.trace"))
        trace = TraceSet.open(str(tmp_path / f"{name}.trace"))
        sides, seconds = products(samples_of(read_kernels(trace, trace.ranks[0])), "bf16")
        assert len(sides) == 3
        found[name] = (gpu, sides, seconds)
        totals[name] = seconds.sum()
    for old, new in (("h100", "mi300"), ("mi300", "h100")):
        (old_gpu, sides, seconds), (new_gpu, _, _) = found[old], found[new]
        shapes = [product(int(m), int(n), int(k)) for _, m, n, k in sides]
        moved = [
            to_gpu(np.array([s]), w, old_gpu, new_gpu).seconds[0]
            for s, w in zip(seconds, shapes, strict=True)
        ]
        assert sum(moved) == pytest.approx(totals[new], rel=0.15)
