"""Kernel names of the libraries that are in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.traces.classify import classify, collective_kind, work_class
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.schema import COLLECTIVE_KINDS

KERNELS = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": ("nccl", "all_reduce"),
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)": ("nccl", "all_reduce"),
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": ("nccl", "reduce_scatter"),
    "ncclDevKernel_Reduce_Sum_f16_RING_LL": ("nccl", "reduce"),
    "ncclDevKernel_Broadcast_RING_LL": ("nccl", "broadcast"),
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)": ("nccl", "send_recv"),
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16": ("nccl", "all_reduce"),
    "ncclSymDevKernel_AllGather_LL": ("nccl", "all_gather"),
    "ncclDevKernel_Generic(ncclDevComm*)": ("rccl", "unknown"),
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": ("rccl", "unknown"),
    "ncclKernel_Generic": ("rccl", "unknown"),
    "void deep_ep::internode::dispatch<false, 8>(int4*)": ("deepep", "all_to_all"),
    "void deep_ep::intranode::combine<__nv_bfloat16, 8>(int4*)": ("deepep", "all_to_all"),
    "void deep_ep::internode_ll::dispatch<true, 7168>(void*)": ("deepep", "all_to_all"),
    "void deep_ep::intranode::notify_dispatch<8>(int const*)": ("deepep", "all_to_all"),
    "void dpsk::ep::internode::cached_notify<false>(int, int)": ("deepep", "barrier"),
    "void vllm::cross_device_reduce_1stage<__half, 8>": ("custom all-reduce", "all_reduce"),
    "void aiter::cross_device_reduce_2stage<bf16, 8>": ("custom all-reduce", "all_reduce"),
    "void multimem_all_reduce_kernel<c10::BFloat16, 16>": ("symmetric memory", "all_reduce"),
    "multimem_one_shot_all_reduce_kernel": ("symmetric memory", "all_reduce"),
    "multimem_all_gather_kernel": ("symmetric memory", "all_gather"),
    "two_shot_all_reduce_kernel": ("symmetric memory", "all_reduce"),
    "nvshmemi_barrier_all_kernel": ("nvshmem", "barrier"),
    "nvshmem_alltoall_kernel": ("nvshmem", "all_to_all"),
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop": ("userbuffers", "reduce_scatter"),
    "userbuffers_fp16_sum_inplace_gpu_rr_ag": ("userbuffers", "all_gather"),
    "kuserbuffers_pushsendrecv": ("userbuffers", "send"),
    "ucc_tl_cuda_executor_kernel": ("ucc", "unknown"),
    "ncclSymkDevKernel_ReduceScatter_LD_sum_f32(ncclSymkDevWorkArgs)": ("nccl", "reduce_scatter"),
    "ncclSymkDevKernel_AllGather_STMC": ("nccl", "all_gather"),
    "void deep_ep::internode::combine<false, true>(int4*)": ("deepep", "all_to_all"),
    "void deep_ep::intranode::cached_notify_combine<8>(void**)": ("deepep", "barrier"),
    "void deep_ep::internode_ll::clean_low_latency_buffer<32>": ("deepep", "barrier"),
    "void deep_ep::internode_ll::combine<true, 7168, 9, 32>": ("deepep", "all_to_all"),
    "void vllm::cross_device_reduce_2stage<nv_bfloat16, 4>": ("custom all-reduce", "all_reduce"),
    "multimem_all_reduce_kernel": ("symmetric memory", "all_reduce"),
    "void nvshmemi_fcollect_kernel<int>": ("nvshmem", "all_gather"),
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ("nccl", "all_gather"),
}
COMPUTATION = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4>",
    "void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)",
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)",
    "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>",
    "Cijk_Ailk_Bljk_HHS_BH_MT64x64x64",
    "void cub::DispatchReduceByKey",
    "triton_red_fused_all_reduce_like_name_0",
    "hipLaunchKernel",
    "",
)


@pytest.mark.parametrize("name", KERNELS)
def test_communication(name: str) -> None:
    classes = classify([name])
    assert classes.communicates.tolist() == [True]
    assert (classes.library[0], classes.kind[0]) == KERNELS[name]


def test_computation() -> None:
    classes = classify(COMPUTATION)
    assert not classes.communicates.any()
    assert set(classes.library) | set(classes.kind) == {""}


def test_every_kind_is_in_the_schema() -> None:
    assert set(classify(list(KERNELS)).kind) <= set(COLLECTIVE_KINDS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("all_reduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("c10d::reduce_scatter_tensor_coalesced_", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("broadcast", "broadcast"),
        ("c10d::reduce_", "reduce"),
        ("c10d::gather_", "gather"),
        ("c10d::scatter_", "scatter"),
        ("c10d::recv_any_source_", "recv"),
        ("nccl:send", "send"),
        ("c10d::barrier", "barrier"),
        ("wait", ""),
        ("nccl:coalesced", ""),
    ],
)
def test_collective_names(name: str, kind: str) -> None:
    assert collective_kind(name) == kind


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("kernel", "ncclDevKernel_SendRecv(ncclDevComm*)", "communication"),
        ("kernel", "void gemm<float>", "compute"),
        ("kernel", "__amd_rocclr_copyBuffer.kd", "copy"),
        ("memcpy", "Memcpy DtoD (Device -> Device)", "copy"),
        ("memset", "Memset (Device)", "copy"),
        ("sync", "Stream Sync", "sync"),
        ("gpu_annotation", "nccl:all_reduce", ""),
        ("host_op", "c10d::allreduce_", ""),
        ("runtime", "cudaLaunchKernel", ""),
    ],
)
def test_work_class(kind: str, name: str, expected: str) -> None:
    assert work_class(kind, name) == expected


def use(monkeypatch: pytest.MonkeyPatch, path: Path, text: str) -> None:
    path.write_text(text)
    monkeypatch.setenv("FORETRACE_CLASSES", str(path))


def test_own_rules_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        monkeypatch,
        tmp_path / "own.toml",
        """
        [[kernel]]
        pattern = '^acme_ring_'
        library = "acme"
        kind = ""
        [[kernel]]
        pattern = 'ncclDevKernel_AllReduce_Fake'
        library = ""
        kind = ""
        [[word]]
        pattern = 'gossip'
        kind = "all_reduce"
        """,
    )
    names = ["acme_ring_all_gather", "acme_ring_gossip", "ncclDevKernel_AllReduce_Fake_x"]
    assert classify(names).library == ("acme", "acme", "")
    assert classify(names).kind == ("all_gather", "all_reduce", "")
    assert classify(["ncclDevKernel_Broadcast_RING_LL"]).kind == ("broadcast",)
    monkeypatch.delenv("FORETRACE_CLASSES")
    assert classify(names[:1]).library == ("",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[kernel]", "not a TOML table"),
        ("[[kernels]]\n", "unknown \\[kernels\\]"),
        ("[[kernel]]\npattern = 'x'\nkind = 'barrier'\n", "must have kind, library, pattern"),
        ("[[word]]\npattern = '('\nkind = 'barrier'\n", "no regular expression"),
        ("[[word]]\npattern = 'x'\nkind = 'sing'\n", "unknown kind 'sing'"),
        ("[[kernel]]\npattern = 'x'\nlibrary = 3\nkind = ''\n", "must be texts"),
        ("kernel = [3]\n", "must have"),
    ],
)
def test_faults_of_own_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    use(monkeypatch, tmp_path / "own.toml", text)
    with pytest.raises(TraceFormatError, match=words):
        classify(["a"])


def test_own_rules_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRACE_CLASSES", "/nowhere/own.toml")
    with pytest.raises(TraceFormatError, match=r"/nowhere/own.toml: cannot read"):
        classify(["a"])
