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
        (
            None,
            "def query_weights(query, keys):\n"
            "    return (keys @ query).softmax(dim=0) / math.sqrt(len(query))",
            "The scores are divided after the softmax: divide before it",
        ),
        ("math.exp(score)", "score", "The exp is missing"),
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
        ("queries.shape[-1]", "keys.shape[0]", "√8, the root of the number of keys"),
        ("queries.shape[-1]", "queries.shape[0]", "√6, the root of the number of queries"),
        ("queries.shape[-1]", "values.shape[-1]", "√7, the root of the width of a value"),
        (
            None,
            "def attend_all(queries, keys, values):\n"
            "    weights = (queries @ keys.mT).softmax(dim=-1)\n"
            "    return weights / math.sqrt(queries.shape[-1]) @ values",
            "divided after the softmax: divide before it",
        ),
        ("scores.softmax(dim=-1)", "scores.exp()", "do not add up to 1: divide each by the sum"),
        ("scores.softmax(dim=-1)", "scores / scores.sum(-1, keepdim=True)", "exp is missing"),
        ("scores.softmax(dim=-1)", "scores", "softmax is missing"),
        (" @ values", "", "shape is (6, 8), but (6, 7) is wanted"),
        (" @ values", "", "the values have not been met yet"),
        ("return scores.softmax(dim=-1) @ values", "return values, scores", "the context alone"),
        (
            "scores.softmax(dim=-1)",
            "(scores.exp() / scores.exp().sum())",
            "All 48 weights together add up to 1. Each row has to",
        ),
        (
            "scores.softmax(dim=-1)",
            "(scores.exp() / scores.exp().sum(dim=-1))",
            "Each row has a sum of its own: `.sum(dim=-1, keepdim=True)` keeps its axis",
        ),
        ("keys.mT", "keys", "It stops in line 2, `scores = queries @ keys"),
        ("keys.mT", "keys", "The keys lie the wrong way round: `keys.mT` is (5, 8)"),
        ("queries @ keys.mT", "keys @ queries.mT", "Rows must belong to queries, columns to keys"),
        (" @ values", " @ values * 2", "numbers are not"),
    ],
}

