"""Reading manifests: what YAML means, where each field stands, and what people are told."""

from pathlib import Path

import pytest
import yaml

from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import ManifestError, read
from rljob_runtime.manifest.source import YamlError, parse
from tests.support.jobs import job

ROOT = Path(__file__).parents[4]
DEEP = "nested too deeply: more than 100"
NAMED = "apiVersion: rljob.dev/v1alpha1\nkind: RLJob\nmetadata:\n  name: "
HEAD = "apiVersion: rljob.dev/v1alpha1\nkind: RLJob\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-2", -2),
        ("0x10", 16),
        ("010", 8),
        ("0o10", 8),
        ("1_000", 1000),
        ("0", 0),
        (".inf", float("inf")),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("~", None),
        ("1.2.3", "1.2.3"),
        ("'1'", "1"),
    ],
)
def test_scalars_mean_what_they_mean_to_kubectl(text, value):
    found = parse(f"a: {text}").value["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("0123", "83"),
        ("0x10", "16"),
        ("1_000", "1000"),
        ("+7", "7"),
        ("1e3", "1000.0"),
        ("1.50", "1.5"),
        ("yes", "true"),
        ("No", "false"),
        ("on", "true"),
        ("~", "nothing"),
        # They are told as they are written.
        ("83", None),
        ("1.5", None),
        ("true", None),
    ],
)
def test_what_the_file_says_is_told_where_it_is_read_as_something_else(tmp_path, written, read_as):
    [said] = errors_of(tmp_path, f"{NAMED}{written}\nspec: {{}}\n")[:1]
    assert said.startswith("4  metadata.name: must be a string") and f"(found {read_as or written})" in said
    assert said.partition(" The file says ")[2] == (
        f"{written}, which YAML reads as {read_as}." if read_as else ""
    )


@pytest.mark.parametrize("written", ["2026-01-01", "12:30:45", "'0123'", "1.2.3"])
def test_texts_are_told_as_they_are_written(tmp_path, written):
    text = f"{HEAD}spec: {{pools: {{trainer: {{replicas: {written}}}}}}}\n"
    said = errors_of(tmp_path, text)
    assert any(f"found {written!r}" in each or f"found {written})" in each for each in said)
    assert not any("The file says" in each for each in said)


def test_what_the_file_says_is_told_of_the_value_that_is_told_alone(tmp_path):
    wrong = "pools: {trainer: {replicas: 01000000, resources: {limits: {cpu: 0x1_, memory: -0x10}}}}"
    said = errors_of(tmp_path, f"{HEAD}spec: {{{wrong}, image: yes, runPolicy: ~}}\n")
    endings = {line.split()[1]: line.partition(" The file says ")[2] for line in said}
    assert {field: ending for field, ending in endings.items() if ending} == {
        "spec.pools.trainer.replicas:": "01000000, which YAML reads as 262144.",
        "spec.pools.trainer.resources.limits.memory:": "-0x10, which YAML reads as -16.",
        "spec.image:": "yes, which YAML reads as true.",
        "spec.runPolicy:": "~, which YAML reads as nothing.",
    }


def test_lines():
    source = parse("a:\n  b: 1\n  c:\n  - x\n  - {d: 1,\n     e: 2}\n")
    assert source.lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
        ("a", "c", 1, "d"): 5,
        ("a", "c", 1, "e"): 6,
    }
    assert source.line(("a", "c", 1, "nothing", "here")) == 5
    assert source.line(("elsewhere",)) == 1


@pytest.mark.parametrize("text", ["a: 1\n---\n", "---\n---\na: 1\n--- # nothing\n...\n"])
def test_documents_that_hold_nothing_do_not_count(text):
    assert parse(text).value == {"a": 1}


