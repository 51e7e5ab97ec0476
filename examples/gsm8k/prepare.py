"""Makes what small.yaml needs, in the folder `small`: a model of 0.1 M parameters with a tokenizer of its
own, and sums of small numbers in GSM8K's form, for training and for evaluation.

job.yaml does not need it: the files that `hf download` brings are used as they are.
"""

from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

SMALL = Path("small")
CHAT = (
    "{% for each in messages %}<|im_start|>{{ each.role }}\n{{ each.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM = "Put the answer into \\boxed{}."

if SMALL.exists():
    raise SystemExit(f"{SMALL} is there already: nothing was written")

rows = [
    {
        "question": f"Ann has {a} {what} and gets 1 more. How many?",
        "answer": f"{a} + 1 = {a + 1}.\n#### {a + 1}",
    }
    for what, a in product(("apples", "books", "cards", "coins"), range(1, 9))
]
SMALL.mkdir()
pq.write_table(pa.Table.from_pylist(rows[:-8]), SMALL / "train.parquet")
pq.write_table(pa.Table.from_pylist(rows[-8:]), SMALL / "test.parquet")

inner = Tokenizer(models.BPE())
inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
inner.decoder = decoders.ByteLevel()
names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
texts = [f"system user assistant {SYSTEM} {row['question']} {row['answer']}" for row in rows]
every_byte = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(
    vocab_size=384, special_tokens=names, initial_alphabet=every_byte, show_progress=False
)
inner.train_from_iterator(texts, trainer)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=inner, pad_token=names[0], eos_token=names[2], chat_template=CHAT
)
tokenizer.save_pretrained(SMALL / "model")

set_seed(0)
config = Qwen3Config(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=192, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=40960,
    tie_word_embeddings=False, eos_token_id=2, pad_token_id=0, bos_token_id=None,
)  # fmt: skip
model = Qwen3ForCausalLM(config)

# Supervised training, and little of it: about every fourth answer is right, and the rest is left to the job.
# So small a model gains nothing from several threads.
torch.set_num_threads(1)
prompts = [
    tokenizer.apply_chat_template(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}],
        add_generation_prompt=True, tokenize=False,
    )
    for row in rows
]  # fmt: skip
said = [
    f"{prompt}\\boxed{{{row['answer'].split()[-1]}}}<|im_end|>"
    for prompt, row in zip(prompts, rows, strict=True)
]
batch = tokenizer(said, return_tensors="pt", padding=True)
labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(45):
    optimizer.zero_grad()
    model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
    optimizer.step()
model.save_pretrained(SMALL / "model")
