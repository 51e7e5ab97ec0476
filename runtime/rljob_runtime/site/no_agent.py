"""A program that stands in for Ray's dashboard agent (`lean_ray`): it does nothing until the raylet that has
started it has ended. It imports nothing but what Python has."""

import os
import select
from contextlib import suppress


def main() -> None:
    with suppress(ProcessLookupError):  # it has ended already
        select.select([os.pidfd_open(int(os.environ["RAY_RAYLET_PID"]))], [], [])


if __name__ == "__main__":
    main()