NOTEBOOK_2 = {
    "sees_future": [
        ("range(1, len(x))", "[len(x) - 1]", "token 1 sees token 3. Token 3 betrays it"),
        ("range(1, len(x))", "range(1, len(x) - 1)", "token 0 sees token 4. Token 4 betrays it"),
        ("if not torch", "if torch", "is wanted for"),
        (
            None,
            "def sees_future(attend, x):\n"
            "    last = torch.cat([x[:-1], x[-1:] + 1])\n"
            "    hole = torch.cat([x[:3], x[3:4] + 1, x[4:]])\n"
            "    late = not torch.equal(attend(last)[:-1], attend(x)[:-1])\n"
            "    return not (late or not torch.equal(attend(hole)[:3], attend(x)[:3]))",
            "True and False are exchanged",
        ),
        ("x.clone()", "x", "no mask. Every output uses every token. Edit a copy"),
        (
            "attend(edited)[:token], attend(x)[:token]",
            "attend(edited), attend(x)",
            "False is wanted for a causal mask. The outputs of the edited token",
        ),
        ("            return True\n", "            return False\n", "True is wanted for no mask"),
        ("atol=1e-6", "atol=1", "True is wanted for"),
        ("    return False", "    return attend(x)", "this is a Tensor"),
        ("edited[token] =", "edited[:token] =", "False is wanted for a causal mask"),
        (
            None,
            "def sees_future(attend, x):\n"
            "    for token in range(len(x)):\n"
            "        edited = x.clone()\n"
            "        edited[token] = torch.randn(x.shape[1])\n"
            "        if (attend(edited)[:token] - attend(x)[:token]).abs().max() > 1e-6:\n"
            "            return True\n"
            "    return False",
            "Before token 0 there is no output: begin with token 1",
        ),
        ("= torch.randn(x.shape[1])", "+= 1.0", "What is added to all numbers of a token alike"),
        ("return ", "", "returns nothing"),
    ],
    "causal_head": [
        ("x @ W_query,", "W_query @ x,", "The tokens stand on the left: x @ W_query"),
        ("math.sqrt(keys.shape[-1])", "math.sqrt(x.shape[-1])", "scale: You divide by √7"),
        (" / math.sqrt(keys.shape[-1])", "", "The scores are not divided. A query is 3 wide"),
        ("dim=-1", "dim=1", "softmax-axis: Columns sum to one, not rows"),
        ("dim=-1", "dim=0", "over an axis on which a hidden pair is hidden throughout"),
        ("scores = scores.masked_fill", "scores.masked_fill", "future-visible"),
        ("-torch.inf", "-1e-9", "filled with -1e-09"),
        ("-torch.inf", "1e9", "a large number, its minus forgotten"),
        (
            "causal_mask(x.shape[1])",
            "~causal_mask(x.shape[1])",
            "nan: Row 4, the last, is NaN: the mask hides the past",
        ),
        ("causal_mask(x.shape[1])", "causal_mask(x.shape[1]).mT", "past-hidden"),
        ("causal_mask(x.shape[1])", "torch.ones(x.shape[1], x.shape[1]).triu(2) > 0", "off-by-one"),
        ("causal_mask(x.shape[1])", "hidden", "It stops in line 4"),
        ("causal_mask(x.shape[1])", "causal_mask(6)", "make the mask for x.shape[1] of them"),
        ("keys.mT", "keys.T", "`keys.mT` exchanges the last two axes only"),
        ("softmax(dim=-1) @ values", "softmax(dim=-1) @ keys", "wrong-values"),
        ("queries @ keys.mT", "queries @ values.mT", "wrong-pair"),
        ("queries @ keys.mT", "keys @ queries.mT", "Queries and keys have changed places"),
        ("scores.softmax(dim=-1) @ values", "scores.softmax(dim=-1)", "but (2, 5, 3) is wanted"),
        ("scores.softmax(dim=-1) @ values", "scores.softmax(dim=-1)", "have not been met yet"),
        ("scores.softmax(dim=-1) @ values", "values, scores", "Return the context alone"),
        ("return ", "", "returns nothing"),
    ],
    "silent_fault": [
        ("scale", "softmax-axis", 'It is not "softmax-axis": the softmax runs along the rows'),
        ("scale", "scaling", "one of these is wanted: scale, future-visible"),
        ("token=5", "token=0", "output of token 0 is what a right module gives"),
        ("token=5", "token=6", "There is no token 6: 0 to 5"),
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
        (
            None,
            "def keep_mask(tokens):\n    return causal_mask(tokens).float() * -1e30",
            "hides what holds −∞ and nothing else",
        ),
        (".tril()", ".tril().tolist()", "This is a list; a Boolean tensor is wanted"),
        ("torch.ones(tokens, tokens, ", "torch.ones(1, tokens, ", "shape is (1, 5), but (5, 5)"),
        ("torch.ones(tokens, tokens, ", "torch.ones(6, 6, ", "shape is (6, 6), but (5, 5)"),
    ],
}

OWN_HEADS = """
def all_heads(x, heads, W_out):
    contexts = []
    for W_Q, W_K, W_V in heads:
        scores = (x @ W_Q) @ (x @ W_K).mT / {width} ** 0.5
        if {causal}:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        contexts.append(scores.softmax(dim=-1) @ (x @ W_V))
    return torch.cat(contexts, dim=-1) @ W_out
"""
CUT_FIRST = """
def all_heads(x, heads, W_out):
    size, contexts = x.shape[-1] // len(heads), []
    for i, head in enumerate(heads):
        own = slice(i * size, (i + 1) * size)
        contexts.append(one_head(x[..., own], *({rows} for W in head)))
    return torch.cat(contexts, dim=-1) @ W_out
"""
ONE_INTO_THE_NEXT = """
def all_heads(x, heads, W_out):
    contexts = []
    for matrices in heads:
        x = one_head(x, *matrices)
        contexts.append(x)
    return torch.cat(contexts, dim=-1) @ W_out
"""

