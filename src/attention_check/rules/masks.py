"""A mask given as an argument: what it does where it does not hide, and beside hiding."""

import contextlib
import difflib
import itertools
import re
from dataclasses import replace

import torch

from ..facts import fact, gradients
from ..findings import Finding, Note, Unjudged
from ..graph import argument
from ..search.masks import FOUR_AXES, conventions
from ..search.names import CONTEXT_MASK, ENCODER, HIDDEN_SAID, KEPT_SAID, LENGTHS, QUERY_MASK
from ..search.ways import context_number
from ..stages import cores, fused_mask
from ..trust import absent, disturbed, merge_cut, off_axis, split_cut
from ..words import listed, refuses, told
from .registry import rule
from .roles import context_attends
from .sight import filled, future
from .trials import Pattern, causal_inside, column, columns, hides, masked, moved, padding, trials


@rule("mask-argument")
def mask_argument(s):
    """A mask given to forward is ignored, hides nothing, or takes the place of another.

    def forward(self, x, mask=None):
        return self.attend(x)
    """
    answers = []
    if names := s.way.passed_over:
        why = "the check gives no mask for a context alone"
        answers.append(Unjudged(why, listed(names), *s.way.optional[:1]))
    for trial in sorted(trials(s), key=lambda trial: not trial.accepted):
        answers += _accepted(s, trial) if trial.accepted else [_failing(s, trial)]
        if any(type(answer) is Finding for answer in answers):
            return answers
    return [*answers, *_together(s, [trial for trial in trials(s) if trial.accepted])]


@rule("hidden-row", whole=True)
def hidden_row(s):
    """A row whose keys are all hidden gives NaN.

    hidden = padding_mask[:, None, None, :]     # one sentence is padding alone
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    """
    return [
        Note(
            f"Where {name} hides all keys of a row, NaN comes out. The softmax of nothing but "
            f"-inf is NaN: if padding can do that in your data, fill such rows with 0.",
        )
        for name, where in _empty_rows(s).items()
        if where == "output"
    ]


def _nan_spreads(s, trial):
    """Whether padding on the left makes NaN in rows of tokens that are no padding."""
    hidden = torch.zeros_like(trial.accepted.pattern.hidden)
    hidden[0, 0] = True
    try:
        rows = s.look(s.x, _like_accepted(s, trial, hidden)).isnan().any(dim=-1)[0]
    except Exception:
        return False
    return bool(rows[0]) and bool(rows[1:].any())


@rule("nan-gradient")
def nan_gradient(s):
    """A row whose keys are all hidden comes out as numbers, and its gradients are NaN.

    weights = scores.softmax(dim=-1)                # NaN in such a row
    context = (weights @ values).nan_to_num(0.0)    # too late for the gradients
    """
    padded = [t for t in trials(s) if t.accepted and t.accepted.pattern.padding]
    if name := next((trial.name for trial in padded if _nan_spreads(s, trial)), ""):
        return Finding(
            f"Where {name} hides the first token, its row has no key left and is NaN, and so are "
            f"rows of tokens after it: the next layer multiplies that NaN by a weight of 0. Fill "
            f"such rows of the scores with 0 before the softmax.",
            code="nan",
        )
    for name, where in _empty_rows(s).items():
        if where != "output":
            return Finding(
                f"Where {name} hides all keys of a row, numbers come out, and the gradient of "
                f"{where} is NaN: the softmax of nothing but -inf is NaN, and what is put in its "
                f"place afterwards does not reach back. Fill such rows of the scores with 0 before "
                f"the softmax."
            )
    return None


@fact
def _empty_rows(s):
    """{mask argument: where NaN is if a row has no key left}: "output", or the weights by name."""
    found = {trial.name: _nan_of_a_row(s, trial) for trial in trials(s) if trial.accepted}
    return {name: where for name, where in found.items() if where}


def _nan_of_a_row(s, trial):
    hidden = torch.zeros_like(trial.accepted.pattern.hidden)
    hidden[0] = True
    try:
        output = s.run(s.x, _like_accepted(s, trial, hidden))
        if output.isnan().any():
            return "output"
        weights = {name: w for name, w in s.weights.items() if w.requires_grad}
        found = gradients([output], weights)
    except Exception:
        return None
    nan = [name for name, g in found.items() if g is not None and g.isnan().any()]
    return listed(nan) if nan else None


