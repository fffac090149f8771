"""One rank of a dry run: ``python -m foretrace.collector.dryrun.child SPEC.json``.

Prepares the world, runs the script as its own ``__main__``, and writes what was seen.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from foretrace.collector.dryrun.spec import Mark, Operation, Record, Spec, write_record
from foretrace.collector.spool import KINETO_NAME, Recording, write_recording

FAILED = 1


class Steps:
    """Where training steps begin and end, by what every script has: modules and optimizers.

    Args:
        clock: the recording's clock.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.first = -1
        self.marks: list[Mark] = []
        self._clock = clock
        self._forward = False

    def watch(self) -> None:
        """Listen to all modules and optimizers of this process."""
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def forward(_module: Any, _args: Any) -> None:
            self._forward = True
            if self.first < 0:
                self.first = self._clock()

        def stepped(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            thread = threading.get_native_id()
            self.marks.append(Mark(self._clock(), self._forward, thread))
            self._forward = False

        hook: Any = register_module_forward_pre_hook
        hook(forward)
        register_optimizer_step_post_hook(stepped)


def run(spec: Spec) -> int:
    """Run the script of ``spec``; the process's exit status."""
    import torch

    from foretrace.collector.dryrun.dryhook import DryHook
    from foretrace.collector.dryrun.operations import watch
    from foretrace.collector.dryrun.world import World, prepare_fake
    from foretrace.collector.hook import describe_group
    from foretrace.collector.recorder import Recorder
    from foretrace.collector.waits import WaitHook

    ticks = count()
    clock: Callable[[], int] = (lambda: next(ticks)) if spec.fake else time.time_ns
    in_backward = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    recorder = Recorder(describe_group, clock, backward=in_backward)
    if not spec.fake and torch.cuda.is_available():
        _use_own_devices(spec.rank, int(torch.cuda.device_count()))
    world = World(spec)
    world.enter()
    hook = DryHook(recorder, _raise, world)
    hook.install()
    waits = WaitHook(recorder, _raise, annotate=not spec.fake)
    waits.install()
    steps, operations = Steps(clock), list[Operation]()
    steps.watch()
    if spec.fake:
        prepare_fake()
    recorder.open()
    start = clock()
    with ExitStack() as around:
        if spec.fake:
            from torch._subclasses.fake_tensor import FakeTensorMode

            around.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            around.enter_context(watch(recorder, operations))
        elif spec.recorded:
            around.enter_context(_profiled(Path(spec.folder) / KINETO_NAME))
        status = _run_script(spec)
    if status or not spec.recorded:
        return status
    recorder.close()
    recording = _recording(spec, recorder, (start, clock()))
    write_recording(Path(spec.folder), recording)
    write_record(
        Path(spec.folder),
        Record(
            recording=recording,
            fake=spec.fake,
            operations=operations,
            first=steps.first,
            marks=steps.marks,
            families=world.families,
            notes=world.notes,
        ),
    )
    return 0


def _use_own_devices(rank: int, devices: int) -> None:
    """Scripts choose their GPU by LOCAL_RANK: it must be one that this machine has."""
    os.environ["LOCAL_RANK"] = str(rank % devices)
    os.environ["LOCAL_WORLD_SIZE"] = str(devices)


def _run_script(spec: Spec) -> int:
    """The script's exit status; its traceback is printed."""
    script = str(Path(spec.script).resolve())
    sys.argv = [spec.script, *spec.arguments]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return FAILED
    except BaseException as error:  # whatever a script raises is its own
        _show(error, script)
        return FAILED
    return 0


def _show(error: BaseException, script: str) -> None:
    """Print a traceback that begins in the script, and what to do where we know."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames or error.__traceback__)
    if type(error).__name__ in ("DataDependentOutputException", "DynamicOutputShapeException"):
        sys.stderr.write(
            "foretrace: this size depends on data, and --fake tensors have none: leave out "
            "--fake, or take counts of tokens from foretrace.collector.dryrun.exchange_counts\n"
        )


@contextmanager
def _profiled(path: Path) -> Iterator[None]:
    """The profiler of torch around the whole script."""
    import torch

    from foretrace.collector.kineto import experimental_config

    profiler = torch.profiler.profile(
        record_shapes=True, experimental_config=experimental_config(False)
    )
    with profiler:
        yield
    profiler.export_chrome_trace(str(path))


def _recording(spec: Spec, recorder: Any, span: tuple[int, int]) -> Recording:
    from foretrace.collector import environment
    from foretrace.collector.layout import all_groups, layout_of

    calls, waits, _ = recorder.rows()
    met = recorder.groups()
    names = {group.name for group in met}
    groups = met + [group for group in all_groups() if group.name not in names]
    name, devices = environment.device()
    return Recording(
        rank=spec.rank,
        world_size=spec.world_size,
        detail="full",
        backend="fake",
        start_ns=span[0],
        end_ns=span[1],
        device_name=name,
        device_count=devices,
        groups=groups,
        calls=calls,
        waits=waits,
        versions=environment.versions(),
        environment=environment.processor(),
        layout=layout_of(groups),
        labels={"dry_run": "fake tensors" if spec.fake else "real tensors"}
        | ({"routing": spec.routing} if spec.routing else {}),
    )


def _raise(error: BaseException) -> None:
    raise error


if __name__ == "__main__":
    ended = run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the script has left, and groups without members, need no farewell.
    os._exit(ended)
