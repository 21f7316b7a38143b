"""One head is not enough: a task for one attention layer.

Eight tokens stand in a row; each has a role, the roles are shuffled anew each time, and each
token carries random numbers. The last token, "it", must report the numbers of role 0 (its noun),
role 1 (its verb), and so on, one role per question. One row of weights adds up to 1 and returns
one blend, so the prediction is mean R² = heads / questions, 1 at most.

`make experiments` trains everything for several seeds and writes `data/experiments.json`.
"""

import json
from dataclasses import dataclass
from importlib.resources import files

import torch
import torch._dynamo  # Adam loads it in a second, and is left broken where that is interrupted
import torch.nn.functional as F
from torch import nn

from ..attention import MultiHeadAttention, _check_count, attention
from ..bars import bar
from .threads import one_thread

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
    data = files("attention_course").joinpath("data/experiments.json")
    return json.loads(data.read_text(encoding="utf-8"))


def _roles(count):
    """Draw who stands where: one-hot roles (count, 8, 8), and the place of each role."""
    order = torch.rand(count, TOKENS).argsort(-1)
    return F.one_hot(order, TOKENS).float(), order.argsort(-1)


def _asked(contents, places, questions):
    """Return the contents of roles 0, 1, ...: (count, 8, width) -> (count, questions, width)."""
    return contents.take_along_dim(places[:, :questions, None], dim=1)


def _train(model, changes, draw, loss, seed, steps, label):
    """Train a Reporter and measure it on fresh rows; torch's own random state stays as it was."""
    with torch.random.fork_rng(devices=[]), one_thread():
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