NOTEBOOK_3 = {
    "all_heads": [
        (" @ W_out", "", "W_out is missing"),
        (" @ W_out", " @ W_out.mT", "W_out lies on its side"),
        ("torch.cat(contexts, dim=-1) @ W_out", "sum(contexts)", "but (3, 7, 8) is wanted"),
        ("torch.cat(contexts, dim=-1)", "torch.cat(contexts)", "It stops in line 3"),
        ("torch.cat(contexts, dim=-1)", "torch.cat(contexts)", "Side by side is dim=-1"),
        ("torch.cat(contexts, dim=-1)", "torch.cat(contexts, dim=1)", "Side by side is dim=-1"),
        ("torch.cat(contexts, dim=-1)", "sum(contexts)", "side by side after the loop"),
        ("in heads]", "in heads[:2]]", "2 heads are joined, and `heads` has 3 triples"),
        ("torch.cat(contexts, dim=-1)", "torch.stack(contexts)", "Side by side is dim=-1"),
        (
            "torch.cat(contexts, dim=-1)",
            "torch.stack(contexts, dim=1).reshape(x.shape)",
            "Heads and tokens have not changed places before `reshape`",
        ),
        (
            "torch.cat(contexts, dim=-1)",
            "torch.stack(contexts).reshape(x.shape)",
            "stacked in front of the batch",
        ),
        ("in heads]", "in zip(*heads)]", "It stops in line 2"),
        (
            "contexts = [",
            "W_Qs, W_Ks, W_Vs = heads\n    contexts = [",
            "`heads` is a list of triples (W_Q, W_K, W_V), one triple for each head",
        ),
        ("*matrices", "*heads[0]", "Every head is the first one"),
        ("*matrices", "*matrices[::-1]", "W_Q and W_V have changed places"),
        ("*matrices", "matrices", "*triple hands its three matrices over"),
        (
            "torch.cat(contexts, dim=-1)",
            "torch.cat((c for c in contexts), dim=-1)",
            "Make it a list, in brackets",
        ),
        (
            "*matrices",
            "matrices[1], matrices[0], matrices[2]",
            "W_Q and W_K have changed places: the triple is (W_Q, W_K, W_V)",
        ),
        ("in heads", "in heads[::-1]", "wrong order"),
        ("cat(contexts, dim=-1)", "stack(contexts, dim=-1).flatten(-2)", "woven into each other"),
        (None, CUT_FIRST.format(rows="W[own]"), "The token is cut before the heads"),
        (None, CUT_FIRST.format(rows="W"), "every head reads the whole token, all 8 numbers"),
        (
            None,
            "def all_heads(x, heads, W_out):\n    for matrices in heads:\n"
            "        return one_head(x, *matrices) @ W_out",
            "What meets W_out is as wide as one head: collect",
        ),
        (None, ONE_INTO_THE_NEXT, "neither a part of it nor what another head returned"),
        (None, OWN_HEADS.format(width="W_K.shape[-1]", causal=False), "The future is visible"),
        (None, OWN_HEADS.format(width="x.shape[-1]", causal=True), "divided by √8, the width of"),
        (None, OWN_HEADS.format(width=1, causal=True), "not divided by √head_dim"),
        (None, OWN_HEADS.format(width=7, causal=True), "numbers are not, for 2 heads"),
    ],
    "predicted_r2": [
        ("min(1, heads / questions)", "heads / questions", "1.50 for 2 questions with 3 heads"),
        (
            "min(1, heads / questions)",
            "questions / heads",
            "R² is a share and never above 1; here 1 unit is shared by 2 questions",
        ),
        (
            "min(1, heads / questions)",
            "0.0",
            "One head does not answer nothing: a blend of 2 answers still explains part of each",
        ),
        ("min(1, heads / questions)", "1 / questions", "2 rows have 2 units to spend: each head"),
        ("min(1, heads / questions)", "min(1, questions / heads)", "1 row has 1 unit to spend"),
        ("min(1, heads / questions)", "float(heads >= questions)", "predict 0.00 for 2 questions"),
        ("min(1, heads / questions)", "1.0", "1 unit to spend, and 2 questions have to share"),
        ("min(1, heads / questions)", "[0.5]", "shape is (1,), but () is wanted"),
        (None, "predicted_r2 = 0.5", "function is wanted"),
    ],
    "added_by": [
        (
            "i * head_dim : (i + 1) * head_dim",
            ":head_dim",
            "For i = 1 these are the rows of head 0",
        ),
        ("i * head_dim : (i + 1) * head_dim", "i : i + head_dim", "Row 1 is not where head 1"),
        (
            "i * head_dim : (i + 1) * head_dim",
            "i :: len(W_out) // head_dim",
            "these are rows 0, 3 and so on",
        ),
        (
            "[i * head_dim : (i + 1) * head_dim]",
            "[:, i * head_dim : (i + 1) * head_dim].mT",
            "columns",
        ),
        (
            "[i * head_dim : (i + 1) * head_dim]",
            "[:, i * head_dim : (i + 1) * head_dim]",
            "A head owns rows of W_out, not columns.",
        ),
        (
            "i * head_dim : (i + 1) * head_dim",
            "(i - 1) * head_dim : i * head_dim",
            "For i = 0 your slice is empty: heads count from 0.",
        ),
        ("head_dim = context.shape[-1]", "head_dim = 4", "Here 2 heads are 3 wide."),
        ("[i * head_dim : (i + 1) * head_dim]", "", "It stops in line 3"),
        ("context @ ", "", "shape is (4, 12), but (5, 12) is wanted"),
        ("context @", "2 * context @", "numbers are not, for i = 0"),
    ],
}

