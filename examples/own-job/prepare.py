"""Makes what a job of one's own begins with: a data set folder and a model folder, both small.

With a model and data of your own you need neither.
"""

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

COLOURS = {
    "grass": ["green"], "sky": ["blue", "grey"], "snow": ["white"], "coal": ["black"], "blood": ["red"],
    "lemon": ["yellow"], "leaf": ["green", "yellow"], "sea": ["blue", "green"], "milk": ["white"],
    "night": ["black", "blue"], "tomato": ["red", "green"], "butter": ["yellow", "white"],
}  # fmt: skip
QUESTION = "which colour has {}?"

rows = [
    {"question": QUESTION.format(thing), "answer": colours[0], "also": colours[1:]}
    for thing, colours in COLOURS.items()
]
Dataset.from_list(rows).save_to_disk("colours")

# A byte-pair encoding, as most models have it, of the words above.
texts = [f"{row['question']} {row['answer']}" for row in rows]
inner = Tokenizer(models.BPE())
inner.pre_tokenizer = pre_tokenizers.ByteLevel()
inner.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=96, special_tokens=["<pad>", "<eos>", "<bos>"], show_progress=False)
inner.train_from_iterator(texts * 4, trainer)
inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
)
tokenizer.save_pretrained("model")

set_seed(0)
config = Qwen3Config(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=192, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=128,
    tie_word_embeddings=False, eos_token_id=1, pad_token_id=0, bos_token_id=2,
)  # fmt: skip
Qwen3ForCausalLM(config).save_pretrained("model")
