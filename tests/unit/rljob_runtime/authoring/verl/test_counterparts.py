"""The table of counterparts, as a whole."""

import re

import pytest

from rljob_runtime.authoring.fields import refusal
from rljob_runtime.authoring.verl.counterparts import TABLE
from rljob_runtime.authoring.verl.table import Section, Table, built, harmless, none
from tests.support.runtime.verl_launch import ACTOR, ROLLOUT, converted, of

ROWS = [row for section in TABLE.sections for row in section.rows]


def test_a_key_has_one_row():
    with pytest.raises(ValueError, match=r"two rows for a\.b"):
        Table((Section("One", (none("a.b", text="x"), built("a.b", text="y"))),))


def test_the_longest_group_of_a_key_counts():
    rows = (none("a.*", text="x"), none("a.b.*", text="y"), none("a.b.c", text="z"))
    table = Table((Section("One", rows),))
    assert [getattr(table.row(key), "plain_text", None) for key in ("a.z", "a.b.z", "a.b.c", "b")] == [
        "x",
        "y",
        "z",
        None,
    ]


def test_what_a_field_takes_it_can_have():
    samples = {"integer": 64, "number": 0.2, "flag": True, "text": "x"}
    direct = [row for row in ROWS if row.field is not None]
    assert len(direct) > 20
    for row in direct:
        why = refusal(f"spec.{row.field}", samples[row.kind])
        assert why is None, (row.keys, why)


def test_text_for_a_terminal_has_no_marks():
    assert none("a", text="see [`x`](y.md#z)").plain_text == "see x"
    for row in ROWS:
        assert not re.search(r"[`\[]\S*\]\(", row.plain_text)


def test_a_value_that_verl_has_off_does_not_differ():
    row = none("a", text="x", off=("1", "false"))
    assert [row.differs(value) for value in ("1", "False", "2", "True")] == [False, False, True, True]
    assert not none("a", text="x").differs("anything")


def test_a_key_that_a_group_alone_stands_for_differs_unless_the_group_is_harmless():
    row = none("a.*", text="x")
    assert [row.differs(value) for value in ("1", "True", "null", "False")] == [True, True, False, False]
    assert not harmless("a.*", text="x").differs("1")


@pytest.mark.parametrize(
    ("override", "differs"),
    [
        (f"{ACTOR}.optim.optimizer=Muon", True),
        (f"{ACTOR}.optim.optimizer=AdamW", False),
        (f"{ACTOR}.optim.num_cycles=2", True),
        (f"{ACTOR}.optim.num_cycles=0.5", False),
        (f"{ACTOR}.optim.no_such_setting=2", True),
        ("actor_rollout_ref.model.override_config.num_hidden_layers=2", True),
        ("+actor_rollout_ref.model.override_config.attention_dropout=0.1", True),
        ("+actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2", False),
        (f"+{ROLLOUT}.repetition_penalty=1.1", True),
        (f"+{ROLLOUT}.repetition_penalty=1.0", False),
        (f"{ROLLOUT}.logprobs_mode=raw_logprobs", True),
        (f"{ROLLOUT}.logprobs_mode=processed_logprobs", False),
        (f"{ROLLOUT}.skip_rollout=True", True),
        (f"{ROLLOUT}.skip_rollout=False", False),
        (f"{ROLLOUT}.update_weights_bucket_megabytes=4096", False),
        (f"{ACTOR}.fsdp_config.model_dtype=bf16", True),
        (f"{ACTOR}.fsdp_config.forward_prefetch=True", False),
        (f"+{ACTOR}.megatron.override_transformer_config.moe_aux_loss_coeff=0.01", True),
        (f"+{ACTOR}.megatron.override_transformer_config.recompute_granularity=full", False),
        ("async_training.no_such_setting=3", True),
        ("async_training.checkpoint_engine.enable=True", False),
        ("trainer.no_such_setting=3", True),
        ("trainer.use_legacy_worker_impl=disable", False),
        ("ray_kwargs.ray_init.num_cpus=8", False),
    ],
)
def test_what_is_told_to_be_looked_at(override, differs):
    conversion = converted(override)
    key = override.removeprefix("+").partition("=")[0]
    assert [decide for _, decide in of(conversion, key)] == [differs]


@pytest.mark.parametrize(("style", "differs"), [("cosine", True), ("constant", False), (None, False)])
def test_updates_over_which_the_rate_falls_are_told_where_it_falls(style, differs):
    key = f"{ACTOR}.optim.lr_decay_steps"
    asked = [] if style is None else [f"{ACTOR}.optim.lr_decay_style={style}"]
    assert [decide for _, decide in of(converted(f"{key}=100", *asked), key)] == [differs]


def test_a_length_that_moves_the_overlong_zone_is_told():
    key = "reward_model.reward_kwargs.max_resp_len"
    buffer = "reward_model.reward_kwargs.overlong_buffer_cfg"
    asked = [f"{buffer}.enable=True", f"{buffer}.len=128", "data.max_response_length=1024"]
    ((words, decide),) = of(converted(*asked, f"{key}=999"), key)
    assert "1024" in words
    assert decide
    assert [decide for _, decide in of(converted(*asked, f"{key}=1024"), key)] == [False]
    assert [decide for _, decide in of(converted(f"{key}=999"), key)] == [False]


def test_keys_of_one_folder_are_shown_short():
    markdown = Table((Section("One", (none("a.b.c", "a.b.d", "e", text="x"),)),)).markdown()
    assert markdown == "## One\n\n| key | field |\n|---|---|\n| `a.b.c`, `d`, `e` | none: x |\n"
