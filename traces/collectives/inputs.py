"""Metadata of old traces: the concrete inputs of record_param_comms, before they had names."""

from __future__ import annotations

from foretrace.traces.collectives.model import Metadata, decoded, number
from foretrace.traces.groups import ranks_of


def metadata_of_inputs(text: str) -> Metadata | None:
    """What the call of a collective says; None if the inputs are not those of a call.

    They are ``['', seq, group pointer, rank in it, '', in splits, out splits(, size)]``.
    """
    values = decoded(text)
    if not isinstance(values, list) or len(values) < 7 or values[0] != "":
        return None
    seq = number(values[1])
    return Metadata(
        seq=seq if seq > 0 else -1,
        group_name=str(values[2]),
        group_rank=number(values[3]),
        in_splits=ranks_of(values[5]),
        out_splits=ranks_of(values[6]),
        group_size=number(values[7]) if len(values) > 7 else -1,
    )


def wait_of_inputs(inputs: str, dtypes: str) -> Metadata | None:
    """What a wait says; None if the inputs are not those of a wait.

    They are ``[seq, 0, rank in the group, '', in splits, out splits]``. Where only types were
    recorded, a wait is told from a call by its first input, which is no tensor.
    """
    values, types = decoded(inputs), decoded(dtypes)
    if isinstance(values, list) and len(values) >= 6 and number(values[0]) >= 0:
        return Metadata(seq=number(values[0]), group_rank=number(values[2]))
    if values is None and isinstance(types, list) and types[:1] == ["Scalar"]:
        return Metadata()
    return None
