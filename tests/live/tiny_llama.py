"""A folder that vLLM takes for a model: the shape of a tiny Llama and a tokenizer. Its weights the engine invents."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

__all__ = ["write_model"]

VOCABULARY = 1024
END = "</s>"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "bfloat16",
}
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"


def write_model(folder: Path, hidden: int = 256) -> Path:
    """Fill ``folder``, which is made, and return it. ``hidden``: width, a multiple of 256."""
    folder.mkdir(parents=True)
    widths = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_attention_heads": hidden // 64}
    (folder / "config.json").write_text(json.dumps({**CONFIG, **widths}, indent=1))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = [f"{first}{second}{third}" for first in "bdfglmnprst" for second in "aeiou" for third in "klmnrst"]
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "bos_token": END,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return folder