def test_anchors_and_merge_keys():
    assert parse("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\n").value["d"] == {"b": 1, "c": 3}


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", [(1, "the file is empty")]),
        ("# nothing\n", [(1, "the file is empty")]),
        ("- a\n", [(1, "the file must hold fields with values (manifests begin with apiVersion and kind)")]),
        ("a: 1\n---\nb: 1\n", [(3, "a second document begins here; one file holds one RLJob")]),
        ("a: [1\nb: 2\n", [(2, "not YAML: expected ',' or ']', but got ':' (the [ or { of line 1 is open)")]),
        ("a: 1\nb: {c: [1, 2\n", [
            (3, "not YAML: expected ',' or ']', but got '<stream end>' (the [ or { of line 2 is open)")]),
        ("a: 1\n\tb: 2\n", [(2, "not YAML: there is a tab: indent with spaces")]),
        ("a: \x07\n", [(1, "not text: special characters are not allowed")]),
        ("a: 1\nb: {c: 1, c: 2}\na: 3\n", [
            (2, "c is written twice (first in line 2)"), (3, "a is written twice (first in line 1)")]),
        ("? [x]\n: 1\n", [(1, "a key must be a plain word")]),
        ("a: &a [*a]\n", [(1, f"{DEEP} levels, or a part that holds itself")]),
        (f"a:\n  {'[' * 101}{']' * 101}\n", [(2, f"{DEEP} levels, or a part that holds itself")]),
        (f"a:\n  {'{b: ' * 5000}{'}' * 5000}\n", [(2, f"{DEEP} levels, or a part that holds itself")]),
        ("a: 1\nb:\n  <<: 5\nc: !no x\n", [
            (3, "cannot merge this with <<: "
                "expected a mapping or list of mappings for merging, but found scalar"),
            (4, "cannot read this value: could not determine a constructor for the tag '!no'")]),
        ("a: *b\n", [(1, "not YAML: found undefined alias 'b'")]),
        ("a: {{ b }}\n", [(1, "a key must be a plain word (a template that nobody has filled in?)")]),
        ('a: "\\ud83d"\n', [
            (1, "cannot read this value: a \\ud83d is half of a character, and the other half is not "
                "there")]),
        (f"a: {'9' * 5000}\n", [(1, "cannot read this value: a number of 5,000 digits is too long")]),
        ("a: 0o\n", [(1, "cannot read this value: 0o is no number: put it in quotes if it is text")]),
        ("a:\n  b: 1\n   c: 2\n  d: 3\n", [(3, "not YAML: mapping values are not allowed here: "
            'either a value has ": " in it and needs quotes, or this line is indented too far, or the one '
            "above it has no colon with a space behind")]),
        ("a:\n  b: 1\n c: 2\n", [(3, "not YAML: this is indented otherwise than the block that begins in "
            "line 1, all of whose fields begin in one column")]),
        ("a: 1\n\u00a0b 2\nc: 3\n", [(3, "not YAML: line 2 has a character that looks like a space and is "
            "none (U+00A0): type a space in its place")]),
        ('a: "b\n', [(2, "not YAML: a text in quotes begins in line 1 and has no end: close its quotes")]),
        ("a: @b\n", [(1, "not YAML: found character '@' that cannot start any token: put the value in "
            "quotes")]),
    ],
)  # fmt: skip
def test_bad_yaml(text, faults):
    with pytest.raises(YamlError) as caught:
        parse(text)
    assert caught.value.faults == faults


def test_characters_that_json_writes_in_two_halves_are_whole():
    assert parse('{"a": "\\ud83d\\ude00!"}').value == {"a": "\U0001f600!"}


def test_a_tag_constructs_nothing():
    assert parse("a: !!python/object/apply:os.getcwd []\n").value == {"a": []}
    with pytest.raises(YamlError, match="cannot read this value: could not determine a constructor"):
        parse("a: !!python/name:os.getcwd ''\n")


def test_a_page_of_aliases_of_aliases_ends_at_once():
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(YamlError, match="too large"):
        parse("\n".join(["a0: &a0 [x]", *levels]))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "kind: RLJob\napiversion: x\n",
            [
                "1  apiVersion: must be rljob.dev/v1alpha1, and is not there "
                "(is apiversion a misspelling of it?)."
            ],
        ),
        (
            "apiVersion: batch/v1\nkind: Job\n",
            [
                "1  apiVersion: must be rljob.dev/v1alpha1 (found 'batch/v1').",
                "2  kind: must be RLJob (found 'Job').",
            ],
        ),
        (
            "api_version: rljob.dev/v1alpha1\nkind: RLJob\n",
            [
                "1  apiVersion: must be rljob.dev/v1alpha1, and is not there "
                "(is api_version a misspelling of it?)."
            ],
        ),
        (HEAD, ["1  spec: must be set (What is asked for)."]),
    ],
)
def test_the_wrong_kind_of_thing(tmp_path, text, told):
    assert errors_of(tmp_path, text) == told


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path):
    text = HEAD + (
        "spec:\n"
        "  accelerator: gpu\n"
        "  pools:\n"
        "    fastRollout:\n"
        "      maxReplicas: 16\n"
        "      replicas: 20\n"
        "  training:\n"
        "    model: {random: {}}\n"
        "    async:\n"
        "      maxStalenes: 1\n"
    )
    assert errors_of(tmp_path, text) == [
        "5  spec.accelerator: 'gpu' is not allowed; it must be one of nvidia, ascend, cpu.",
        "9  spec.pools.fastRollout.replicas: replicas must be between minReplicas and maxReplicas "
        "(replicas is 20, maxReplicas is 16).",
        "10  spec.training.data: must be set by one of jsonl, parquet, huggingFace, generated, sources "
        "(The prompts).",
        "10  spec.training.reward: must be set by one of function, functions (How responses are scored).",
        "10  spec.training.schedule: must be set by one of totalSteps, epochs (Steps and batches).",
        "13  spec.training.async.maxStalenes: unknown field. Did you mean maxStaleness?",
    ]


