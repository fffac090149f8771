"""Shapes of language models, from TOML files.

Bundled models live beside this module in ``models/``; each names where its figures are from. A
user's own file has the same form and is given by path::

    layers = 80
    hidden = 8192
    heads = 64
    kv_heads = 8
    ffn = 28672
    vocab = 128256
    gated = true
    source = "its config.json"
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

import msgspec

from foretrace.replay.costs.memory_layout import Transformer
from foretrace.traces.errors import LayoutError


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Shape of a decoder-only language model.

    Attributes:
        name: its file's name.
        layers: transformer layers.
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads, 0 for as many as queries.
        head_dim: width of a head, 0 for ``hidden / heads``.
        value_dim: width of a head's values, 0 for ``head_dim``.
        query_rank: width that queries are squeezed through (latent attention), 0 for none.
        kv_rank: width that keys and values are squeezed through, 0 for none.
        rope_dim: part of a head that carries positions beside the squeezed part.
        rotary: queries and keys are turned by their positions; else positions are added once.
        ffn: width of the MLP of a dense layer.
        gated: the MLP has three matrices instead of two.
        experts: routed experts of a mixture layer, 0 for a dense model.
        topk: experts a token goes to.
        expert_ffn: width of one expert, 0 for ``ffn``.
        shared_experts: experts every token goes to.
        dense_layers: layers at the start that are dense in a mixture model.
        vocab: vocabulary, padded.
        tied: embedding and head are one matrix.
        seq: sequence length that it is trained with.
        source: where the figures are from.
    """

    name: str = ""
    layers: int
    hidden: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    rotary: bool = True
    ffn: int
    gated: bool = True
    experts: int = 0
    topk: int = 1
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    vocab: int
    tied: bool = False
    seq: int = 2048
    source: str = ""

    @property
    def kv(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Width of a query's and key's head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def value_width(self) -> int:
        """Width of a value's head."""
        return self.value_dim or self.width

    @property
    def expert_width(self) -> int:
        """Width of one routed expert."""
        return self.expert_ffn or self.ffn

    def is_mixture(self, layer: int) -> bool:
        """Whether a layer routes its tokens to experts."""
        return self.experts > 0 and layer >= self.dense_layers

    def transformer(self) -> Transformer:
        """The same as the memory model takes it; shared experts count as width of each expert."""
        return Transformer(
            layers=self.layers, hidden=self.hidden, heads=self.heads, kv_heads=self.kv,
            ffn=self.expert_width if self.experts else self.ffn, vocab=self.vocab,
            gated=self.gated, tied=self.tied, experts=self.experts, topk=self.topk,
        )  # fmt: skip


def model_names() -> list[str]:
    """Bundled models, sorted."""
    names = (item.name for item in files(__package__).joinpath("models").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_model(name: str | Path) -> Model:
    """A model by bundled name, or by the path of a TOML file.

    Raises:
        LayoutError: unknown name, unreadable file, or figures that cannot be.
    """
    text = str(name)
    if text in model_names():
        return _parse(files(__package__).joinpath("models", f"{text}.toml").read_text(), text)
    path = Path(text)
    if path.suffix != ".toml" and not path.is_file():
        close = get_close_matches(text, model_names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(model_names())}"
        raise LayoutError(f"no model {text!r}; {hint}; or give the path of a .toml file")
    try:
        return _parse(path.read_text("utf-8"), text)
    except (OSError, UnicodeDecodeError) as error:
        raise LayoutError(f"{path}: cannot be read as a model file: {error}") from error


def check_model(model: Model, where: str) -> Model:
    """The model, if its figures can be.

    Raises:
        LayoutError: naming the figure.
    """
    for key in ("layers", "hidden", "heads", "ffn", "vocab", "seq", "topk"):
        if getattr(model, key) < 1:
            raise LayoutError(f"{where}: {key} must be positive, found {getattr(model, key)}")
    if model.heads % model.kv:
        raise LayoutError(f"{where}: {model.heads} heads do not share {model.kv} key-value heads")
    if not model.head_dim and model.hidden % model.heads:
        raise LayoutError(
            f"{where}: hidden {model.hidden} does not split over {model.heads} heads; give head_dim"
        )
    if model.topk > max(model.experts, 1):
        raise LayoutError(f"{where}: topk {model.topk} of {model.experts} experts")
    return model


def _parse(text: str, where: str) -> Model:
    try:
        raw = tomllib.loads(text)
        raw.setdefault("name", Path(where).stem)
        return check_model(msgspec.convert(raw, Model), where)
    except tomllib.TOMLDecodeError as error:
        raise LayoutError(f"{where}: not a TOML file: {error}") from error
    except msgspec.ValidationError as error:
        raise LayoutError(f"{where}: {error}") from error
