"""What did not become a field, as text."""

from rljob_runtime.authoring.verl.convert import Conversion
from rljob_runtime.authoring.verl.launch import Remark


def listing(conversion: Conversion, script: str) -> str:
    """The list of a conversion: first what differs from verl's run, then what needs nothing."""
    decide = [remark for remark in conversion.remarks if remark.decide]
    nothing = [remark for remark in conversion.remarks if not remark.decide]
    parts = [f"{script}: {conversion.converted} of {conversion.keys} keys became fields."]
    if decide:
        parts.append(f"\nTo look at, because the job differs from verl's run in it ({len(decide)}):")
        parts += [_line(remark, script) for remark in decide]
    if nothing:
        parts.append(f"\nNothing to do ({len(nothing)}):")
        parts += [_line(remark, script) for remark in nothing]
    return "\n".join(parts)


def _line(remark: Remark, script: str) -> str:
    return f"{script}:{remark.line}  {remark}."
