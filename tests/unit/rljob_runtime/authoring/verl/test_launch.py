"""What a shell script gives verl, found without running it."""

from pathlib import Path

import pytest

from rljob_runtime.authoring.verl.launch import Launch, NoLaunch, read_launch

START = "python3 -m verl.trainer.main_ppo"
SCRIPT = Path(__file__).parent / "fully_async.sh"


def launch(script: str, **given: str) -> Launch:
    return read_launch(script, given)


def value(before: str, word: str, **given: str) -> str:
    """What the value of a single override is."""
    (override,) = launch(f"{before}\n{START} a.b={word}\n", **given).overrides
    assert override.unknown is None, override.unknown
    return override.value


def unknown(before: str, word: str, **given: str) -> str:
    """Why the value of a single override is not known."""
    (override,) = launch(f"{before}\n{START} a.b={word}\n", **given).overrides
    assert override.unknown is not None
    return override.unknown


@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("", "1", "1"),
        ("", "'a b'", "a b"),
        ("", '"a b"', "a b"),
        ("", r"a\ b", "a b"),
        ("", "'$x'", "$x"),
        ("", r'"\$x \\ \a"', r"$x \ \a"),
        ("", "\"['$PWD', 'x']\"", "['/w', 'x']"),
        ("", "['a','b']", "[a,b]"),
        ("", "x#y", "x#y"),
        ("x=1", "$x", "1"),
        ("x=1", "${x}2", "12"),
        ("x='a b'", '"$x"', "a b"),
        ("export x=1 y=2", "$x$y", "12"),
        ("declare -r x=1", "$x", "1"),
        ("x=1; x=2", "$x", "2"),
        ("x=a; x+=b", "$x", "ab"),
        ("x=1 # not x=2", "$x", "1"),
        ("x=1\\\n2", "$x", "12"),
        ("x=${y:-3}", "$x", "3"),
        ("y=\nx=${y:-3}", "$x", "3"),
        ("y=\nx=${y-3}", "x$x", "x"),
        ("y=4\nx=${y:-3}", "$x", "4"),
        (': "${x:=5}"', "$x", "5"),
        ("y=1\nx=${y:+6}", "$x", "6"),
        ("x=${y:-${z:-7}}", "$x", "7"),
        ("x=${y:-'a b'}", '"$x"', "a b"),
        ("x=$((1024 * 2))", "$x", "2048"),
        ("y=3\nx=$(((y+1)*2 - 7 / 2))", "$x", "5"),
        ("y=3", "$(($y ** 2 % 5))", "4"),
        ("y='z + 1'\nz=4", "$((y * 2))", "10"),
        ("", "$((-7 / 2))", "-3"),
        ("", "$((010 + 0x10))", "24"),
        ("x=(a b)", "${x}", "a"),
        ("x=1\nunset x\nx=${x:-2}", "$x", "2"),
        ("cat <<END\nx=5\nEND\nx=1", "$x", "1"),
        ("cat <<-'END'\n\tx=5\n\tEND\nx=1", "$x", "1"),
        ("x=1 > x=2.log 2>&1", "$x", "1"),
        # A condition that changes nothing, and one that is the only place where a value comes from.
        ("x=1\nif true; then x=1; fi", "$x", "1"),
        ("if [ $a = b ]; then\n  x=1\nfi", "$x", "1"),
        ("if a; then x=1; else x=1; fi", "$x", "1"),
        ("case $a in\n b) x=1 ;;\n *) x=1 ;;\nesac", "$x", "1"),
        ("for x in 8; do true; done", "$x", "8"),
        ("f() {\n  x=1\n}\nf", "$x", "1"),
        ('[ -z "$x" ] && x=9', "$x", "9"),
        # Conditions that texts of the script decide.
        ("a=b\nif [ $a = b ]; then x=1; else x=2; fi", "$x", "1"),
        ("a=b\nif [ $a = c ]\nthen\n x=1\nelse\n x=2\nfi", "$x", "2"),
        ("x=0\na=b\nif [[ $a != b ]]; then x=1; fi", "$x", "0"),
        ("a=b\nif [ $a = c ]; then x=1; elif [ $a = b ]; then x=2; else x=3; fi", "$x", "2"),
        ("a=b\nif [ $a = b ]; then x=1; elif [ $u = b ]; then x=2; else x=3; fi", "$x", "1"),
        ("a=b\nif [ $a = c ] || [ $a = b ]; then x=1; else x=2; fi", "$x", "1"),
        ("a=b\nif [ $a = c ] && [ $u = b ]; then x=1; else x=2; fi", "$x", "2"),
        ("n=2\n[ $n -gt 1 ] && x=$n || x=null", "$x", "2"),
        ("n=1\n[ $n -gt 1 ] && x=$n || x=null", "$x", "null"),
        ("a=b\ncase $a in\n c|b)\n x=1\n ;;\n *)\n x=2\n ;;\nesac", "$x", "1"),
        ("a=z\ncase $a in c|b) x=1 ;; *) x=2 ;; esac", "$x", "2"),
        ("a=z\nx=0\ncase $a in\n (c) x=1 ;;\n (b) x=2\nesac", "$x", "0"),
        ("a=b\ncase $a in\n b) if [ $a = b ]; then x=3; else x=4; fi ;;\n *) x=2 ;;\nesac", "$x", "3"),
        ("x=0\nif false; then\n if [ $u ]; then x=1; fi\n x=2\nfi", "$x", "0"),
    ],
)
def test_values(before, word, expected):
    assert value(before, word, PWD="/w") == expected