def _like_accepted(s, trial, hidden):
    """Another mask in the convention that was accepted, as it is given to forward."""
    wanted = trial.accepted.convention
    alike = (wanted.words, wanted.shape)
    found = conventions(s, hidden, trial.name)
    return {trial.name: next(c.mask for c in found if (c.words, c.shape) == alike)}


# --- a mask that hides ----------------------------------------------------------------------


def _accepted(s, trial):
    """The answers on a mask that hides what it should: its Note, and what it does beside that."""
    if said := _filled_with_more(s, trial):
        return [Finding(said)]
    convention, number = trial.accepted.convention, trial.accepted.number
    whose = "" if number is None else f", for {s.way.names[number]}"
    note = Note(
        f"{trial.name} is understood as {convention.words}, shape {convention.shape}{whose}.",
        code="mask-convention",
    )
    causes = (
        *(_written_into, _of_an_earlier_call, _beside_is_causal, _said_otherwise),
        *(_in_place_of_the_causal, _mixed, _given_to_another, _unlike_alone),
    )
    return [note, next(filter(None, (cause(s, trial) for cause in causes)), None)]


def _of_an_earlier_call(s, trial):
    """The mask of an earlier call is used where another is given."""
    none = _like_accepted(s, trial, torch.zeros_like(trial.accepted.pattern.hidden))
    used = s.unused()
    s.look(s.x, {trial.name: trial.accepted.convention.mask}, used)
    answers = (s.look(s.x, none, module) for module in (used, s.unused()))
    if not s.differs(*answers)[1].any():
        return None
    return Finding(
        f"A call with another {trial.name} still hides what the {trial.name} of the call before "
        f"hid: it is kept on the module. Make it anew in each call."
    )


def _written_into(s, trial):
    """forward writes into x, or into the mask, where there is one."""
    masks, given = {trial.name: trial.accepted.convention.mask.clone()}, s.x.clone()
    with torch.no_grad():
        s.call(s.unused(), given, masks)
    if not torch.equal(given, s.x):
        what = "the caller's tensor"
    elif not torch.equal(masks[trial.name], trial.accepted.convention.mask):
        what = f"the caller's {trial.name}"
    else:
        return None
    return Finding(
        f"Where {trial.name} is given, forward changes {what}: an operation such as +=, "
        f"masked_fill_ or x[...] = writes into it. Make a new tensor instead.",
        code="input-changed",
    )


def _said_otherwise(s, trial):
    """The docstring says that True, or 1, means the opposite of what it does."""
    kind = type(s.original)
    said = f"{kind.__doc__ or ''} {kind.forward.__doc__ or ''}"
    hidden, kept = (bool(pattern.search(said)) for pattern in (HIDDEN_SAID, KEPT_SAID))
    words = trial.accepted.convention.words
    hides = "True = hidden" in words or "1 = hidden" in words
    keeps = "True = keep" in words or "1 = keep" in words
    if len(s.way.masks) > 1 or hidden == kept:
        return None
    if words.startswith("0 and -inf"):
        return Finding(
            f"The docstring says what 1, or True, in {trial.name} means, and the mask is added to "
            f"the scores as it is: 0 and 1 hide nothing. Fill the scores that are to be hidden "
            f"with -inf: scores.masked_fill(hidden, float('-inf'))."
        )
    if (hidden, kept) != (keeps, hides):
        return None
    meant, does = ("hidden", "kept") if keeps else ("kept", "hidden")
    return Finding(
        f"The docstring says that True, or 1, in {trial.name} means {meant}, and where it is True "
        f"the pair is {does}: the mask is turned over. scaled_dot_product_attention keeps where a "
        f"mask is True, nn.MultiheadAttention hides there: give ~{trial.name}, or mend the text."
    )


def _beside_is_causal(s, trial):
    """The fused kernel gets a mask and is_causal, which it takes on some devices alone."""
    fused = [core.fused for core in masked(s, trial.name).cores if core.fused is not None]
    if not any(fused_mask(call) is not None and argument(call, 5, "is_causal") for call in fused):
        return None
    return Finding(
        f"Where {trial.name} is given, scaled_dot_product_attention gets it beside is_causal=True, "
        f"and its documentation allows one of the two: on some devices it raises an error, on "
        f"others one is ignored. Put the triangle into the mask, and give that alone."
    )


