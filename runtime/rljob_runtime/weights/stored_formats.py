"""In which number formats a folder stores a model's tensors, and whether those are weights as they are. Pure.

Guarantees: formats are known by safetensors' names.
"""

from collections.abc import Iterable, Mapping

_AS_THEY_ARE = frozenset({"F64", "F32", "F16", "BF16"})
_EIGHT_BITS = "F8_"
_WHOLE_NUMBERS = ("I", "U", "BOOL")
_MEANT = "weights in bfloat16, float16 or float32 are needed, as the model has that these were made of"


def refused_format(formats: Mapping[str, str], weights: Iterable[str]) -> str | None:
    """Why a folder with these formats, by tensor, has no weights to train; None where it has. `weights`:
    names of those tensors that are parameters of the model. Numbers of such a format would be taken for the
    weights themselves, without a word."""
    for name in sorted(weights):
        form = formats.get(name)
        if form is None or form in _AS_THEY_ARE or form.startswith(_EIGHT_BITS):
            continue
        what = "whole numbers" if form.startswith(_WHOLE_NUMBERS) else "numbers of another kind than weights"
        return (
            f"{name} is stored as {what} ({form}), and config.json has no quantization_config that says what "
            f"they stand for: {_MEANT}"
        )
    return None


def quantized(formats: Mapping[str, str], name: str) -> str | None:
    """Why the tensor of this name in a folder is not as the model has it, where that is quantization; else
    None."""
    narrow = sorted({form for form in formats.values() if form.startswith((_EIGHT_BITS, "I8", "U8", "I32"))})
    if not narrow:
        return None
    return (
        f"{name} is not as the model has it, and tensors are stored as {' and '.join(narrow)}: these are "
        f"quantized weights, though config.json has no quantization_config: {_MEANT}"
    )


def doubtful_format(formats: Mapping[str, str]) -> str | None:
    """What may be wrong with weights that are stored in 8 bits; None where none are."""
    narrow = [name for name, form in formats.items() if form.startswith(_EIGHT_BITS)]
    if not narrow:
        return None
    return (
        f"{len(narrow)} of its {len(formats)} tensors are stored in 8 bits ({formats[min(narrow)]}), without "
        f"scales: their numbers are taken as they are, and if they were made with scales they are wrong: "
        f"{_MEANT}"
    )