NOTEBOOK_4 = {
    "join_weights": [
        ("dim=0", "dim=1", "shape is (2, 15), with 3 heads of 2, tokens of 5 numbers. This is"),
        ("torch.cat([layer.weight for layer in layers], dim=0)",
         "torch.cat([layer.weight.T for layer in layers], dim=1)", "the slide's matrix"),
        ("torch.cat(", "torch.stack(", "an axis of their own, as by `stack`"),
        ("torch.cat([layer.weight for layer in layers], dim=0)",
         "sum(layer.weight for layer in layers)", "not added, and none is left out"),
        ("torch.cat([layer.weight for layer in layers], dim=0)",
         "layers[0].weight", "as large as the weight of one head"),
        ("layer in layers]", "layer in layers[:2]]", "There are 3 heads here, not 2"),
        ("layer in layers]", "layer in layers[:3]]", "shape is (9, 7), but (12, 7) is wanted"),
        ("layer in layers]", "layer in layers[::-1]]", "opposite order: head 0 should come first"),
        ("torch.cat([layer.weight for layer in layers], dim=0)",
         "torch.stack([layer.weight for layer in layers], dim=1).flatten(0, 1)",
         "keep the rows of a head together"),
        ("layer.weight for", "0 * layer.weight for", "not those of the heads in order"),
        ("layer.weight for", "layer for", "It stops in line 2, `return torch.cat"),
        ("return torch.cat([layer.weight for layer in layers], dim=0)",
         "return nn.Linear(5, 6)", "This is a layer: return its `.weight`"),
        ("return torch.cat([layer.weight for layer in layers], dim=0)",
         "return layers", "A tensor or a list of numbers is wanted"),
    ],
    "MyAttention": [
        ("projected.view(batch, tokens, self.num_heads, d_model // self.num_heads)",
         "projected.view(batch, self.num_heads, tokens, d_model // self.num_heads).transpose(1, 2)",
         "check_attention finds split-by-view"),
        ("context.transpose(1, 2).flatten(-2)", "context.reshape(x.shape)",
         "check_attention finds merge-by-view"),
        (", causal_mask(x.shape[1])", "", "check_attention finds future-visible"),
        ("causal_mask(x.shape[1])", "~causal_mask(x.shape[1])", "check_attention finds"),
        ("attention(q, k,", "attention(q * 0.5, k,", "check_attention finds scale"),
        ("attention(q, k, v,", "attention(q, v, v,", "check_attention finds wrong-pair"),
        ("attention(q, k, v,", "attention(q, k, k,", "check_attention finds wrong-values"),
        ("return self.W_out(merged)", "return merged", "W_out is never called"),
        ("return self.W_out(merged)", "return self.W_out(merged), context", "It returns 2 things"),
        ("return self.W_out(merged)", "self.W_out(merged)", "It returns nothing"),
        (".transpose(1, 2).flatten(-2)", ".transpose(1, 2).view(x.shape)",
         "It stops in line 20, `merged = context.transpose(1, 2).view(x.shape)`"),
        ("context.transpose(1, 2).flatten(-2)", "context.permute(0, 2, 3, 1).flatten(-2)",
         "Are the heads merged in order, each with its own numbers together?"),
        ("context.transpose(1, 2)", "context.flip(1).transpose(1, 2)", "on the same weights"),
        ("self.num_heads = num_heads", "self.num_heads = 1", "works as if it had 1"),
        ("self.num_heads = num_heads", "self.num_heads = 2", "works as if it had 2"),
        ("d_model // self.num_heads", "4", "(2, 5, 2, 4) asks for 80. (2, 5, 2, 5) would fit"),
        ("return per_token.transpose(1, 2)", "return per_token", "heads by heads: swap heads"),
        ("context.transpose(1, 2)", "context", "joined the tokens of each head: swap heads"),
        ("attention(q, k, v,", "attention(q, k.mT, v,", "It stops in line 19"),
        ("context, _ = attention", "context = attention", "Something here is a pair: context"),
        ("context, _ = attention(q, k, v, causal_mask(x.shape[1]))",
         "context = (q @ k).softmax(dim=-1) @ v", "The second turned by .mT is (2, 3, 4, 5)"),
        ("return self.W_out(merged)", "return self.W_out(merged)[:, -1]",
         "The shape is (2, 12), but (2, 5, 12) goes in"),
        (None, "MyAttention = nn.Linear(12, 12)", "The class itself is wanted"),
    ],
    "heads_fault": [
        ("split-by-view", "merge-by-view", 'It is not "merge-by-view": the heads are put back'),
        ("split-by-view", "future-visible", 'It is not "future-visible": the mask does hide'),
        ("split-by-view", "view", "The code is 'view', but one of these is wanted: scale"),
        (None, "heads_fault = 'split-by-view'", "Answer with heads_fault = case.answer("),
    ],
}  # fmt: skip

