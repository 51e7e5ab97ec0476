"""Fields of data, reward, algorithm and optimizer from a launch of verl; `loss.py` has the policy loss."""

from pathlib import PurePosixPath

from rljob_runtime.authoring.verl.files import format_of, local_files, named
from rljob_runtime.authoring.verl.given import Given
from rljob_runtime.authoring.verl.programs import program_of
from rljob_runtime.authoring.verl.values import items
from rljob_runtime.manifest.unset import UNSET

_ACTOR = "actor_rollout_ref.actor"
_DATA = "training.data"
_FILTER = "algorithm.filter_groups"
_MOST_SOURCES = 16
_MOST_REFILL = 1000
_OVERLONG = (
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward_model.overlong_buffer",
    "reward.reward_kwargs.overlong_buffer_cfg",
)
OVERLONG_LENGTHS = ("reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len")
"""Keys of the length that the overlong zone ends at."""
_CUSTOM = ("custom_reward_function", "reward.custom_reward_function")


def data(given: Given) -> None:
    """The prompts."""
    _train_files(given)
    given.put(f"{_DATA}.answerField", "reward_model.ground_truth", "where verl's files have the answer")
    for key, field in (
        ("max_prompt_length", f"{_DATA}.maxPromptTokens"),
        ("max_response_length", "training.rollout.maxResponseTokens"),
    ):
        if f"spec.{field}" not in given.fields:
            given.put(field, 512, f"verl's default of data.{key}")
    cut = given.text("data.truncation")
    if cut not in (None, "error"):
        given.tell(
            "data.truncation", "a prompt is never cut: longPrompts: skip leaves out those that are too long"
        )
    if given.flag("data.filter_overlong_prompts"):
        given.put(f"{_DATA}.longPrompts", "skip", given.origin("data.filter_overlong_prompts"))
    elif cut not in (None, "error"):
        given.put(f"{_DATA}.longPrompts", "skip", given.origin("data.truncation"))


def _train_files(given: Given) -> None:
    key = "data.train_files"
    paths = local_files(given, key)
    if len(paths) > _MOST_SOURCES:
        given.tell(key, f"a job has at most {_MOST_SOURCES} sources: the first of {len(paths)} are taken")
    if len(paths) > 1:
        sources = [
            {"name": name, format_of(path): {"path": path}} for name, path in named(paths[:_MOST_SOURCES])
        ]
        given.put(f"{_DATA}.sources", sources, given.origin(key))
        return
    path = paths[0] if paths else None
    if path is None:
        given.tell(key, f"set spec.{_DATA}.parquet.path")
    given.put(f"{_DATA}.{format_of(path or '')}.path", path or UNSET, given.origin(key))


def reward(given: Given) -> None:
    """The reward function and its shaping."""
    path = given.text(*(f"{group}.path" for group in _CUSTOM))
    name = given.text(*(f"{group}.name" for group in _CUSTOM)) or "compute_score"
    manager_key = next(
        (key for key in ("reward_model.reward_manager", "reward.reward_manager.name") if given.known(key)), ""
    )
    manager = given.text(manager_key) if manager_key else None
    if path is not None:
        key = next(f"{group}.path" for group in _CUSTOM if given.known(f"{group}.path"))
        function = f"{PurePosixPath(path).stem}:{name}"
        given.tell(
            key,
            f"copy {PurePosixPath(path).name} beside the manifest and let {name} take one "
            "rljob_runtime.rewards.RewardInput; data_source and extra_info are in its fields with "
            "data.rewardFields",
        )
        if not given.take(key, "training.reward.function", function):
            path = None
    if path is None:
        given.put(
            "training.reward.function", "rljob_runtime.rewards.math:math_answer", "compares with the answer"
        )
        given.tell(
            "training.reward.function",
            "verl chooses a reward by each row's data_source; math_answer compares final answers of any of "
            "them. For other tasks name a function of yours",
        )
    if manager not in (None, "naive", "dapo"):
        given.tell(manager_key, "no counterpart: write what it computes as the reward function")
    _overlong(given, manager)


