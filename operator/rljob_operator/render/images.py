"""The runtime's image where a job names none.

Guarantees: pure; a job that names an image keeps it. An image takes part in an attempt's RayCluster alone,
which is created once: another default holds from the next attempt on.
"""

import argparse
from collections.abc import Mapping
from typing import Any, get_args

from rljob_api import Spec

RuntimeImages = Mapping[str, str]
"""Image by `spec.accelerator`."""

ACCELERATORS: tuple[str, ...] = get_args(Spec.model_fields["accelerator"].annotation)
OPTION = "--runtime-image"
"""Of the commands that take default images."""


def runtime_image(text: str) -> tuple[str, str]:
    """Accelerator and image of `ACCELERATOR=IMAGE`. Raises `ValueError`."""
    accelerator, _, image = text.partition("=")
    if accelerator not in ACCELERATORS or not image or any(character.isspace() for character in image):
        raise ValueError(
            f"must be ACCELERATOR=IMAGE, such as cpu=rljob/runtime:cpu, with one of "
            f"{', '.join(ACCELERATORS)} (found {text!r})"
        )
    return accelerator, image


def with_runtime_image(spec: Spec, images: RuntimeImages) -> Spec:
    """The spec, with the default image of its accelerator where it names none."""
    image = images.get(spec.accelerator)
    return spec if spec.image is not None or image is None else spec.model_copy(update={"image": image})


def add_option(parser: argparse.ArgumentParser) -> None:
    """Let a command take default images: `runtime_images` of what it parses."""
    parser.add_argument(
        OPTION,
        action=_Collect,
        default={},
        dest="runtime_images",
        metavar="ACCELERATOR=IMAGE",
        help="image of jobs that name none, such as cpu=rljob/runtime:cpu; once for each accelerator",
    )


class _Collect(argparse.Action):
    """Gathers the option's values into a mapping."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, flag: Any = None
    ) -> None:
        try:
            accelerator, image = runtime_image(values)
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from error
        known: RuntimeImages = getattr(namespace, self.dest)
        # Else the last one would win in silence.
        if accelerator in known:
            raise argparse.ArgumentError(self, f"is given twice for {accelerator}")
        setattr(namespace, self.dest, {**known, accelerator: image})
