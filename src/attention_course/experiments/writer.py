"""A small model that writes, on sentences whose entropy is known exactly.

Six patterns over eight animals, each with its own sound, make 5376 different sentences of at
most 11 words, all equally likely: "the bee that the lion and the wolf heard hummed". To name the
sound, a model must look back over a clause to the animal that makes it. The entropy of a
sentence is ln 5376, so no model that guesses each word from those before it can have a lower
loss. One that does has seen the future.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import permutations, product

import torch
import torch.nn.functional as F
from torch import nn

from ..attention import _check_count
from ..bars import bar
from ..positions import LearnedPositions
from .threads import one_thread

SOUNDS = {
    "dog": "barked",
    "cat": "purred",
    "lion": "roared",
    "bird": "sang",
    "frog": "croaked",
    "bee": "hummed",
    "snake": "hissed",
    "wolf": "howled",
}
VERBS = ("saw", "heard", "chased", "followed", "met", "liked")
PATTERNS = (  # A makes the sound; B and C are other animals
    "the A that VERB the B SOUND .",
    "the A that the B VERB SOUND .",
    "the A VERB the B and SOUND .",
    "the B VERB the A that SOUND .",
    "the A that VERB the B and the C SOUND .",
    "the A that the B and the C VERB SOUND .",
)


def _sentences():
    """Return every sentence of the patterns once, each as a tuple of words."""
    made = []
    for pattern, cast, verb in product(PATTERNS, permutations(SOUNDS, 3), VERBS):
        parts = dict(zip("ABC", cast, strict=True), VERB=verb, SOUND=SOUNDS[cast[0]])
        made.append(tuple(parts.get(word, word) for word in pattern.split()))
    return list(dict.fromkeys(made))  # a pattern without C was made once for each C


SENTENCES = _sentences()
FLOOR = math.log(len(SENTENCES))  # the entropy of a sentence, in nats: 8.59
WORDS = sorted({word for sentence in SENTENCES for word in sentence})
LONGEST = max(map(len, SENTENCES))
_FILLED = [sentence + (".",) * (LONGEST - len(sentence)) for sentence in SENTENCES]
_IDS = torch.tensor([[WORDS.index(word) for word in sentence] for sentence in _FILLED])
D_MODEL, BATCH, STEPS, LEARNING_RATE, WRITTEN = 32, 64, 600, 0.02, 500


class Writer(nn.Module):
    """Word and place vectors, layers of attention and an MLP, a score for each next word.

    forward: word numbers (batch, tokens) -> scores (batch, tokens, len(WORDS)).
    """

    def __init__(self, make_attention, num_heads, num_layers, positions):
        super().__init__()
        self.words = nn.Embedding(len(WORDS), D_MODEL)
        self.places = positions and positions(LONGEST, D_MODEL)
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            mlp = [nn.Linear(D_MODEL, 2 * D_MODEL), nn.ReLU(), nn.Linear(2 * D_MODEL, D_MODEL)]
            self.layers += [_checked(make_attention(D_MODEL, num_heads)), nn.Sequential(*mlp)]
        self.scores = nn.Linear(D_MODEL, len(WORDS))

    def forward(self, ids):
        x = self.words(ids)  # (batch, tokens) -> (batch, tokens, d_model)
        if isinstance(self.places, nn.Module):
            x = self.places(x)
        elif self.places is not None:
            x = x + self.places[: ids.shape[1]]
        x = x / 2  # small at first, so that no head settles on one word before it has learned
        for layer in self.layers:
            x = x + layer(x)
        return self.scores(x)

    def loss(self, ids):
        """Return −ln of the chance that the model gives to each sentence: (batch,)."""
        scores = self(ids[:, :-1])  # the first word is always "the", and given
        return F.cross_entropy(scores.mT, ids[:, 1:], reduction="none").sum(dim=-1)

    @torch.no_grad()
    def next_words(self, text):
        """Return the chance of each word after `text`, the likeliest first.

        Raises ValueError for a word that stands in no sentence, or more words than the longest.
        """
        words = text.lower().split()
        unknown = [word for word in words if word not in WORDS]
        if unknown or not 0 < len(words) < LONGEST:
            raise ValueError(
                f"The writer continues 1 to {LONGEST - 1} of its own words, such as "
                f'"the dog that"; its words are: {", ".join(WORDS)}.'
            )
        ids = torch.tensor([[WORDS.index(word) for word in words]])
        chances = dict(zip(WORDS, self(ids)[0, -1].softmax(dim=-1).tolist(), strict=True))
        return dict(sorted(chances.items(), key=lambda pair: -pair[1]))

    @torch.no_grad()
    def write(self, count):
        """Return `count` sentences, each word drawn by the chances that the model gives it."""
        ids = torch.full((count, 1), WORDS.index("the"))
        for _ in range(LONGEST - 1):
            chances = self(ids)[:, -1].softmax(dim=-1)
            ids = torch.cat([ids, torch.multinomial(chances, 1)], dim=1)
        return [" ".join(WORDS[i] for i in row).split(" .")[0] for row in ids.tolist()]


@dataclass(frozen=True)
class Trained:
    """What one trained writer gives.

    loss: the mean over all sentences, in nats: `FLOOR` or more, unless the model sees the future;
    NaN where training broke down. written: the sentences that it wrote, none if it broke down.
    right: the share of them that are among the possible ones. losses: of each step of training.
    """

    loss: float
    right: float
    written: list
    losses: list
    model: Writer


def train_writer(
    make_attention,
    num_heads=4,
    num_layers=1,
    positions=LearnedPositions,
    seed=0,
    steps=STEPS,
    progress=False,
):
    """Train a next-word model around any attention, let it write, and return a `Trained`.

    make_attention: called as make_attention(d_model, num_heads) for each layer, returns a module
    (batch, tokens, d_model) -> the same shape; its class will do. positions: called as
    positions(tokens, d_model), returns a tensor of that shape or `LearnedPositions`; None for no
    positions. progress shows a bar. torch's own random state stays as it was. Raises ValueError
    for sizes, an attention or positions that do not fit.
    """
    for name, value in {"num_heads": num_heads, "num_layers": num_layers, "steps": steps}.items():
        _check_count(name, value)
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(seed)
        _check_parts(make_attention, positions)
        model, losses = Writer(make_attention, num_heads, num_layers, positions), []
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
        for _ in bar(range(steps), "training the writer") if progress else range(steps):
            loss = model.loss(_IDS[torch.randint(len(_IDS), (BATCH,))]).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        with torch.no_grad():
            loss = torch.cat([model.eval().loss(part) for part in _IDS.split(1024)]).mean().item()
        written = [] if math.isnan(loss) else model.write(WRITTEN)
    possible = {" ".join(sentence[:-1]) for sentence in SENTENCES}
    right = sum(sentence in possible for sentence in written) / WRITTEN
    return Trained(loss, right, written, losses, model)


def best_loss(told):
    """Return the lowest loss, in nats, of a model that is told one thing before each word.

    told: called as told(sentence, place), returns what the model knows when it must name
    sentence[place]; sentence is a tuple of words. No training: the words that follow the same
    thing are counted over all sentences, so the number is exact.
    """
    following = defaultdict(Counter)
    for sentence in SENTENCES:
        for place in range(1, len(sentence)):
            following[told(sentence, place)][sentence[place]] += 1
    return sum(_cost(counts.values()) for counts in following.values()) / len(SENTENCES)


def _cost(counts):
    """Return the least −ln summed over words that come this often."""
    total = sum(counts)
    return sum(count * math.log(total / count) for count in counts)


def _check_parts(make_attention, positions):
    """Decline a module where a class belongs, and positions of another shape."""
    if isinstance(make_attention, nn.Module) or not callable(make_attention):
        raise ValueError(
            "Give the class of your attention, not a module made of it: the writer makes its own, "
            "as make_attention(d_model, num_heads), for each layer."
        )
    made = positions and positions(LONGEST, D_MODEL)
    if isinstance(made, nn.Module) or made is None:
        return
    wanted = (LONGEST, D_MODEL)
    if not isinstance(made, torch.Tensor) or tuple(made.shape) != wanted:
        got = tuple(made.shape) if isinstance(made, torch.Tensor) else f"a {type(made).__name__}"
        raise ValueError(
            f"positions{wanted} must return a tensor of shape {wanted}, one row for each place, "
            f"but returns {got}."
        )


def _checked(attention):
    """Return the attention, or decline one that is no module or gives back another shape."""
    if not isinstance(attention, nn.Module):
        raise ValueError(
            f"make_attention(d_model, num_heads) must return an nn.Module, "
            f"but returns a {type(attention).__name__}."
        )
    x = torch.zeros(2, 5, D_MODEL)
    with torch.no_grad():
        out = attention(x)
    if not isinstance(out, torch.Tensor):
        raise ValueError(
            f"Your attention must return its output alone, a tensor of shape (batch, tokens, "
            f"d_model), but returns a {type(out).__name__}."
        )
    if out.shape != x.shape:
        raise ValueError(
            f"Your attention must return the shape that it is given: for {tuple(x.shape)} it "
            f"returns {tuple(out.shape)}. What it gives is added to its input."
        )
    return attention