def _filled_with_more(s, trial):
    """What to say where all scores that the mask leaves are one large number; or None."""
    pairs = trial.accepted.pattern.pairs
    for core in masked(s, trial.name).cores:
        if core.scores is None or core.scores.shape[-2:] != pairs.shape:
            continue
        left = core.scores[..., ~pairs & (s.influence.cpu() > 0)]
        if left.numel() and left.median() > 1e3:  # all, but for those of a padded token
            return (
                f"The scores that {trial.name} fills become {left.max():.3g}, more than all "
                f"others: what should be hidden takes all the weight, in equal shares. Fill hidden "
                f"scores with float('-inf'), with a minus."
            )
    return None


def _in_place_of_the_causal(s, trial):
    """The future is seen as soon as a mask is given; of one for all pairs that may be meant."""
    accepted = trial.accepted
    if not causal_inside(s):
        return None
    number = accepted.number if s.looking is None else s.looking
    seen = moved(s, accepted.given, number).any(dim=0) & future(s)
    if accepted.pattern.padding:
        seen[accepted.pattern.token] = False  # what comes out for a padded token
    if not seen.any():
        return None
    i, j = seen.nonzero()[0].tolist()
    padded = accepted.pattern.padding or trial.for_padding or _takes_padding_too(s, trial)
    if not padded and not s.causal:
        return Note(
            f"Where {trial.name} is given, it takes the place of the causal mask: position {i} "
            f"sees position {j} unless {trial.name} hides it.",
            code="mask-alone",
        )
    return Finding(
        f"Position {i} sees position {j} as soon as {trial.name} is given: the padding "
        f"mask takes the place of the causal one. Hide a pair if either mask hides it: "
        f"combine them with | where True = hidden, with & where True = keep.",
        seen.float(),
        "future pairs that are visible with the padding mask",
    )


def _unlike_alone(s, trial):
    """A padded sentence gives other rows than the sentence alone, as padding still has weights."""
    last = s.sizes.tokens - 1
    if not trial.accepted.pattern.padding or s.masks or s.several or disturbed(s):
        return None
    masks = _like_accepted(s, trial, padding(s, last).hidden)
    try:
        rows, alone = s.look(s.x, masks)[:, :last], s.look(s.x[:, :last])
    except Exception:
        return None  # a length that it does not take
    if not rows.isfinite().all() or not s.differs(rows, alone)[1].any():
        return None
    seen = [core.weights for core in cores(s.capture(s.x, masks=masks))]
    shares = [
        w[..., :last, last].max().item() for w in seen if w.shape[-2:] == (last + 1, last + 1)
    ]
    if max(shares, default=0) < 1e-6:
        return None
    return Finding(
        f"With {trial.name} the rows of real tokens are not those of the sentence without its "
        f"padding: a padded token still takes a weight of {max(shares):.2g}. Zeros in its place "
        f"are a key like any other: fill the scores of its key with -inf before the softmax.",
    )


def _takes_padding_too(s, trial):
    """Whether an argument for pairs also takes a padding mask, in another convention.

    One that takes both in the same is a mask for all pairs, and may stand for the causal one.
    """
    accepted, pattern = trial.accepted, padding(s, trial.accepted.pattern.token)
    for convention in conventions(s, pattern.hidden) if s.sizes.batch > 1 else ():
        if convention.shape != FOUR_AXES or not _hidden_by(s, trial, pattern, convention.mask):
            continue
        pairs = conventions(s, accepted.pattern.hidden)
        same = [c for c in pairs if (c.words, c.shape) == (convention.words, "(tokens, tokens)")]
        if not any(_hidden_by(s, trial, accepted.pattern, one.mask) for one in same):
            return True
    return False


def _hidden_by(s, trial, pattern, mask):
    """Whether a mask that is given as the argument of a trial hides a pattern."""
    with contextlib.suppress(Exception):
        moves = moved(s, {trial.name: mask}, trial.accepted.number, columns(s)).any(dim=0)
        return hides(s, moves, pattern, columns(s))
    return False


