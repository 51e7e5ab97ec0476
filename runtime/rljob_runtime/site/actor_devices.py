"""How a Ray actor gets its accelerators: from Ray, or, where workers share a machine's, by their ids."""

import os
from collections.abc import Mapping
from typing import Any

from rljob_runtime.devices import Devices


def ask_for_devices(options: dict[str, Any], kind: Devices, count: int, shared: str | None) -> None:
    """Add to the options of an actor that it has `count` accelerators of its own; or, where `shared` names
    some (see `SharedDevices.of`), that it sees those. `options` has a `runtime_env` with `env_vars`."""
    if kind.ray_resource is None:
        return
    if shared is not None:
        # Ray would put parts of devices together as it finds room: two engines on one, none on the other. Of
        # an actor that asks it for no device it leaves the variable as it is.
        options["runtime_env"]["env_vars"][kind.visible_variable] = shared
    # Ray refuses "GPU" among `resources`; it has an argument for it.
    elif kind.ray_resource == "GPU":
        options["num_gpus"] = count
    else:
        options["resources"][kind.ray_resource] = count


def visible_ids(kind: Devices, count: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The ids of the `count` devices that this process sees: those of the vendor's variable where it is set,
    else their numbers."""
    listed = environment.get(kind.visible_variable or "", "")
    named = [each.strip() for each in listed.split(",") if each.strip()]
    return named[:count] or [str(number) for number in range(count)]
