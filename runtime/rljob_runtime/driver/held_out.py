"""The prompts of a job's evaluations, read before anything is started."""

from pathlib import Path

from rljob_api.training import Training
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.held_out import check_held_out
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.rollout.evaluator import HeldOutSet


def held_out_sets(
    training: Training, trained: PromptSource, tokenizer: TextTokenizer, base: Path
) -> tuple[HeldOutSet, ...]:
    """The sets of training.evaluation; paths are relative to `base`. Raises `DataError` for what is no
    prompt, for an empty set, and where one has prompts that are trained."""
    found = []
    for index, each in enumerate(training.evaluation.sets if training.evaluation is not None else ()):
        try:
            source = PromptSource(each.data, tokenizer, training.seed + 1 + index, base)
            # Tasks have few different prompts, and repeat them by chance.
            if each.data.generated is None:
                check_held_out(source.texts(), trained.texts())
        except DataError as error:
            raise DataError(f"training.evaluation.sets[{index}] ({each.name}): {error}") from error
        found.append(HeldOutSet(each.name, source.rows, source.prompt))
    return tuple(found)