def _together(s, accepted):
    """The answers on two masks that hide alone, given together."""
    for first, second in itertools.combinations(accepted, 2):
        token = s.sizes.tokens - 1 if LENGTHS.search(second.name) else 2
        other = _of_one_sentence(s, second, token)
        masks = first.accepted.given | _like_accepted(s, second, other.hidden)
        names, pairs = f"{first.name} and {second.name}", first.accepted.pattern.pairs | other.pairs
        try:
            output = s.look(s.x, masks)
        except Exception as error:
            if len({mask.dtype for mask in masks.values()}) > 1:
                continue  # what the check gives is no pair
            said = f"forward fails with {names} together, and takes each alone: {told(error)}"
            return [Note(said, code="masks") if refuses(error) else Finding(said)]
        if not _same_input(s, first, second) or output.isnan().any():
            continue
        seen = moved(s, masks, first.accepted.number).any(dim=0) & pairs
        for pattern in (first.accepted.pattern, other):
            seen[pattern.token] &= not pattern.padding
        if seen.any():
            i, j = seen.nonzero()[0].tolist()
            lost = first if first.accepted.pattern.pairs[i, j] else second
            return [
                Finding(
                    f"With {names} together, position {i} sees position {j}, which {lost.name} "
                    f"hides where it is given alone. Hide a pair if either mask hides it: combine "
                    f"them with | where True = hidden, with & where True = keep.",
                    seen.float(),
                    "pairs that are visible with both masks, and should be hidden",
                    seen,
                )
            ]
    return []


def _same_input(s, first, second):
    """Whether two masks hide tokens of the same input."""
    return first.accepted.number == second.accepted.number


def _mixed(s, trial):
    """A mask of one sentence that reaches another."""
    accepted, batch = trial.accepted, s.sizes.batch
    if "batch" not in accepted.convention.shape or batch == 1 or disturbed(s):
        return None
    if accepted.pattern.token != 1:
        return None
    wanted = [_of_one_sentence(s, trial, 1 + b % (s.sizes.tokens - 1)) for b in range(batch)]
    padded, tokens = accepted.pattern.padding, sorted({each.token for each in wanted})
    hidden = torch.stack([w.hidden[b] if padded else w.hidden for b, w in enumerate(wanted)])
    masks = _like_accepted(s, trial, hidden)
    moves = moved(s, masks, accepted.number, tokens)
    mixed = [b for b, each in enumerate(wanted) if not hides(s, moves[b], each, tokens)]
    if not mixed or s.look(s.x, masks).isnan().any():
        return None
    return Finding(
        f"{trial.name} hides what it should where all sentences have the same mask. Where each "
        f"has its own, the mask of another sentence is used in "
        f"{'sentence' if len(mixed) == 1 else 'sentences'} {listed(mixed)}, in some heads or in "
        f"all. Neither repeat the mask for the heads nor take one sentence of it, but give it an "
        f"axis for the heads: (batch, 1, {'1' if padded else 'tokens'}, tokens) goes with scores "
        f"of (batch, num_heads, tokens, tokens).",
    )


def _of_one_sentence(s, trial, token):
    """A Pattern like the accepted one, that hides one token."""
    if trial.accepted.pattern.padding:
        return padding(s, token)
    pairs = column(s, token) if causal_inside(s) else column(s, token) | future(s)
    return Pattern(pairs, pairs, token)


def _given_to_another(s, trial):
    """In a decoder block: a mask of the target that hides the memory, or the reverse."""
    names, side = s.way.names, _SIDE.search(trial.name.lower())
    at = context_number(names) if s.several and len(names) == 2 else None
    if at is None or side is None or not s.influence_of(1 - at).fill_diagonal_(0).any():
        return None
    if not side[1] and not any(_SIDE.match(name)[1] for name in s.way.masks if _SIDE.match(name)):
        return None  # the source may be the input itself
    mine = 1 - at if side[1] else at
    if not _hides_in(s, trial, 1 - mine):
        return None
    and_not = "as well as those" if _hides_in(s, trial, mine) else "and not those"
    return Finding(
        f"{trial.name} hides tokens of {names[1 - mine]}, {and_not} of {names[mine]}: it is given "
        f"to the wrong attention. The self-attention takes the mask of {names[1 - at]}, the "
        f"cross-attention that of {names[at]}.",
    )


