"""Amounts as Kubernetes writes them, for comparing."""

from fractions import Fraction

_UNITS = {
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    **{unit: Fraction(1000) ** power for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}


def amount(quantity: str) -> Fraction:
    """The number that a quantity such as `500m` or `16Gi` stands for, exactly."""
    for unit in sorted(_UNITS, key=len, reverse=True):
        if quantity.endswith(unit):
            return Fraction(quantity.removesuffix(unit)) * _UNITS[unit]
    return Fraction(quantity)
