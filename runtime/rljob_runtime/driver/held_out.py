"""The prompts of a job's evaluations, read before anything is started."""

from pathlib import Path

from rljob_api.training import Training
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.held_out import trained_prompts
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.rollout.evaluator import HeldOutSet


def held_out_sets(
    training: Training, trained: PromptSource, tokenizer: TextTokenizer, base: Path
) -> tuple[HeldOutSet, ...]:
    """The sets of training.evaluation; paths are relative to `base`. Raises `DataError` for what is no
    prompt, for an empty set, and where one has prompts that are trained."""
    if training.evaluation is None:
        return ()
    sets, sources = training.evaluation.sets, []
    places = [f"training.evaluation.sets[{index}] ({each.name})" for index, each in enumerate(sets)]
    for index, data in enumerate(training.held_out):
        try:
            sources.append(PromptSource(data, tokenizer, training.seed + 1 + index, base))
        except DataError as error:
            raise DataError(f"{places[index]}: {error}") from error
    # Tasks have few different prompts, and repeat them by chance.
    compared = [index for index, each in enumerate(sets) if each.data.generated is None]
    for place, why in trained_prompts(
        [sources[index].texts() for index in compared], trained.texts()
    ).items():
        raise DataError(f"{places[compared[place]]}: {why}")
    return tuple(
        HeldOutSet(each.name, source.rows, source.prompt) for each, source in zip(sets, sources, strict=True)
    )
