"""A whole run that trains an adapter: exact in every version, and what is left of it afterwards."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.support.runtime.runs import PROMPTS, manifest, running

STEPS = 6
PARITY = 1e-5
"""Nats, in float32, of every token that was drawn with the weights that a step began with."""


@pytest.mark.timeout(300)
def test_engine_and_trainer_agree_in_every_version_and_the_exports_load(tmp_path: Path) -> None:
    file, _ = manifest(
        tmp_path,
        STEPS,
        pools={"fastRollout": {"replicas": 1}},
        adapter={"rank": 4, "alpha": 8},
        rollout={
            "engine": {"vllm": {"kvCacheGiB": 0.1}},
            "samplesPerPrompt": 4,
            "maxResponseTokens": 32,
        },
        algorithm={"kl": {"coefficient": 0.1}},
        optimizer={"learningRate": 1e-2},
        **{"async": {"maxStaleness": 0, "weightSync": {"push": {}, "transport": "tcp"}}},
    )
    with running(file) as run:
        assert run.end(280) == 0, run.log.read_text()
    rows = read_metrics(run.folder / "metrics.jsonl").rows
    assert sorted(uid for row in rows for uid in row["uids"]) == list(range(STEPS * PROMPTS))
    # Without staleness every token is compared, in every step.
    assert max(row["parity_max"] for row in rows) <= PARITY
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6), "the reference is the model without its adapter"
    assert rows[-1]["kl"] > 1e-6

    base, merged = (
        AutoModelForCausalLM.from_pretrained(run.folder / name) for name in ("initial_model", "model")
    )
    adapted = PeftModel.from_pretrained(base, run.folder / "adapter").eval()
    tokens = torch.arange(4, 20)[None]
    with torch.inference_mode():
        found, with_adapter = merged.eval()(tokens).logits, adapted(tokens).logits
        with adapted.disable_adapter():
            without = adapted(tokens).logits
    torch.testing.assert_close(found, with_adapter, atol=1e-5, rtol=0)
    assert (without - found).abs().max() > 1e-3
    assert AutoTokenizer.from_pretrained(run.folder / "adapter") is not None
    trained = load_file(run.folder / "adapter" / "adapter_model.safetensors")
    assert len(trained) == 2 * 2 * 7, "A and B of seven layers in each of two blocks"
    config = json.loads((run.folder / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    assert not (run.folder / "model" / "adapter_config.json").exists()
    saved = sum(path.stat().st_size for path in (run.folder / "checkpoints").glob("step_6/*.distcp"))
    # All weights with their moments would be three times the model.
    assert 0 < saved < 2 * (run.folder / "model" / "model.safetensors").stat().st_size