def _hides_in(s, trial, number):
    """Whether the accepted mask hides tokens of one of several inputs."""
    moves = moved(s, trial.accepted.given, number, columns(s)).any(dim=0)
    return hides(s, moves, trial.accepted.pattern, columns(s))


_SIDE = re.compile(r"(tgt|trg|target)|src|source")


# --- a mask that does not hide --------------------------------------------------------------


def _failing(s, trial):
    """The answer on a mask argument with which nothing hides."""
    if not trial.attempts and (slip := next(filter(None, map(_slip, trial.errors)), "")):
        return Finding(f"forward fails as soon as {trial.name} is given: {slip}")
    of_context = re.search(f"{ENCODER}|mem", trial.name.lower())
    if trial.attempts and (trial.acted or of_context) and absent(s):
        return replace(absent(s), of=trial.name)
    if why := _not_to_be_judged(s, trial):
        return Unjudged(why, of=trial.name)
    if LENGTHS.search(trial.name) and _cuts(s, trial.name):
        return Finding(
            f"{trial.name} changes the output, but the tokens after so many are still seen, or "
            f"others are hidden. hidden = torch.arange(tokens) >= {trial.name}[:, None] is True "
            f"where the scores of a key are to be filled with -inf."
        )
    if not trial.acted and QUERY_MASK.search(trial.name.lower()):
        return Note(f"forward takes {trial.name}, of the queries, and does not use it.")
    if not trial.acted:
        return Finding(
            f"forward takes {trial.name}, but no mask changes the output: it is ignored. Put "
            f"scores = scores.masked_fill({trial.name}, float('-inf')) before the softmax, and "
            f"keep the result.",
        )
    for attempt in trial.attempts:
        if attempt.verdict != "ignored" and (said := _what_instead(s, trial.name, attempt)):
            return _not_hidden(s, trial, attempt, said)
    return _none_hides(s, trial)


def _none_hides(s, trial):
    """What is said of a mask argument that acts, and of which nothing else is seen."""
    if any(_row_of_the_hidden(s, attempt) for attempt in trial.attempts):
        return Finding(
            f"Where {trial.name} hides a token, the row of that token is NaN: all its keys are "
            f"hidden, and the softmax of nothing but -inf is NaN. Hide the keys alone: "
            f"{trial.name}[:, None, None, :] for scores of (batch, num_heads, tokens, tokens)."
        )
    if not (leaks := [each for each in trial.attempts if each.verdict == "leaks"]):
        said = "A hidden score must become -inf by masked_fill; 0 * -inf is NaN."
        return Finding(f"Each mask given as {trial.name} makes NaN. {said}")
    tried = [attempt.convention.words for attempt in leaks]
    said = (
        f"{trial.name} changes the output but does not hide: tried {len(tried)} ways to write "
        f"the mask ({'; '.join(dict.fromkeys(tried))}), and with each a hidden token is still "
        f"seen, or more is hidden than was asked for. A 0/1 mask that is added or multiplied "
        f"hides nothing: fill hidden scores with -inf before the softmax."
    )
    return _not_hidden(s, trial, leaks[-1], said)


def _slip(error):
    """What an error says that no mask can mend: a name that is not there, or is misspelt; or ""."""
    if isinstance(error, NameError):
        return told(error)
    near = difflib.get_close_matches(getattr(error, "name", None) or "", dir(torch.Tensor), 1, 0.8)
    of_a_tensor = isinstance(error, AttributeError) and isinstance(error.obj, torch.Tensor)
    return f"{told(error)}. Did you mean {near[0]}?" if of_a_tensor and near else ""


def _cuts(s, name):
    """Whether lengths of one token change the output."""
    one = torch.ones(s.sizes.batch, dtype=torch.long, device=s.device)
    return bool(s.differs(s.look(s.x, {name: one}), s.base)[1].any())