@pytest.mark.parametrize(
    ("before", "word", "words"),
    [
        ("", "$(date +%s)", "$(date +%s) is what a command prints, and no command is run"),
        ("", "`date`", "`date` is what a command prints, and no command is run"),
        ("x=run_$(date)", "$x", "$(date) is what a command prints, and no command is run"),
        ("", "$HOME/x", "HOME has no value in the script: give it with --set HOME=VALUE"),
        ("x=$(date)", "${x:+y}", "$(date) is what a command prints, and no command is run"),
        ("", "$1", "$1 is an argument of the script"),
        ("x=a.b", "${x%.b}", "${x%.b} is a form of expansion that is not read"),
        ("x=abc", "${x:1:2}", "${x:1:2} is a form of expansion that is not read"),
        ("", "$((1 / 0))", "$((1 / 0)) cannot be computed: it divides by 0"),
        ("", "$((x < 1))", "$((x < 1)) cannot be computed: < 1 is not understood in arithmetic"),
        ("x=$x+1", "$x", "x has no value in the script: give it with --set x=VALUE"),
        ("x=x", "$((x))", "$((x)) cannot be computed: it refers to itself, or is nested too deeply"),
        ("", "$((2 ** 63))", "$((2 ** 63)) cannot be computed: it leaves 64 bits"),
        ("x=1\n\nif a; then\n x=2\nfi", "$x", "x depends on the condition of line 3"),
        ("if a; then x=1; else x=2; fi", "$x", "x depends on the condition of line 1"),
        ("if a; then x=1; elif b; then x=2; fi", "$x", "x depends on the condition of line 1"),
        ("case $a in\n b) x=1 ;;\n *) x=2 ;;\nesac", "$x", "x depends on the condition of line 1"),
        ("x=1\n[ -z $y ] && x=2", "$x", "x depends on the condition of line 2"),
        ("for x in 1 2; do true; done", "$x", "x is the variable of the loop of line 1"),
        (
            "if [ $u ]; then x=1; fi\ny=${x:-2}",
            "$y",
            "it may have its default: x is set under the condition of line 1 alone",
        ),
        (
            "if [ $u ]; then x=1; fi\nx+=2",
            "$x",
            "it is added to what may not be there: x is set under the condition of line 1 alone",
        ),
        (
            "if [ $u ]; then x=1; fi\ny=0\nif [ -n $x ]; then y=1; fi",
            "$y",
            "y depends on the condition of line 3",
        ),
        ("a=b\nx=0\nif [ $a = b ] && [ $u ]; then x=1; fi", "$x", "x depends on the condition of line 3"),
        ("x=0\nif [ $u ]; then x=1; elif true; then x=2; fi", "$x", "x depends on the condition of line 2"),
        ("a=bcd\nx=0\nif [[ $a == b* ]]; then x=1; fi", "$x", "x depends on the condition of line 3"),
        ("x=0\nif grep -q a b; then x=1; fi", "$x", "x depends on the condition of line 2"),
        ("a=b\ncase $a in\n [a-c]) x=1 ;;\n *) x=2 ;;\nesac", "$x", "x depends on the condition of line 2"),
    ],
)
def test_what_is_not_known_is_told_and_never_guessed(before, word, words):
    assert unknown(before, word) == words


