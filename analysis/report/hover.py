"""What the timeline shows under the pointer, packed small."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.causes.wording import short_name
from foretrace.analysis.figures import LABELS, lane_bands, strip_pixels
from foretrace.analysis.strips import CLASSES, Strips

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def hover_data(figure: Figure, data: Strips) -> dict[str, Any]:
    """Where the strips lie in the drawn figure, and what to say about each bin.

    Returns:
        ``box`` (left, top, width, height as shares of the figure), ``bands`` (begin and end of
        each lane as shares of a rank's height), ``ranks``, ``lanes``, ``bins``, ``ms`` (length),
        ``labels`` of the classes, ``texts``, and one base64 array per bin for the two largest
        classes (``first``, ``second``, uint8), their shares in percent (``part``, ``rest``,
        uint8) and the text (uint16, 65535 for none).
    """
    lanes = len(data.lane) // max(len(set(data.rank.tolist())), 1)
    order = np.argsort(-data.share, axis=2, kind="stable")[:, :, :2]
    largest = np.take_along_axis(data.share, order, axis=2)
    place = figure.axes[0].get_position()
    *bands, (height, _) = lane_bands(strip_pixels(len(data.rank)), lanes)
    return {
        "box": [place.x0, 1 - place.y1, place.width, place.height],
        "bands": [[a / height, b / height] for a, b in bands],
        "ranks": data.rank[::lanes].tolist(),
        "lanes": list(data.lane[:lanes]),
        "bins": data.share.shape[1],
        "ms": float(data.edges_ns[-1] - data.edges_ns[0]) / 1e6,
        "labels": [LABELS[c] for c in CLASSES],
        "texts": [short_name(t, 80) for t in data.texts],
        "first": _packed(order[:, :, 0], np.uint8),
        "second": _packed(order[:, :, 1], np.uint8),
        "part": _packed(np.rint(100 * largest[:, :, 0]), np.uint8),
        "rest": _packed(np.rint(100 * largest[:, :, 1]), np.uint8),
        "text": _packed(np.where(data.text < 0, 65535, np.minimum(data.text, 65534)), np.uint16),
    }


def _packed(values: NDArray[Any], kind: type[np.generic]) -> str:
    little = np.ascontiguousarray(values.astype(np.dtype(kind).newbyteorder("<")))
    return base64.b64encode(little.tobytes()).decode("ascii")
