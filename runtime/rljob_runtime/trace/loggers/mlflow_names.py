"""Names of curves as MLflow takes them. Pure.

Guarantees: every name becomes one that MLflow's servers take, on Windows too: letters, digits and `_ - .`,
spaces, and parts between slashes that no path would fold (`a//b`, `a/../b`); no longer than their databases
hold. A name that they take stays as it is. `pass@4` becomes `pass_at_4`.
"""

import re
import zlib

LONGEST = 250
"""Characters of a name that MLflow's databases hold."""
_ODD = re.compile(r"[^A-Za-z0-9_\-. /]")


def mlflow_name(name: str) -> str:
    """The name of a curve in MLflow, by the one in TensorBoard."""
    plain = _ODD.sub("_", name.replace("@", "_at_"))
    parts = ["_" * max(1, len(part)) if part in ("", ".", "..") else part for part in plain.split("/")]
    found = "/".join(parts)
    if len(found) <= LONGEST:
        return found
    # Two long names that differ at their ends stay two.
    return f"{found[: LONGEST - 9]}_{zlib.crc32(name.encode(errors='surrogatepass')):08x}"