@pytest.mark.parametrize(
    "script",
    [
        f"{START} a.b=1 c.d=2",
        f"{START} \\\n  a.b=1 \\\n  c.d=2\n",
        f"x='a.b=1 c.d=2'\n{START} $x",
        f"x=(\n  a.b=1 # one\n  c.d=2\n)\n{START} ${{x[@]}}",
        f'x=(a.b=1)\nx+=(c.d=2)\n{START} "${{x[@]}}"',
        f'x="{START}"\n$x a.b=1 c.d=2',
        "ray job submit --runtime-env=e.yaml -- python3 -m verl.trainer.main_ppo a.b=1 c.d=2 | tee log",
        "PYTHONUNBUFFERED=1 nohup python verl/trainer/main_ppo.py a.b=1 c.d=2 > log 2>&1 &",
        "torchrun -m recipe.dapo.main_dapo a.b=1 c.d=2",
        f"if x; then\n  {START} a.b=1 c.d=2\nfi",
        f"python3 -m prepare.data a.b=7\n{START} a.b=1 c.d=2",
        f"if ! {START} a.b=1 c.d=2; then exit 1; fi",
        f"cd /w && {START} a.b=1 c.d=2 || exit 1",
        f"f() {{\n  {START} a.b=1 c.d=2\n}}\nf",
        f"function f() {{\n  {START} a.b=1 c.d=2\n}}\nf",
        f"a=x\nif [ $a = y ]; then\n  {START} a.b=7\nelse\n  {START} a.b=1 c.d=2\nfi",
    ],
)
def test_forms_of_a_launch(script):
    found = launch(script)
    assert [(each.key, each.value) for each in found.overrides] == [("a.b", "1"), ("c.d", "2")]


def test_marks_of_overrides():
    found = launch(f"{START} +a=1 ++b.c=2 ~d e=f=g")
    assert [(each.key, each.value, each.removed) for each in found.overrides] == [
        ("a", "1", False),
        ("b.c", "2", False),
        ("d", "", True),
        ("e", "f=g", False),
    ]


def test_lines_are_those_of_the_overrides():
    found = launch(f"x=(\n  a.b=1\n)\n\n{START} \\\n  ${{x[@]}} \\\n  c.d=2\n")
    assert [each.line for each in found.overrides] == [2, 7]
    assert found.line == 5


def test_every_other_word_of_a_launch_is_told():
    found = launch(f"{START} --config-name=x a=1 word model@x=y $(options) $@\n")
    assert [str(remark) for remark in found.remarks] == [
        "--config-name=x: not read: where that file changes a default of verl, set the field here",
        "word: left out: no key=value",
        "model@x=y: it chooses a file of verl's configuration: not read",
        "$(options): left out: $(options) is what a command prints, and no command is run",
        "$@: arguments of the script, which are not known here",
    ]


def test_overrides_that_bash_does_not_pass_are_told():
    found = launch(f"{START} a.b=1 \\\n  # a comment ends the command\n  c.d=2 \\\n  e.f=3\n")
    assert [each.key for each in found.overrides] == ["a.b"]
    (remark,) = found.remarks
    assert (remark.line, remark.subject) == (3, "c.d")
    assert remark.words.startswith("a command of its own, so not part of the launch of line 1")


def test_a_second_launch_and_defaults_for_the_environment_are_told():
    found = launch(f"x=${{X:-1}}\n{START} a=$x\n{START} a=2\n")
    assert [(remark.line, remark.subject, remark.decide) for remark in found.remarks] == [
        (3, "verl.trainer.main_ppo", True),
        (1, "X", False),
    ]


def test_a_value_that_a_condition_alone_sets_is_told():
    found = launch(f"if [ $a = b ]; then\n  x=1\nfi\ny=$((x + 1))\n{START} k.x=$x k.y=$y\n")
    assert [(each.key, each.value) for each in found.overrides] == [("k.x", "1"), ("k.y", "2")]
    alone = "taken as it is: x is set under the condition of line 1 alone"
    assert [str(remark) for remark in found.remarks] == [f"k.x=1: {alone}", f"k.y=2: {alone}"]


def test_given_variables_count_until_the_script_sets_them():
    assert value("y=${HOME:-/none}", "$y", HOME="/home/me") == "/home/me"
    assert value("HOME=/other", "$HOME", HOME="/home/me") == "/other"


