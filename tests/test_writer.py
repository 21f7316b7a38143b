"""The small writer: its language, its exact floors, and what an attention makes of them."""

import math
from collections import Counter

import pytest
import torch
from torch import nn

from attention_course import CausalHead, LearnedPositions, MultiHeadAttention, sinusoidal
from attention_course.experiments import FLOOR, SENTENCES, best_loss, train_writer
from attention_course.experiments.writer import LONGEST, SOUNDS, WORDS, Writer


def before(sentence, place):
    return sentence[:place]


def bag_and_last(sentence, place):
    return frozenset(Counter(sentence[:place]).items()), sentence[place - 1]


# --- the language, and what can be known of it beforehand ---------------------------------------


def test_every_sentence_is_there_once():
    """Two patterns of three animals, four of two, each with six verbs."""
    assert len(SENTENCES) == len(set(SENTENCES)) == 2 * (8 * 7 * 6 * 6) + 4 * (8 * 7 * 6)
    assert pytest.approx(math.log(5376)) == FLOOR
    assert max(map(len, SENTENCES)) == LONGEST == 11
    assert all(sentence[-1] == "." and "." not in sentence[:-1] for sentence in SENTENCES)


def test_the_sound_is_that_of_one_of_the_animals_named():
    animals = {sound: animal for animal, sound in SOUNDS.items()}
    for sentence in SENTENCES:
        (sound,) = set(sentence) & set(animals)
        assert sentence.index(animals[sound]) < sentence.index(sound)


def test_the_floor_is_what_the_words_before_leave_open():
    """The chain rule: word by word, the entropy of all sentences comes together again."""
    assert best_loss(before) == pytest.approx(FLOOR)


def test_who_knows_less_loses_more():
    whole = best_loss(before)
    bag = best_loss(bag_and_last)
    last_and_place = best_loss(lambda sentence, place: (sentence[place - 1], place))
    last = best_loss(lambda sentence, place: sentence[place - 1])
    nothing = best_loss(lambda sentence, place: None)
    assert whole < bag - 0.5 < last_and_place - 2 < last - 5 < nothing - 7
    assert best_loss(lambda sentence, place: sentence[place]) == 0


def test_a_floor_counted_another_way():
    """Who knows nothing can but give each word its share among all words that follow."""
    words = torch.tensor([WORDS.index(word) for sentence in SENTENCES for word in sentence[1:]])
    shares = words.bincount() / len(words)
    entropy = torch.distributions.Categorical(shares).entropy().item()
    expected = entropy * len(words) / len(SENTENCES)
    assert best_loss(lambda sentence, place: None) == pytest.approx(expected, rel=1e-5)


# --- what training makes of it ------------------------------------------------------------------


class NoAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()

    def forward(self, x):
        return torch.zeros_like(x)


def unmasked(d_model, num_heads):
    return MultiHeadAttention(d_model, num_heads, causal=False)


@pytest.fixture(scope="module")
def honest():
    return train_writer(MultiHeadAttention)


def test_an_honest_writer_comes_down_to_the_floor(honest):
    assert FLOOR <= honest.loss < FLOOR + 0.2
    assert honest.right > 0.9
    assert len(honest.written) == 500
    assert len(honest.losses) == 600
    assert honest.losses[0] > 30


def test_the_sound_follows_the_animal_over_a_clause(honest):
    for text, sound in {
        "the dog that the cat saw": "barked",
        "the cat that the dog saw": "purred",
        "the bee that the lion and the wolf heard": "hummed",
    }.items():
        chances = honest.model.next_words(text)
        assert next(iter(chances)) == sound
        assert chances[sound] > 0.9
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)


def test_who_sees_the_future_falls_below_the_floor_and_cannot_write():
    leak = train_writer(unmasked)
    assert leak.loss < 0.5 < FLOOR
    assert leak.right < 0.1


