"""The parallel layout beside an operation table: a flat ``meta-*.yaml`` or ``.json``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from foretrace.traces.errors import LayoutError

_LINE = re.compile(r"""^\s*["']?([A-Za-z_]\w*)["']?\s*:\s*["']?(-?\d+)["']?\s*,?\s*(?:#.*)?$""")


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How the job was split, as far as it is known; 0 stands for unknown.

    Attributes:
        dp: data-parallel ranks.
        pp: pipeline stages.
        tp: tensor-parallel ranks of a worker.
        sp: sequence-parallel ranks of a data-parallel rank.
        vpp: model chunks of a stage.
        world: ranks of the job.
    """

    dp: int = 0
    pp: int = 0
    tp: int = 0
    sp: int = 0
    vpp: int = 0
    world: int = 0

    @property
    def ranks(self) -> int:
        """Ranks of the job: as stated, else the product of its parts, 0 unknown."""
        return self.world or self.dp * self.pp * max(self.tp, 1) * max(self.sp, 1)


_KEYS = {
    "dp_size": "dp",
    "pp_size": "pp",
    "tp_size": "tp",
    "dsp_size": "sp",
    "vpp_size": "vpp",
    "world_size": "world",
}


def read_layout(path: Path) -> TableLayout:
    """Read the sizes from a flat YAML or JSON file; other keys are passed over.

    Only lines ``key: number`` are read, so no YAML feature can do harm.

    Args:
        path: the file.

    Raises:
        LayoutError: the file states none of the sizes, or a size below 1.
    """
    return parse_layout(path.read_text(encoding="utf-8", errors="replace"), str(path))


def parse_layout(text: str, path: str) -> TableLayout:
    """Like :func:`read_layout`, of a file's content; ``path`` stands in messages."""
    found = _json_numbers(text, path) if text.lstrip().startswith("{") else _yaml_numbers(text)
    sizes = {field: found[key] for key, field in _KEYS.items() if key in found}
    if not sizes:
        raise LayoutError(
            f"{path}: states no layout; expected lines such as 'dp_size: 4' ({', '.join(_KEYS)})"
        )
    for key, field in _KEYS.items():
        if sizes.get(field, 1) < 1:
            raise LayoutError(f"{path}: {key} is {sizes[field]}; sizes are 1 or more")
    return TableLayout(**sizes)


def layout_beside(table: Path) -> Path | None:
    """The layout file that belongs to a table by its name, None where there is none.

    ``trace-AR.parquet`` belongs with ``meta-AR.yaml``, ``run.parquet`` with ``meta-run.yaml``.
    """
    paths = (table.with_name(name) for name in layout_names(table.name))
    return next((path for path in paths if path.is_file()), None)


def layout_names(table: str) -> tuple[str, ...]:
    """What the layout file beside a table of this name may be called, best first."""
    stem = table.partition(".")[0]
    short = stem.removeprefix("trace-").removeprefix("trace_")
    return tuple(
        f"meta-{name}.{ending}"
        for name in dict.fromkeys((short, stem))
        for ending in ("yaml", "yml", "json")
    )


def _yaml_numbers(text: str) -> dict[str, int]:
    lines = (_LINE.match(line) for line in text.splitlines())
    return {match[1]: int(match[2]) for match in lines if match}


def _json_numbers(text: str, path: str) -> dict[str, int]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise LayoutError(f"{path}: is no JSON ({error}); expected {{'dp_size': ...}}") from error
    return {k: v for k, v in value.items() if isinstance(v, int)}