def test_a_whole_script():
    found = read_launch(SCRIPT.read_text(), {})
    values = {each.key: each.value for each in found.overrides}
    assert len(values) == len(found.overrides) == 114
    assert values["data.train_files"] == "/data/gsm8k/train.parquet"
    assert values["actor_rollout_ref.rollout.max_num_batched_tokens"] == "6144"
    assert values["rollout.total_rollout_steps"] == "512000"
    assert values["data.return_raw_chat"] == "True"
    assert [each.key for each in found.overrides if each.unknown] == ["trainer.experiment_name"]


@pytest.mark.parametrize(
    ("script", "line", "words"),
    [
        ("", 1, "no launch of verl found"),
        ("python3 -m other.main a=1", 1, "no launch of verl found"),
        (f'bash -c "{START} a=1"', 1, "no launch of verl found"),
        ("x=1\ny='abc\n", 2, "not a shell script: the ' that begins here is not closed"),
        ('x="abc\n', 1, 'not a shell script: there is no " for what begins here'),
        ("x=$(abc\n", 1, "not a shell script: the ( that begins here is not closed"),
        ("x=(a b\n", 1, "not a shell script: the ( of x= is not closed"),
        ("x=${y\n", 1, "not a shell script: there is no } for what begins here"),
        ("ls >\n", 1, "not a shell script: > has no file behind it"),
        ("${x:-" * 5000, 1, "not a shell script"),
    ],
)
def test_no_launch(script, line, words):
    with pytest.raises(NoLaunch) as caught:
        launch(script)
    assert caught.value.line == line
    assert str(caught.value).startswith(words)


def test_a_given_variable_decides_what_a_script_finds_out_by_a_command():
    script = f"""\
DEVICE=${{DEVICE:-$(python3 -c 'import torch_npu' && echo npu || echo gpu)}}
more=(a=1)
case "${{DEVICE}}" in
    gpu)
        more+=(b=2)
        ;;
    npu)
        more+=(c=3)
        ;;
    *)
        exit 1
        ;;
esac
{START} "${{more[@]}}" "$@"
"""
    assert [each.key for each in launch(script, DEVICE="gpu").overrides] == ["a", "b"]
    assert [each.key for each in launch(script, DEVICE="npu").overrides] == ["a", "c"]
    found = launch(script)
    assert found.overrides == ()
    assert [remark.words for remark in found.remarks] == [
        "left out: more depends on the condition of line 3",
        "arguments of the script, which are not known here",
        "taken as not set: the script's default counts; --set gives it a value",
    ]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('C=" a.b=1 c.d=$U/x e.f=2"\nRUN $C', {"a.b": True, "c.d": False, "e.f": True}),
        ('C="a.b=1 c.d=$U"\nC+=" e.f=2"\nRUN $C', {"a.b": True, "c.d": False, "e.f": True}),
        (
            'C="a.b=1 c.d=$(date +%s) e.f=2"\nRUN $C g.h=$U',
            {"a.b": True, "c.d": False, "e.f": True, "g.h": False},
        ),
        ('C="a.b=1 c.d=$U"\nD="$C e.f=2"\nRUN $D', {"a.b": True, "c.d": False, "e.f": True}),
        ('C="a.b=1 c.d=$U"\nRUN ${C}x e.f=2', {"a.b": True, "c.d": False, "e.f": True}),
        ('C="a.b=$U$V c.d=1"\nRUN $C', {"a.b": False, "c.d": True}),
        ('C=("a.b=$U" c.d=1)\nRUN "${C[@]}"', {"a.b": False, "c.d": True}),
        # What one condition alone sets may not be there; what is added to it is.
        (
            'if [ $u ]; then C="a.b=1 c.d=2"; fi\nC+=" e.f=3"\nRUN $C',
            {"a.b": False, "c.d": False, "e.f": True},
        ),
        # A blank in what is unknown is none of the script's.
        ('C="a.b=${U%x y} c.d=1"\nRUN $C', {"a.b": False, "c.d": True}),
    ],
)
def test_what_is_unknown_takes_no_other_word_with_it(script, expected):
    found = launch(script.replace("RUN", START))
    assert {each.key: each.unknown is None for each in found.overrides} == expected
    assert [remark for remark in found.remarks if remark.words.startswith("left out")] == []


def test_a_word_that_is_unknown_as_a_whole_is_told():
    found = launch(f'C="a.b=1 $U c.d=2"\n{START} $C')
    assert [each.key for each in found.overrides] == ["a.b", "c.d"]
    assert [str(remark) for remark in found.remarks] == [
        "$U: left out: U has no value in the script: give it with --set U=VALUE"
    ]