def _not_to_be_judged(s, trial):
    """Why a mask that does not hide may be right all the same, in words; or ""."""
    causes = {"split-by-view": split_cut, "merge-by-view": merge_cut, "softmax-axis": off_axis}
    spoilt = [code for code, found in causes.items() if trial.acted and found(s)]
    if not trial.attempts:
        return "forward takes no mask of a shape and kind that the check knows"
    if spoilt:
        return f"of {listed(spoilt)}"
    if trial.acted and CONTEXT_MASK.search(trial.name.lower()) and context_attends(s):
        return "the tokens that it hides go through an attention of their own before"
    if trial.acted and _in_an_encoder(s, trial):
        return "it hides pairs in an encoder, and the output shows only what the decoder sees of it"
    return ""


def _in_an_encoder(s, trial):
    """Whether it may mask pairs of a context that goes through an attention of its own."""
    names, side = s.way.names, _SIDE.search(trial.name.lower())
    if not s.several or len(names) != 2 or context_number(names) is None:
        return False
    return bool(side and not side[1]) and context_attends(s)


def _not_hidden(s, trial, attempt, said):
    if attempt.moves is None:
        return Finding(said)
    pairs, moves = attempt.pattern.pairs, moved(s, attempt.given).any(dim=0)
    shows = f"which rows move when a token changes, the mask being {attempt.convention.words}"
    wrong = pairs | future(s) if causal_inside(s) else pairs
    return Finding(said, moves.float(), shows, wrong)


def _row_of_the_hidden(s, attempt):
    """Whether a mask of padding makes NaN in the rows of the tokens that it hides, and no other."""
    if attempt.verdict != "NaN" or not attempt.pattern.padding:
        return False
    broken = (~s.look(s.x, attempt.given).isfinite()).flatten(2).any(dim=-1).any(dim=0)
    return broken.nonzero().flatten().tolist() == [attempt.pattern.token]


def _what_instead(s, name, attempt):
    """What a mask does in place of hiding, in words, where that is seen; or None."""
    pattern = attempt.pattern
    if pattern.padding and attempt.changed.nonzero().flatten().tolist() == [pattern.token]:
        return (
            f"With {name} only the rows of the padded tokens themselves change, and the others "
            f"still see them: the mask stands at the queries. It must hide the keys: "
            f"{name}[:, None, None, :] for scores of (batch, num_heads, tokens, tokens)."
        )
    if attempt.moves is None:
        return None
    pairs, ahead, tokens = pattern.pairs, future(s), columns(s)
    seen = attempt.moves[:, tokens]
    if causal_inside(s) and seen.equal(~(pairs & ahead)[:, tokens]):
        return (
            f"With {name} the future is seen, and a pair is hidden only where {name} and the "
            f"causal mask both hide it. Hide it where either does: combine them with | where "
            f"True = hidden, with & where True = keep."
        )
    turned = pairs.mT | ahead if causal_inside(s) else pairs.mT
    if not pattern.padding and seen.equal(~turned[:, tokens]):
        return (
            f"{name} hides the pairs on the other side of the diagonal: its rows and columns are "
            f"swapped before it is used. A row is a query and a column a key, in the mask as in "
            f"the scores: leave out the transpose."
        )
    found = cores(s.capture(s.x, masks=attempt.given))
    said = (_beside_the_scores(core, name, pattern) for core in found)
    return next(filter(None, said), None)


def _beside_the_scores(core, name, pattern):
    """What to say where weights or values are zeroed, and not the scores hidden; or None."""
    pairs, token = pattern.pairs, pattern.token
    if core.normalised is None or core.weights.shape[-2:] != pairs.shape:
        return None
    hidden = core.weights[..., pairs].abs()
    short = (core.weights.sum(dim=-1) - 1).abs().max() > 1e-3
    if short and (hidden < 1e-12).all():
        return (
            f"{name} sets weights to zero after the softmax: hidden tokens still take their "
            f"share in it, and the rest no longer sums to one. Fill the scores with -inf "
            f"before the softmax."
        )
    one = pairs[:, token].sum() == len(pairs) - 1
    if one and (core.values[..., token, :] == 0).all() and hidden.max() > 1e-6:
        return (
            f"{name} sets the values of hidden tokens to zero, but they still take their "
            f"share in the softmax. Fill the scores of their keys with -inf before it."
        )
    value = filled(core.scores, pairs)
    if value is not None and abs(value) < 100:
        return (
            f"The scores that {name} hides become {value:.3g}, too close to the others to "
            f"hide anything. Fill them with float('-inf')."
        )
    return None
