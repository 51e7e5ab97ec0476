"""What is trained: the policy model and its tokenizer."""

from typing import ClassVar, Literal, TypeAlias

from pydantic import Field

from rljob_api.base import Model, OneOf, Rule

Experts: TypeAlias = Literal["grouped", "eager"]
ActivationCheckpointing: TypeAlias = Literal["none", "selective", "full"]


_VOCABULARY_MULTIPLE = 32


class RandomExperts(Model):
    """The experts of a randomly initialised mixture of experts, which take the place of each layer's MLP."""

    count: int = Field(default=8, ge=2, le=1024)
    """Experts of each layer."""
    per_token: int = Field(default=2, ge=1, le=64)
    """Experts that each token goes through; their weights sum to 1."""
    intermediate_size: int = Field(default=64, ge=8, le=65536)
    """Width of one expert."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="perToken must not be above count",
            cel="self.perToken <= self.count",
            holds=lambda self: self.per_token <= self.count,
            fields=("perToken", "count"),
        ),
    )


class RandomModel(Model):
    """A randomly initialised model, for tests, examples and throughput measurements."""

    architecture: Literal["qwen3", "qwen2", "llama", "qwen3_moe"] = "qwen3"
    """Model family, as in Hugging Face's `model_type`."""
    hidden_size: int = Field(default=64, ge=8, le=16384)
    """Width of the residual stream."""
    intermediate_size: int = Field(default=192, ge=8, le=65536)
    """Width of the MLP; unused by qwen3_moe."""
    experts: RandomExperts | None = None
    """The experts; for qwen3_moe alone, which must have it."""
    layers: int = Field(default=2, ge=1, le=256)
    """Number of transformer layers."""
    attention_heads: int = Field(default=4, ge=1, le=256)
    """Query heads per layer."""
    key_value_heads: int = Field(default=2, ge=1, le=256)
    """Key and value heads per layer; divides attentionHeads."""
    head_dim: int = Field(default=32, ge=8, le=512)
    """Width of one head, even. vLLM on CPUs takes 32, 64, 80, 96, 112, 128 and larger; a qwen2 model has
    heads of hiddenSize / attentionHeads."""
    max_position_embeddings: int = Field(default=2048, ge=8, le=1048576)
    """Longest sequence, in tokens. The default holds a prompt and a response of the default lengths."""
    tie_word_embeddings: bool = False
    """Whether input and output embedding are one matrix."""
    vocabulary_size: int | None = Field(default=None, ge=8, le=1048576)
    """Tokens in the vocabulary. Default: what the tokenizer has, rounded up to a multiple of 32."""

    def tokens(self, tokenizer: int) -> int:
        """vocabularySize, or its default with a tokenizer of so many tokens."""
        return self.vocabulary_size or -(-tokenizer // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="keyValueHeads must divide attentionHeads",
            cel="self.attentionHeads % self.keyValueHeads == 0",
            holds=lambda self: self.attention_heads % self.key_value_heads == 0,
            fields=("keyValueHeads", "attentionHeads"),
        ),
        Rule(
            message="headDim must be even: positions are rotations of pairs",
            cel="self.headDim % 2 == 0",
            holds=lambda self: self.head_dim % 2 == 0,
            fields=("headDim",),
        ),
        Rule(
            message="hiddenSize must be attentionHeads times headDim for qwen2",
            cel="self.architecture != 'qwen2' || self.hiddenSize == self.attentionHeads * self.headDim",
            holds=lambda self: (
                self.architecture != "qwen2" or self.hidden_size == self.attention_heads * self.head_dim
            ),
            fields=("hiddenSize", "attentionHeads", "headDim"),
        ),
        Rule(
            message="experts must be set for qwen3_moe, and for no other architecture",
            cel="has(self.experts) == (self.architecture == 'qwen3_moe')",
            holds=lambda self: (self.experts is not None) == (self.architecture == "qwen3_moe"),
            fields=("experts", "architecture"),
        ),
    )


class PolicyModel(OneOf):
    """The policy: a folder in Hugging Face format, or a random model built from its shape."""

    one_of: ClassVar[tuple[str, ...]] = ("path", "random")

    path: str | None = Field(default=None, min_length=1)
    """Folder of a causal language model (config.json and *.safetensors), relative to the manifest's folder,
    in a cluster to storage.mountPath."""
    random: RandomModel | None = None
    """Build a model of this shape with random weights (seeded by training.seed)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the engines' weights and of the trainer's forward pass. The trainer keeps
    float32 master weights in either case. With accelerator: ascend it must be bfloat16: vLLM's attention
    there computes in 16 bits alone."""
    experts: Experts = "grouped"
    """How the trainer multiplies the experts of a mixture of experts. grouped: all experts of a layer in one
    call (torch's grouped_mm). eager: one expert after the other, where a device has no such call. Other
    models have no use for it."""
    activation_checkpointing: ActivationCheckpointing | None = None
    """What of the activations is computed again in the backward pass, for memory. none: nothing. selective:
    norms, rotations and activation functions, while results of matrix products and of attention are kept;
    a layer's pass took a sixth longer on a GPU, without compiled layers. full: whole layers, of which the
    input alone is kept; about a third more compute. Default: full with gradientCheckpointing, else none."""
    offload_activations: bool = False
    """Keep the layers' inputs, which is what activationCheckpointing: full keeps, in main memory until the
    backward pass needs them: 2 (bfloat16) or 4 bytes * hidden size * layers for each token of a micro-batch
    on the device fewer, and as many there and back again for each pass. Not with accelerator: cpu."""
    gradient_checkpointing: bool = False
    """true: the same as activationCheckpointing: full."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="activationCheckpointing must be full, or not set, with gradientCheckpointing: true",
            cel="!self.gradientCheckpointing || !has(self.activationCheckpointing)"
            " || self.activationCheckpointing == 'full'",
            holds=lambda self: (
                not self.gradient_checkpointing or self.activation_checkpointing in (None, "full")
            ),
            fields=("activationCheckpointing",),
        ),
        Rule(
            message="offloadActivations needs activationCheckpointing: full, which keeps no more than inputs",
            cel="!self.offloadActivations || self.gradientCheckpointing"
            " || (has(self.activationCheckpointing) && self.activationCheckpointing == 'full')",
            holds=lambda self: not self.offload_activations or self.recomputed == "full",
            fields=("offloadActivations",),
        ),
    )

    @property
    def recomputed(self) -> ActivationCheckpointing:
        """activationCheckpointing, or its default."""
        if self.activation_checkpointing is not None:
            return self.activation_checkpointing
        return "full" if self.gradient_checkpointing else "none"


class CharacterTokenizer(Model):
    """One token per character, with <pad>, <bos>, <eos> and <sep> in front."""

    alphabet: str = Field(default="abcdefghijklmnopqrstuvwxyz0123456789", min_length=1, max_length=1024)
    """The characters, each once. A prompt with any other character is an error."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="alphabet must have each character once",
            cel="self.alphabet.split('').all(c, self.alphabet.indexOf(c) == self.alphabet.lastIndexOf(c))",
            holds=lambda self: len(set(self.alphabet)) == len(self.alphabet),
            fields=("alphabet",),
        ),
    )


class Tokenizer(OneOf):
    """How text becomes tokens."""

    one_of: ClassVar[tuple[str, ...]] = ("path", "characters")

    path: str | None = Field(default=None, min_length=1)
    """Folder with a Hugging Face tokenizer, relative to the manifest's folder, in a cluster to
    storage.mountPath."""
    characters: CharacterTokenizer | None = None
    """The built-in character tokenizer."""
