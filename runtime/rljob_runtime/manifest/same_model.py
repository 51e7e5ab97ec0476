"""Whether a job asks for the model that a run began with, by what config.json says of either; what is told
where it does not, or where weights differ. Pure.

Guarantees: what is told differs; weights of one such model are none of the other, or would compute something
else there. What only one of the two says is not compared: a folder may
leave out what is as by default.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rljob_api.errors import Path, Problem
from rljob_api.model import RandomModel
from rljob_runtime.parallel.rank_layout import experts_of
from rljob_runtime.weights.model_files import text_part

Config = Mapping[str, Any]
"""A config.json, or what it would say of a model that is to be made."""

_MODEL: Path = ("spec", "training", "model")
_OF_RANDOM: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("model_type", ("architecture",)),
    ("num_hidden_layers", ("layers",)),
    ("hidden_size", ("hiddenSize",)),
    ("intermediate_size", ("intermediateSize",)),
    ("num_attention_heads", ("attentionHeads",)),
    ("num_key_value_heads", ("keyValueHeads",)),
    ("head_dim", ("headDim",)),
    ("vocab_size", ("vocabularySize",)),
    ("tie_word_embeddings", ("tieWordEmbeddings",)),
    ("num_experts", ("experts", "count")),
    ("num_experts_per_tok", ("experts", "perToken")),
    ("moe_intermediate_size", ("experts", "intermediateSize")),
    ("max_position_embeddings", ("maxPositionEmbeddings",)),
)
"""What config.json calls the fields of `training.model.random`, for most readers the larger things first."""
_MAY_CHANGE = ("max_position_embeddings", "num_experts_per_tok")
"""Where the model is a folder: no weight has its shape from them. A random model is not made again, so that
they stay as well."""
_OF_FOLDERS = tuple(name for name, _ in _OF_RANDOM if name not in _MAY_CHANGE)
_ANEW = "to go on with --resume, or begin anew with --restart, or beside it with another --output"


def config_of(shape: RandomModel, tokenizer: int) -> dict[str, Any]:
    """What config.json says of a random model for a tokenizer of so many tokens, as far as fields of the
    shape say it."""
    said: dict[str, Any] = {
        "model_type": shape.architecture,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.attention_heads,
        "num_key_value_heads": shape.key_value_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.tokens(tokenizer),
        "tie_word_embeddings": shape.tie_word_embeddings,
        "max_position_embeddings": shape.max_position_embeddings,
    }
    if shape.experts is not None:
        said |= {
            "num_experts": shape.experts.count,
            "num_experts_per_tok": shape.experts.per_token,
            "moe_intermediate_size": shape.experts.intermediate_size,
        }
    return said


def of_random(shape: RandomModel, tokenizer: int, began: Config) -> list[Problem]:
    """In which fields a random model is another one than that of the config which a run began with.
    `tokenizer`: its tokens."""
    differing = dict(_differing(config_of(shape, tokenizer), began, (name for name, _ in _OF_RANDOM)))
    fields = [(name, field) for name, field in _OF_RANDOM if name in differing]
    # Of another family fields mean something else, and a person has more than one to set back.
    if "model_type" in differing:
        fields = fields[:1]
    return [_of_field(field, *differing[name], shape, tokenizer) for name, field in fields]


def of_folder(path: str, config: Config, began: Config) -> list[Problem]:
    """In what a folder's model is another one than that of the config which a run began with; `path`: the
    folder, as the job names it."""
    found = list(_differing(config, began, _OF_FOLDERS))
    if not found:
        return []
    parts = ", ".join(
        f"{name} {_words(wanted)} where that has {_words(had)}" for name, (wanted, had) in found
    )
    return [
        Problem(
            (*_MODEL, "path"),
            f"{path} is not the model that the run began with ({parts}): set it back {_ANEW}",
        )
    ]


def other_adapter(was: str | None, wanted: str | None) -> Problem | None:
    """What is wrong where a checkpoint has another adapter, in words, than the job asks for; None: all
    weights are trained."""
    if was == wanted:
        return None
    return Problem(
        ("spec", "training", "adapter"),
        f"the job asks for {_trained(wanted)}, and the checkpoint has {_trained(was)}: set it back {_ANEW}",
    )


def other_weights(field: str, folder: str, use: str, there: bool) -> Problem:
    """What is wrong where a folder has other weights than those that the run began with, or, unless some are
    `there`, none. `field`: of `training.model`, where the model is asked for; `use`: what the run needs them
    for."""
    what = "has other weights than those" if there else "does not have the weights"
    return Problem(
        (*_MODEL, field), f"{folder} {what} that the run began with, {use}: put those back {_ANEW}"
    )


def _of_field(
    field: tuple[str, ...], wanted: object, had: object, shape: RandomModel, tokenizer: int
) -> Problem:
    place = (*_MODEL, "random", *field)
    if field == ("vocabularySize",) and shape.vocabulary_size is None:
        return Problem(
            place,
            f"{wanted} by default, for a tokenizer of {tokenizer} tokens, and the run began with {had}: set "
            f"the tokenizer back {_ANEW}",
        )
    return Problem(place, f"{_words(wanted)}, and the run began with {_words(had)}: set it back {_ANEW}")


def _differing(wanted: Config, began: Config, names: Iterable[str]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Each name of which both configs say something, and not the same."""
    wanted, began = _of_text(wanted), _of_text(began)
    for name in names:
        values = wanted.get(name), began.get(name)
        if None not in values and values[0] != values[1]:
            yield name, values


def _of_text(config: Config) -> Config:
    """What is compared, by its first name, and of the part for text where a model has one. What families call
    the number of experts differs, and transformers writes either name for the same one."""
    said = text_part(config)
    experts = [said[name] for name in experts_of(said)]
    return said | {"num_experts": experts[0]} if experts else said


def _words(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _trained(adapter: str | None) -> str:
    return "all weights, without an adapter" if adapter is None else f"an adapter ({adapter})"