@pytest.mark.parametrize(
    ("rollout", "told"),
    [
        ("overSampling:", ["overSampling: nothing is written behind it: write {} for its defaults"]),
        ("filter: {zeroVariance: }", ["filter.zeroVariance: nothing is written behind it: write {} for its"]),
        ("routing:", ["routing: nothing is written behind it: write one of adjacent, interleaved, "]),
        ("routing: {probe: }", [
            "routing: set exactly one of", "routing.probe: nothing is written behind it: write {} for its"]),
        ("filter:", ["filter: must be a mapping with zeroVariance, passRate (found nothing)"]),
        # Where null is written, or the field is no block, it is meant.
        ("{overSampling: null, forcedLengths: }", []),
    ],
)  # fmt: skip
def test_a_block_is_not_left_out_because_nothing_is_written_behind_it(
    tmp_path: Path, rollout: str, told: list[str]
) -> None:
    text = yaml.safe_dump(job({"training.rollout": "ROLLOUT"}))
    path = tmp_path / "job.yaml"
    path.write_text(text.replace("rollout: ROLLOUT", f"rollout:\n      {rollout}"))
    if not told:
        assert read(path).job.spec.training.rollout.over_sampling is None
        return
    found = errors_of(tmp_path, path.read_text())
    assert len(found) == len(told)
    for line, words in zip(found, told, strict=True):
        assert f"spec.training.rollout.{words}" in line


def test_the_last_line_counts(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("")
    with pytest.raises(ManifestError) as caught:
        read(path)
    assert str(caught.value) == f"{path}:1  the file is empty.\n1 error. Nothing was started."


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b"a: \xff\n"), "job.yaml:1  is not UTF-8 text"),
        (lambda path: path.write_bytes(b"a: 1\r\n# caf\xe9\r\nb: 1\r\n"), "job.yaml:2  is not UTF-8 text"),
        (lambda path: path.write_bytes(b"\xef\xbb\xbfa: 1\n# \xe9\n"), "job.yaml:2  is not UTF-8 text"),
        (lambda path: path.write_text("a: 1\n", "utf-16"), "job.yaml:1  is UTF-16 text: write it as UTF-8"),
    ],
)
def test_unreadable(tmp_path, make, words):
    path = tmp_path / "job.yaml"
    make(path)
    with pytest.raises(ManifestError, match=words):
        read(path)


def test_a_terminal_prints_what_is_wrong_and_does_nothing_else(tmp_path):
    """A manifest is often somebody else's."""
    path = tmp_path / "job\x1b[2J.yaml"
    path.write_text(HEAD + 'spec: {"\\e]0;title\\a\\n\\u202e": 1, "\\e[8m": 1, "\\e[8m": 2}\n')
    with pytest.raises(ManifestError) as doubled:
        read(path)
    path.write_text(HEAD + 'spec: {"\\e]0;title\\a\\n\\u202e": 1}\n')
    with pytest.raises(ManifestError) as unknown:
        read(path)
    for error, words in (
        (doubled, r"job\x1b[2J.yaml:4  \x1b[8m is written twice (first in line 4)."),
        (unknown, r"job\x1b[2J.yaml:4  spec.\x1b]0;title\x07\n\u202e: unknown field (known here: "),
    ):
        text = str(error.value)
        assert words in text
        assert "".join(text.splitlines()).isprintable()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_valid(path):
    """Those in folders: tests/runtime/test_examples.py."""
    assert check(read(path)) == ([], [])


def test_every_example_is_in_the_table():
    table = (ROOT / "examples" / "README.md").read_text()
    for path in (ROOT / "examples").rglob("*.yaml"):
        name = path.relative_to(ROOT / "examples").as_posix()
        assert f"[{name}]({name})" in table


@pytest.mark.parametrize("folder", [path for path in (ROOT / "examples").iterdir() if path.is_dir()])
def test_an_example_has_three_files_at_most(folder):
    assert len([path for path in folder.iterdir() if path.is_file()]) <= 3


def errors_of(folder: Path, text: str) -> list[str]:
    """What `read` says about a manifest, without the file's name."""
    path = folder / "job.yaml"
    path.write_text(text)
    with pytest.raises(ManifestError) as caught:
        read(path)
    return [str(finding).removeprefix(f"{path}:") for finding in caught.value.findings]