def _overlong(given: Given, manager: str | None) -> None:
    enabled = given.flag(*(f"{group}.enable" for group in _OVERLONG))
    tokens_key = next(
        (f"{group}.len" for group in _OVERLONG if given.known(f"{group}.len")), f"{_OVERLONG[0]}.len"
    )
    tokens = given.integer(tokens_key)
    factor_key = f"{tokens_key.rpartition('.')[0]}.penalty_factor"
    factor = given.number(factor_key)
    if not enabled or tokens is None:
        return
    if manager not in (None, "dapo"):
        given.tell(tokens_key, f"of no effect with the reward manager {manager}", False)
        return
    given.accounted |= {f"{group}.enable" for group in _OVERLONG}
    _tell_of_zone(given)
    if given.take(tokens_key, "training.reward.overlong.bufferTokens", tokens) and factor is not None:
        given.take(factor_key, "training.reward.overlong.penaltyFactor", factor)


def _tell_of_zone(given: Given) -> None:
    longest = given.fields["spec.training.rollout.maxResponseTokens"].value
    for key in OVERLONG_LENGTHS:
        length = given.integer(key)
        if length is not None and length != longest:
            given.tell(key, f"the overlong zone ends at rollout.maxResponseTokens: {longest}")


def algorithm(given: Given) -> None:
    """Advantages, KL penalty and aggregation."""
    _advantage(given)
    coefficient = given.number(f"{_ACTOR}.kl_loss_coef")
    estimator = given.text(f"{_ACTOR}.kl_loss_type") or "low_var_kl"
    if given.flag(f"{_ACTOR}.use_kl_loss") and coefficient != 0:
        _kl(given, coefficient, estimator)
    _aggregation(given)
    _filter(given)


def _advantage(given: Given) -> None:
    key, field = "algorithm.adv_estimator", "training.algorithm.advantage"
    estimator = given.text(key) or "gae"
    names = {
        "grpo": "grpo",
        "grpo_vectorized": "grpo",
        "rloo": "rloo",
        "rloo_vectorized": "rloo",
        "reinforce_plus_plus": "reinforcePlusPlus",
        "reinforce_plus_plus_baseline": "reinforcePlusPlus",
    }
    if estimator not in names:
        given.tell(key, f"{estimator} has no counterpart: grpo is left (allowed: {', '.join(names)})")
    elif estimator == "reinforce_plus_plus_baseline":
        given.put(f"{field}.reinforcePlusPlus.baseline", True, given.origin(key))
    else:
        given.put(f"{field}.{names[estimator]}", {}, given.origin(key))
    normalized = "algorithm.norm_adv_by_std_in_grpo"
    if given.flag(normalized) is False and names.get(estimator, "grpo") == "grpo":
        given.put("training.algorithm.normalizeByStd", False, given.origin(normalized))


def _kl(given: Given, coefficient: float | None, estimator: str) -> None:
    kl = "training.algorithm.kl"
    given.accounted.add(f"{_ACTOR}.use_kl_loss")
    if coefficient is None or not given.take(f"{_ACTOR}.kl_loss_coef", f"{kl}.coefficient", coefficient):
        given.put(f"{kl}.coefficient", 0.001, f"verl's default of {_ACTOR}.kl_loss_coef")
    names = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
    if estimator in names:
        given.put(f"{kl}.estimator", names[estimator], given.origin(f"{_ACTOR}.kl_loss_type"))
    else:
        given.tell(f"{_ACTOR}.kl_loss_type", "no counterpart: k3 (low_var_kl) is left")


def _aggregation(given: Given) -> None:
    key = f"{_ACTOR}.loss_agg_mode"
    mode = given.text(key)
    names = {
        "token-mean": "token-mean",
        "seq-mean-token-mean": "sequence-mean",
        "seq-mean-token-sum-norm": "fixed-length",
    }
    loss = given.text(f"{_ACTOR}.policy_loss.loss_mode")
    if loss in ("gspo", "sapo"):
        given.put("training.algorithm.aggregation", "sequence-mean", f"verl's {loss} has no other")
    elif mode in names:
        given.put("training.algorithm.aggregation", names[mode], given.origin(key))
    elif mode is not None:
        given.tell(key, f"no counterpart: token-mean is left (allowed: {', '.join(names)})")