NOTEBOOK_5 = {
    "seven_shapes": [
        ("(4, 2, 6, 6)", "(4, 6, 2, 2)", "weights: (4, 6, 2, 2) compares heads with heads"),
        ('merged": (4, 6, 10)', 'merged": (4, 2, 30)', "swap back first"),
        ('context": (4, 2, 6, 5)', 'context": (4, 2, 6, 6)', "are the sizes of the weights"),
        ("(4, 2, 5, 6)", "(4, 2, 6, 5)", "keys.mT: (4, 2, 6, 5) has the right sizes in another"),
        ("(4, 6, 2, 5)", "(4, 6, 10)", "view: (4, 6, 10) has 3 axes, not 4"),
        (
            'x)": (4, 6, 10)',
            'x)": (4, 6, 12)',
            "(4, 6, 12) has a size that does not belong there: d_m",
        ),
        ("(4, 6, 2, 5)", "(4, 6, 2, 10)", "view: (4, 6, 2, 10) has a size that does not belong"),
        ("(4, 2, 5, 6)", "None", "There is no answer yet for keys.mT"),
        ("(4, 2, 5, 6)", "'turned'", "keys.mT: a shape such as (1, 2, 3) is wanted"),
        (None, "seven_shapes = (4, 6, 10)", "A dictionary is wanted here"),
    ],
    "can_join": [
        ("strides[-2] == sizes[-1] * strides[-1]", "strides[-1] == 1", "True of the context"),
        ("sizes[-1] * strides[-1]", "sizes[-1]", "False of every second number of each head"),
        ("strides[-2] == sizes[-1]", "strides[-2] == sizes[-2]", "False of the split queries"),
        (
            "strides[-2] == sizes[-1] * strides[-1]",
            "strides[-2] > strides[-1]",
            "True of the context, swapped back",
        ),
        (
            "strides[-2] == sizes[-1] * strides[-1]",
            "strides == tuple(sorted(strides)[::-1])",
            "True of the first three numbers of each head, with sizes (2, 5, 3, 3)",
        ),
        ("strides[-2] == sizes[-1]", "strides[-2] <= sizes[-1]", "True of"),
        ("strides[-2] == sizes[-1] * strides[-1]", "True", "`view` cannot join its last two axes"),
        (
            "strides[-2] == sizes[-1] * strides[-1]",
            "all(strides[i] == sizes[i + 1] * strides[i + 1] for i in range(len(sizes) - 1))",
            "only the last two axes are joined",
        ),
        ("return strides[-2] == ", "return ", "True or False is wanted, but this is a int"),
        ("return ", "", "returns nothing"),
    ],
    "missing_row": [
        (None, "missing_row = 2", "Up to row 2 nothing is missing. Look further down"),
        (None, "missing_row = 5", "Up to row 5 nothing is missing"),
        (None, "missing_row = 9", "It is missing before row 9. Look further up"),
        (None, "missing_row = 22", "It is missing before row 22"),
        (None, "missing_row = 99", "The number of a row is wanted, from 1 to"),
        (None, "missing_row = 'view'", "The number of a row is wanted"),
    ],
}

