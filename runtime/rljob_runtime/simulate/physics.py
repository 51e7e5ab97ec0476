"""How simulated engines behave, besides what a step costs. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Physics:
    """One for all engines of a simulation."""

    lockstep: bool = False
    """Whether the engines of a pool share each decode step, as the ranks of an expert-parallel model do."""
    admission_seconds: float = 0.0
    """What a step with a prefill takes beyond the prefill's tokens: without a captured graph, or to tell the
    other ranks."""
    copy_bytes_per_second: float | None = None
    """Bandwidth at which the KV cache of a request that moves is copied; None: it is computed again where the
    request arrives."""
    kv_bytes_per_token: float = 0.0
    copy_seconds: float = 0.0
    """Each copy takes so long besides its bytes."""
    report_seconds: float | None = 10.0
    """How often the scheduler is told of each response's length so far; None: never."""

    def __post_init__(self) -> None:
        for name in ("admission_seconds", "kv_bytes_per_token", "copy_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0 (found {getattr(self, name):g})")
        for name in ("copy_bytes_per_second", "report_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0 (found {value:g})")

    @property
    def copied_token_seconds(self) -> float | None:
        """Seconds to copy the KV of a token; None: it is not copied."""
        if self.copy_bytes_per_second is None:
            return None
        return self.kv_bytes_per_token / self.copy_bytes_per_second

    def copy(self, tokens: int) -> float | None:
        """Seconds for the KV of so many tokens to arrive; None: it is not copied."""
        if self.copied_token_seconds is None:
            return None
        return self.copy_seconds + tokens * self.copied_token_seconds