def _filter(given: Given) -> None:
    key, metric_key, most_key = (f"{_FILTER}.{name}" for name in ("enable", "metric", "max_num_gen_batches"))
    metric = given.text(metric_key)
    most = given.integer(most_key)
    if not given.flag(key):
        return
    known = program_of(given.launch.program)
    if known is not None and not known.filters:
        given.tell(key, f"{known.name} trains every group in verl, and leaves none out: the DAPO recipe does")
    _tell_what_is_compared(given, metric_key, metric)
    given.accounted.add(key)
    given.put("training.rollout.filter.zeroVariance.maxRefill", *_refill(given, most_key, most))


def _tell_what_is_compared(given: Given, key: str, metric: str | None) -> None:
    """verl's acc and score are what the reward function returns, without its shaping."""
    shaped = "spec.training.reward.overlong.bufferTokens" in given.fields
    own = any(given.known(f"{group}.path") for group in _CUSTOM)
    alike = {
        "acc": not (shaped or own),
        "score": not shaped,
        "seq_reward": True,
        "seq_final_reward": True,
    }
    if metric is not None and not alike.get(metric, False):
        given.tell(key, "what is compared is the reward with its shaping")


def _refill(given: Given, key: str, most: int | None) -> tuple[int, str]:
    """How many steps' groups may be refused for one step, and a comment: verl generates `most` batches of
    `gen_batch_size` prompts for one that is trained, and without a bound where that is 0."""
    origin = given.origin(key)
    if most is None or most < 1:
        words = f"what verl generates for a step has no bound: {_MOST_REFILL}, the most, is taken"
        given.tell(key, words, False)
        return _MOST_REFILL, origin
    trained = max(1, given.integer("data.train_batch_size") or 1024)
    refill = most * max(1, given.integer("data.gen_batch_size") or trained) // trained - 1
    if refill < 1:
        given.tell(key, "1, the least, is taken: verl ends with an error where one generation is not enough")
    elif refill > _MOST_REFILL:
        given.tell(key, f"{_MOST_REFILL}, the most, is taken")
    return max(1, min(refill, _MOST_REFILL)), origin


def optimizer(given: Given) -> None:
    """AdamW and its schedule; the fields of the schedule must be there."""
    optim, field = f"{_ACTOR}.optim", "training.optimizer"
    styles = [
        given.text(f"{optim}.{name}") for name in ("lr_decay_style", "lr_scheduler_type", "warmup_style")
    ]
    for name, style in zip(("lr_decay_style", "lr_scheduler_type", "warmup_style"), styles, strict=True):
        if style is not None:
            given.take(f"{optim}.{name}", f"{field}.schedule", style)
    falls_over = given.integer(f"{optim}.lr_decay_steps")
    schedule = given.fields.get(f"spec.{field}.schedule")
    if falls_over is not None and falls_over > 0 and schedule is not None and schedule.value != "constant":
        given.tell(f"{optim}.lr_decay_steps", "the rate falls over the job's updates")
    warmup = given.integer(f"{optim}.lr_warmup_steps")
    ratio = given.number(f"{optim}.lr_warmup_steps_ratio")
    if warmup is not None and warmup >= 0:
        given.take(f"{optim}.lr_warmup_steps", f"{field}.warmupUpdates", warmup)
    elif ratio:
        _warm_up_by_part(given, ratio)
    betas = given.overrides.get(f"{optim}.betas")
    if betas is not None and given.known(f"{optim}.betas"):
        numbers = items(betas.value)
        if len(numbers) == 2:
            for name, value in zip(("beta1", "beta2"), numbers, strict=True):
                given.take(f"{optim}.betas", f"{field}.{name}", value)
        else:
            given.tell(f"{optim}.betas", "left out: must be two numbers")


def _warm_up_by_part(given: Given, ratio: float) -> None:
    key = f"{_ACTOR}.optim.lr_warmup_steps_ratio"
    schedule = "spec.training.schedule"
    steps = given.fields.get(f"{schedule}.totalSteps")
    if steps is None:
        given.tell(key, "set training.optimizer.warmupUpdates: the number of updates is not known here")
        return
    updates = steps.value * given.fields[f"{schedule}.batchesPerStep"].value
    given.take(key, "training.optimizer.warmupUpdates", round(min(1.0, max(0.0, ratio)) * updates))