NOTEBOOK_6 = {
    "moves_along": [
        ("torch.allclose(again, rows, atol=1e-5)", "torch.equal(again, rows)", "by rounding alone"),
        ("layer(x)[order]", "layer(x)", "Compare layer(x[order]) with layer(x)[order]"),
        ("layer(x[order])", "layer(x[order])[order]", "both in the new order"),
        ("(again, rows,", "(again.mean(dim=0), rows.mean(dim=0),", "compare row by row"),
        ("(again, rows,", "(again.sum(), rows.sum(),", "A mean or a sum over the rows hides that"),
        ("torch.allclose(again, rows, atol=1e-5)", "(again - rows).max() < 1e-5", "with abs()"),
        ("torch.allclose(again, rows, atol=1e-5)", "(rows - again).max() < 1e-5", "with abs()"),
        ("(again, rows,", "(again[0], rows[0],", "adds 0.01 to the last number"),
        ("(again, rows,", "(again[:, 0], rows[:, 0],", "Compare every entry of every row"),
        ("atol=1e-5", "atol=1", "allow for rounding only"),
        ("atol=1e-5", "atol=0.05", "adds 0.01 to the last number"),
        ("order]", "range(4, -1, -1)]", "`order` that it was given"),
        ("order]", "[1, 2, 3, 4, 0]]", "`order` that it was given"),
        (None, "def moves_along(layer, x, order):\n    return True", "True of attention with a"),
        (
            "return torch.allclose(again, rows, atol=1e-5)",
            "return again - rows",
            "this is a Tensor",
        ),
        ("return torch", "return not torch", "Every answer is the opposite"),
        ("return ", "", "returns nothing"),
    ],
    "places": [
        (
            None,
            "def places(tokens, d_model):\n"
            "    return torch.arange(tokens).unsqueeze(1).expand(-1, d_model) / 100",
            "Place 301 holds a number as large as 3.01",
        ),
        (
            None,
            "def places(tokens, d_model):\n    return torch.randn(tokens, d_model)",
            "Two calls",
        ),
        (
            None,
            "def places(tokens, d_model):\n    return torch.ones(tokens, d_model)",
            "Places 0 and 1",
        ),
        (
            "place * rates",
            "place / tokens * rates",
            "has one row in a sentence of 5 words and anoth",
        ),
        (
            None,
            "def places(tokens, d_model):\n"
            "    return torch.arange(tokens).unsqueeze(1).expand(-1, d_model)",
            "Place 4 holds a number as large as 4",
        ),
        ("place * rates", "place % 8 * rates", "Places 0 and 8 have the same row"),
        (
            "torch.sin(place * rates)",
            "(3 * place / (1 + place)).expand(-1, d_model)",
            "have nearly the same row",
        ),
        (
            "torch.sin(place * rates)",
            "(1 / (1 + place)).expand(-1, d_model)",
            "have nearly the same row (0.003 apart)",
        ),
        (
            None,
            "def places(tokens, d_model):\n"
            "    return torch.nn.functional.one_hot(torch.arange(tokens), d_model)",
            "num_classes. It was called with 60 tokens and d_model = 6.",
        ),
        ("place * rates", "(place * rates).T", "shape is (6, 5), but (5, 6) is wanted"),
        ("return ", "", "returns nothing"),
    ],
}

ALL = NOTEBOOK_1 | NOTEBOOK_2 | NOTEBOOK_3 | NOTEBOOK_4 | NOTEBOOK_5 | NOTEBOOK_6
