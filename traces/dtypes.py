"""Element types as profilers write them: one name each, and their size."""

from __future__ import annotations

_SCALAR_TYPES = {
    "Byte": 1,
    "Char": 1,
    "Short": 2,
    "Int": 4,
    "Long": 8,
    "Half": 2,
    "Float": 4,
    "Double": 8,
    "ComplexHalf": 4,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "Bool": 1,
    "BFloat16": 2,
    "UInt16": 2,
    "UInt32": 4,
    "UInt64": 8,
    "Float8_e5m2": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2fnuz": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e8m0fnu": 1,
}
_OTHER_NAMES = {
    "unsigned char": "Byte",
    "signed char": "Char",
    "short": "Short",
    "short int": "Short",
    "int": "Int",
    "long": "Long",
    "long int": "Long",
    "float": "Float",
    "double": "Double",
    "bool": "Bool",
    "c10::complex<float>": "ComplexFloat",
    "c10::complex<double>": "ComplexDouble",
    "c10::complex<c10::Half>": "ComplexHalf",
    "unsigned short": "UInt16",
    "unsigned int": "UInt32",
    "unsigned long": "UInt64",
}


def scalar_type(name: str) -> str:
    """The c10 ScalarType name, e.g. ``BFloat16`` for ``c10::BFloat16``; "" if it is none."""
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    bare = name.removeprefix("c10::").removeprefix("torch.")
    return bare if bare in _SCALAR_TYPES else ""


def element_bytes(name: str) -> int:
    """Bytes of one element; 0 if the type is unknown."""
    return _SCALAR_TYPES.get(scalar_type(name), 0)