@pytest.mark.parametrize(
    ("told", "arguments"),
    [
        (bag_and_last, {"make_attention": MultiHeadAttention, "positions": None}),
        (lambda s, place: (s[place - 1], place), {"make_attention": NoAttention}),
    ],
    ids=["no positions", "no attention"],
)
def test_a_loss_lands_where_it_was_counted(told, arguments):
    floor = best_loss(told)
    assert floor - 0.01 < train_writer(**arguments).loss < floor + 0.2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_the_figures_hold_for_five_seeds(seed):
    honest = train_writer(MultiHeadAttention, seed=seed)
    assert FLOOR <= honest.loss < FLOOR + 0.2
    assert honest.right > 0.9
    assert train_writer(unmasked, seed=seed).loss < 0.5
    one_layer = train_writer(MultiHeadAttention, positions=None, seed=seed)
    assert 0.7 < one_layer.loss - FLOOR < 1.2
    assert one_layer.right < 0.6
    deep = train_writer(MultiHeadAttention, positions=None, num_layers=2, seed=seed)
    assert FLOOR <= deep.loss < FLOOR + 0.2
    assert FLOOR <= train_writer(MultiHeadAttention, positions=sinusoidal, seed=seed).loss < 8.8
    single = train_writer(lambda d_model, num_heads: CausalHead(d_model, d_model), seed=seed)
    assert FLOOR <= single.loss < FLOOR + 1


def test_training_repeats_itself_and_leaves_the_random_state_alone():
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first, second, other = (train_writer(MultiHeadAttention, seed=s, steps=3) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.losses == second.losses != other.losses
    assert first.written == second.written


def test_a_training_that_breaks_down_writes_nothing():
    class Broken(NoAttention):
        def forward(self, x):
            return x * math.nan

    broken = train_writer(Broken, steps=2)
    assert math.isnan(broken.loss)
    assert (broken.right, broken.written) == (0, [])


def test_sizes_and_positions_arrive_in_the_model():
    def heads(d_model, num_heads):
        asked.append((d_model, num_heads))
        return MultiHeadAttention(d_model, num_heads)

    def places(tokens, d_model):
        asked.append((tokens, d_model))
        return torch.arange(tokens * d_model).view(tokens, d_model) * 1.0

    asked = []
    writer = Writer(heads, 8, 3, places)
    assert asked == [(11, 32), *[(32, 8)] * 3]
    ids = torch.zeros(1, 5, dtype=torch.long)
    rows = {}
    writer.layers[0].register_forward_pre_hook(lambda module, inputs: rows.update(x=inputs[0]))
    writer(ids)
    expected = (writer.words(ids) + torch.arange(5 * 32).view(5, 32)) / 2
    assert torch.allclose(rows["x"], expected)
    assert isinstance(Writer(heads, 2, 1, LearnedPositions).places, LearnedPositions)
    assert Writer(heads, 2, 1, None).places is None


# --- what does not fit is said in words ---------------------------------------------------------


class Pair(NoAttention):
    def forward(self, x):
        return x, x


class Narrow(NoAttention):
    def forward(self, x):
        return x[..., :4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"make_attention": MultiHeadAttention(32, 4)}, "Give the class of your attention"),
        ({"make_attention": None}, "Give the class of your attention"),
        ({"make_attention": lambda d_model, num_heads: torch.relu}, "must return an nn.Module"),
        ({"make_attention": Pair}, "its output alone"),
        ({"make_attention": Narrow}, r"for \(2, 5, 32\) it returns \(2, 5, 4\)"),
        ({"num_heads": 5}, "num_heads 1, 2, 4, 8, 16, 32"),
        ({"num_layers": 0}, "num_layers must be a whole number"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"positions": lambda tokens, d_model: torch.zeros(tokens)}, r"returns \(11,\)"),
        ({"positions": lambda tokens, d_model: [0]}, "returns a list"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(arguments, words):
    with pytest.raises(ValueError, match=words):
        train_writer(**({"make_attention": MultiHeadAttention} | arguments))


@pytest.mark.parametrize("text", ["", "the unicorn", "the dog " * 6])
def test_a_text_that_is_not_of_this_language_gets_a_sentence(honest, text):
    with pytest.raises(ValueError, match="its words are"):
        honest.model.next_words(text)


def test_training_uses_one_thread_and_what_was_set_comes_back():
    seen, before = [], torch.get_num_threads()

    class Counting(nn.Linear):
        def __init__(self, d_model, num_heads):
            super().__init__(d_model, d_model)

        def forward(self, x):
            seen.append(torch.get_num_threads())
            if len(seen) > 3:
                raise RuntimeError("stop")
            return super().forward(x)

    torch.set_num_threads(3)
    try:
        with pytest.raises(RuntimeError, match="stop"):
            train_writer(Counting, steps=5)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}
