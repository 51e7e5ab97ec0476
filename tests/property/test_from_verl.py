"""Whatever a script of verl says, what is written is a valid manifest, and nothing is passed over."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljob_api import RLJob
from rljob_runtime.authoring.fields import document
from rljob_runtime.authoring.verl.convert import convert
from rljob_runtime.authoring.verl.counterparts import TABLE
from rljob_runtime.authoring.verl.launch import Launch, NoLaunch, Override, read_launch
from rljob_runtime.manifest.source import parse
from tests.support.depth import examples

VALUES = st.one_of(
    st.sampled_from(
        ["True", "False", "null", "", "[]", "[1,2]", "[0.9,0.95]", "${x}", "token", "vllm", "gspo"]
    ),
    st.sampled_from(
        ["vanilla", "cispo", "sapo", "dppo_tv", "sequence", "0.5_5.0", "npu", "cuda", "cpu", "skip"]
    ),
    st.sampled_from(["/data/a.parquet", "~/a", "Qwen/x", "hdfs://x", "a b: c #d", "constant", "cosine"]),
    st.integers(-2, 40).map(str),
    st.integers(-(10**12), 10**12).map(str),
    st.floats(-2, 4).map(str),
    st.floats().map(str),
    st.text(max_size=8),
)
OVERRIDES = st.lists(
    st.builds(
        Override,
        st.sampled_from(TABLE.keys),
        VALUES,
        st.just(1),
        st.none() | st.just("not known"),
        st.just(False),
    ),
    max_size=25,
)
PROGRAMS = st.sampled_from(
    [
        "verl.trainer.main_ppo",
        "recipe.fully_async_policy.fully_async_main",
        "verl.experimental.one_step_off_policy.main_ppo",
        "recipe.prime.main_prime",
    ]
)


@settings(max_examples=examples(150))
@given(OVERRIDES, PROGRAMS)
def test_what_is_written_is_valid(overrides, program):
    conversion = convert(Launch(1, program, tuple(overrides), ()), "train.sh")
    written = parse(conversion.text).value
    assert written == document(conversion.fields)
    RLJob.model_validate(written)
    told_of = {remark.subject.partition("=")[0] for remark in conversion.remarks}
    assert {each.key for each in overrides if each.unknown is not None} <= told_of


PIECES = [
    *[
        "x=",
        "x=(",
        ")",
        "'",
        '"',
        "\\",
        ";",
        "&&",
        "${x",
        "}",
        "$((",
        "))",
        "$(",
        "if",
        "fi",
        "else",
        "case",
        "esac",
    ],
    *[
        ";;",
        "done",
        "{",
        "<<E",
        "E",
        "#",
        "`",
        "$x",
        "${x:-1}",
        "${x[@]}",
        "1",
        "[",
        "]",
        ">",
        "2>&1",
        "x+=",
        "**",
    ],
    *["python3 -m verl.trainer.main_ppo a.b=1", "for x in", "unset x", "export ", " ", "\n"],
]
SCRIPTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@settings(max_examples=examples(600))
@example(";;x=)")
@given(SCRIPTS | st.text(max_size=60))
def test_any_text_is_read_to_its_end_or_refused_with_a_line(script):
    try:
        launch = read_launch(script, {})
    except NoLaunch as error:
        assert 1 <= error.line <= script.count("\n") + 1
    else:
        assert all(1 <= each.line <= script.count("\n") + 1 for each in launch.overrides)
