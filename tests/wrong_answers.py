"""Wrong answers to the exercises, at least three for each, and what their messages say.

name -> [(old, new, words)]: the folded solution with `old` replaced by `new`, and words that
the message has to contain. With old None, `new` is the whole answer.
"""

NOTEBOOK_1 = {
    "dog_diagonal": [
        (None, "dog_diagonal = [1, 2, 1]", "0.56 with dog and 0.96 with ball. The first number"),
        (None, "dog_diagonal = [1, 1, 9]", "equal"),
        (None, "dog_diagonal = [2, 1]", "shape is (2,), but (3,) is wanted"),
        (None, "dog_diagonal = torch.diag(torch.tensor([2.0, 1, 1]))", "shape is (3, 3)"),
        (None, "dog_diagonal = 'dog'", "this is 'dog'"),
        (None, "dog_diagonal = [2, 'one', 1]", "list of numbers is wanted"),
    ],
    "query_weights": [
        (" / math.sqrt(len(query))", "", "scores are not divided. The query is 4 wide"),
        ("math.sqrt(len(query))", "len(query)", "divided by 4, not by its root"),
        ("math.sqrt(len(query))", "math.sqrt(2)", "√2, which belongs to queries of width 2"),
        ("math.sqrt(len(query))", "math.sqrt(len(keys))", "√5, the root of the number of keys"),
        (" / math.sqrt", " * math.sqrt", "multiplied by √4"),
        (" / sum(powers)", "", "not to 1: divide each by their sum"),
        ("math.exp(score)", "abs(score)", "not softmax"),
        ("[power / sum(powers) for power in powers]", "scaled", "softmax is missing"),
        ("[power / sum(powers) for power in powers]", "powers[0]", "shape is (), but (5,)"),
        ("return ", "", "returns nothing"),
        ("dot(query, key)", "query @ keys", "It stops in line 2, `scaled = [query @ keys"),
        ("query, keys):", "query):", "It stops with TypeError"),
        (None, "query_weights = 3", "function is wanted"),
    ],
    "attend_all": [
        ("dim=-1", "dim=0", "rows of weights do not add up to 1: the softmax runs over the wrong"),
        ("math.sqrt(queries.shape[-1])", "math.sqrt(2)", "√2, which belongs to queries of width 2"),
        (" / math.sqrt(queries.shape[-1])", "", "not divided"),
        ("queries.shape[-1]", "keys.shape[0]", "√4, the root of the number of keys"),
        ("scores.softmax(dim=-1)", "scores", "softmax is missing"),
        (" @ values", "", "shape is (3, 4), but (3, 2) is wanted"),
        ("keys.mT", "keys", "It stops in line 2, `scores = queries @ keys"),
        (" @ values", " @ values * 2", "numbers are not"),
    ],
}

ALL = NOTEBOOK_1
