"""The machine and the software that a rank runs on."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SETTINGS = re.compile(
    r"(NCCL|RCCL|TORCH_NCCL|TORCH_DISTRIBUTED|CUDA|HIP|ROCR|HSA|GLOO|OMP|MKL|PYTORCH|UCX|FI)_[A-Z0-9_]+"
)
"""Environment variables that change how a training step runs."""

SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH|USER|URL|PROXY|HOME|PATH|FILE|DIR")
"""Parts of names whose values may be nobody's business; never recorded."""

_LONGEST_VALUE = 200


def host_name() -> str:
    """Name of this host."""
    return socket.gethostname()


def settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables that matter to performance, without secrets and paths.

    Args:
        environ: the environment; None for the process's own.
    """
    source = os.environ if environ is None else environ
    return {
        name: value[:_LONGEST_VALUE]
        for name, value in sorted(source.items())
        if SETTINGS.fullmatch(name) and not SECRET.search(name)
    }


def versions() -> dict[str, str]:
    """Versions of foretrace, Python, torch, CUDA or ROCm, NCCL, cuDNN, driver and kernel."""
    import torch

    from foretrace import __version__

    found = {
        "foretrace": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or ""),
        "hip": str(torch.version.hip or ""),
        "system": f"{platform.system()} {platform.release()}",
        "nccl": _nccl_version(),
        "cudnn": str(torch.backends.cudnn.version() or ""),
    }
    with _nvml() as nvml:
        if nvml is not None:
            found["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
    return {name: version for name, version in found.items() if version}


def _nccl_version() -> str:
    import torch

    if not torch.cuda.is_initialized():
        return ""
    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except (AttributeError, RuntimeError):  # built without NCCL
        return ""


def device() -> tuple[str, int]:
    """Model of the accelerator in use and how many the process sees; ``("", 0)`` without."""
    import torch

    if not torch.cuda.is_initialized():  # asking would make a context on a job that uses none
        return "", 0
    return str(torch.cuda.get_device_name()), int(torch.cuda.device_count())


def processor() -> dict[str, str]:
    """The host's processor: model, cores that this process may use, torch's threads."""
    import torch

    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
        model = next((line.split(":")[1].strip() for line in lines if "model name" in line), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": model,
        "cpu_cores": str(cores),
        "torch_threads": str(torch.get_num_threads()),
    }


def topology() -> dict[str, str]:
    """GPUs of the host as NVML sees them: model, memory, PCIe link, NVLinks and clocks.

    Returns:
        ``gpu.INDEX.WHAT -> text``; empty without NVIDIA's library or its Python binding.
    """
    found: dict[str, str] = {}
    with _nvml() as nvml:
        if nvml is None:
            return found
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            for what, value in _gpu(nvml, handle).items():
                found[f"gpu.{index}.{what}"] = value
    return found


def _gpu(nvml: Any, handle: Any) -> dict[str, str]:
    asked: dict[str, Callable[[], str]] = {
        "name": lambda: _text(nvml.nvmlDeviceGetName(handle)),
        "bus": lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "memory_bytes": lambda: str(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "pcie_generation": lambda: str(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        "pcie_width": lambda: str(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        "power_limit_mw": lambda: str(nvml.nvmlDeviceGetPowerManagementLimit(handle)),
        "sm_clock_max_mhz": lambda: str(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "nvlink": lambda: _nvlinks(nvml, handle),
    }
    found = {}
    for what, ask in asked.items():
        with contextlib.suppress(nvml.NVMLError, AttributeError):  # not every GPU knows everything
            found[what] = ask()
    return {what: value for what, value in found.items() if value}


def _nvlinks(nvml: Any, handle: Any) -> str:
    """Active NVLinks: how many lead to which bus address, and their version."""
    ends: dict[str, int] = {}
    version = ""
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            version = str(nvml.nvmlDeviceGetNvLinkVersion(handle, link))
            end = _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
        except nvml.NVMLError:
            break
        ends[end] = ends.get(end, 0) + 1
    links = ", ".join(f"{number} to {end}" for end, number in sorted(ends.items()))
    return f"version {version}: {links}" if links else ""


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """NVIDIA's management library, None where it or its binding is missing."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def own_rank(environ: Mapping[str, str] | None = None) -> tuple[int, int, str]:
    """This process's rank, the number of ranks and the default backend.

    Args:
        environ: where to look when torch.distributed is not initialised.

    Returns:
        Rank, world size, backend; ``(0, 1, "")`` for a process on its own.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size(), distributed.get_backend()
    source = os.environ if environ is None else environ
    try:
        return int(source.get("RANK", "0")), int(source.get("WORLD_SIZE", "1")), ""
    except ValueError:
        return 0, 1, ""
