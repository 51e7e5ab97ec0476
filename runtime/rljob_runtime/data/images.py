"""What is said of data with images: rljob trains models of text.

Guarantees: a row with an image, a video or a sound is refused with its place and field, and never trained
without it. Pure.
"""

from collections.abc import Collection, Mapping
from typing import Any

_FIELDS = frozenset(
    {"image", "images", "video", "videos", "audio", "audios", "image_url", "multi_modal_data"}
)
"""Fields of a row under which the common data sets have what is no text (verl's image_key is images)."""
_MEDIA = ("image", "video", "audio")


def suspects(reward_fields: Collection[str]) -> frozenset[str]:
    """The fields of a row that may have what the prompt is no prompt without; not those that are named for
    the reward."""
    return _FIELDS.difference(reward_fields)


def has_content(value: Any) -> bool:
    """Whether the value of such a field is one: null, empty texts, lists and objects are none."""
    return value is not None and not (isinstance(value, str | bytes | list | Mapping) and len(value) == 0)


def medium_of(content: Any) -> str | None:
    """What the content of a chat message has beside text: "image", "video" or "audio"; None where nothing. A
    content is text, or a list of parts such as {"type": "image_url", "image_url": ...}."""
    if not isinstance(content, list):
        return None
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        for medium in _MEDIA:
            # image_url, input_image and input_audio mean the same.
            if isinstance(kind, str) and medium in kind:
                return medium
    return None


def refusal(where: str, field: str, medium: str | None = None) -> str:
    """What is said of the row or message at `where`."""
    what = (
        f"an {medium}" if medium in ("image", "audio") else f"a {medium}" if medium else "an image or alike"
    )
    return (
        f'{where}: field "{field}" has {what}: models of text alone are trained. Take such rows out of the '
        "data, or the field, where the prompt does not need it"
    )
