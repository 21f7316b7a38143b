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

NOTEBOOK_2 = {
    "causal_head": [
        ("math.sqrt(keys.shape[-1])", "math.sqrt(x.shape[-1])", "scale: You divide by √7"),
        (" / math.sqrt(keys.shape[-1])", "", "scale: The scores are not divided"),
        ("dim=-1", "dim=1", "softmax-axis: Columns sum to one, not rows"),
        ("dim=-1", "dim=0", "over an axis on which a hidden pair is hidden throughout"),
        ("scores = scores.masked_fill", "scores.masked_fill", "future-visible"),
        ("-torch.inf", "-1e-9", "filled with -1e-09"),
        (
            "causal_mask(x.shape[1])",
            "~causal_mask(x.shape[1])",
            "nan: Row 4, the last, is NaN: the mask hides the past",
        ),
        ("causal_mask(x.shape[1])", "causal_mask(x.shape[1]).mT", "past-hidden"),
        ("causal_mask(x.shape[1])", "torch.ones(x.shape[1], x.shape[1]).triu(2) > 0", "off-by-one"),
        ("causal_mask(x.shape[1])", "hidden", "It stops in line 4"),
        ("softmax(dim=-1) @ values", "softmax(dim=-1) @ keys", "wrong-values"),
        ("queries @ keys.mT", "queries @ values.mT", "wrong-pair"),
        ("scores.softmax(dim=-1) @ values", "scores.softmax(dim=-1)", "but (2, 5, 3) is wanted"),
        ("return ", "", "returns nothing"),
    ],
    "silent_fault": [
        ("scale", "softmax-axis", "It is not softmax-axis: the softmax runs along the rows"),
        ("scale", "scaling", "one of these is wanted: scale, future-visible"),
        ("token=5", "token=0", "output of token 0 is what a right module gives"),
        ("token=5", "token=6", "a number from 0 to 5"),
        ("token=5", "token=None", "The token is missing"),
        (None, "silent_fault = ('scale', 5)", "silent_fault = case.answer("),
    ],
    "keep_mask": [
        (".tril()", ".triu(diagonal=1)", "This is the mask that hides"),
        (".tril()", ".triu()", "triangle is swapped"),
        (".tril()", ".tril(diagonal=-1)", "no token sees itself"),
        (".tril()", ".tril(diagonal=1)", "off by one"),
        (", dtype=torch.bool", "", "holds torch.float32"),
        (".tril()", "", "Row i should be True up to column i"),
        ("torch.ones(tokens, tokens, ", "torch.ones(1, tokens, ", "shape is (1, 5), but (5, 5)"),
        ("torch.ones(tokens, tokens, ", "torch.ones(6, 6, ", "shape is (6, 6), but (5, 5)"),
    ],
}

ALL = NOTEBOOK_1 | NOTEBOOK_2
