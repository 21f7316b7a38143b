"""How to call somebody else's attention: sizes that all differ, and which argument is what."""

import inspect
import math
import re
from dataclasses import dataclass, fields, is_dataclass, replace

import torch
from torch import nn

from .guard import copy_module, reachable, read_settings, write_settings

BATCH, TOKENS, D_MODEL, NUM_HEADS = 3, 5, 24, 4  # head_dim 6: no two sizes, no two scales equal
CONTEXT = 8

WIDTHS = (
    "d_model embed_dim embed_size embedding_dim emb_dim n_embd hidden_size d_in dim_in "
    "input_dim in_dim in_features d_embed model_dim dmodel dim emb emb_size width "
    "num_hiddens hid_dim"
).split()
_HEADS = "num_heads n_heads n_head num_attention_heads nhead heads num_head nheads h n_h".split()
_CONTEXTS = (
    "context_length block_size max_seq_len max_length max_len seq_len n_ctx max_tokens ctx_len "
    "context_size max_position_embeddings n_positions sequence_length window num_tokens T"
).split()
OUT_WIDTHS = "d_out dim_out output_dim out_dim out_features".split()
_HEAD_WIDTHS = "head_dim head_size d_head dim_head d_k d_v key_dim d_q dk dv".split()
_DROPOUTS = "dropout attn_dropout dropout_rate drop p dropout_p attention_dropout attn_drop".split()

_MASK = re.compile(r"mask|^padding$|^hidden$")
_CONTEXT_MASK = re.compile(r"encoder|memory|cross")
_OTHER_MASK = re.compile(rf"(?<![a-z])head_mask|{_CONTEXT_MASK.pattern}|use_|is_|return|_type")
_KEYS = re.compile(r"^(k|v|key|keys|value|values|kv|key_value|x_k|x_v|k_in|v_in)$")
_QUERIES = re.compile(r"^(q|query|queries|x_q|q_in)$")
_ROLE = re.compile(r"(?:x_)?(q|k|v)(?:uery|ueries|eys?|alues?)?(?:_in)?")
ENCODER = r"context|ctx|enc(?:oder|oded)?(?:_\w+)?"
_CONTEXT = re.compile(ENCODER + r"|memory|mem|src|source|(?:x_)?(?:kv|key_value)")
_OPTIONAL = re.compile(_CONTEXT.pattern + r"|xa|key_value_states|cond(?:itioning)?")
_SECOND = re.compile(r"x_?2")  # a context too, after x_1
_ZEROS = re.compile(r"^(start_pos|offset|start|pos|position|step|layer_idx|past_length)$")
_NOT_TOKENS = re.compile(
    r"freq|rope|rotary|cos|sin|len|cache|past|state_|bias|ind|idx|time|adj|edge|coord|emb$"
)
_PLACES = re.compile(r"^(position_ids|input_pos|positions|pos_ids|cache_position)$")


class CannotCheck(ValueError):
    """The module cannot be called in any way that the check knows."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the inputs. num_heads is None where nobody says; context None: no limit."""

    batch: int
    tokens: int
    d_model: int
    num_heads: int | None = None
    context: int | None = None


def build(thing, d_model, num_heads):
    """Return (module, d_model, num_heads) for a module, a class or a factory."""
    if isinstance(thing, nn.Module):
        return getattr(thing, "_orig_mod", thing), d_model, num_heads
    if not callable(thing):
        raise ValueError(
            f"check_attention takes a module such as MyAttention(24, 4), or a function "
            f"f(d_model, num_heads) that makes one, but got {_describe(thing)}."
        )
    if d_model and num_heads and d_model % num_heads:
        raise ValueError(
            f"{num_heads} heads cannot share d_model = {d_model}: choose a multiple, such as "
            f"d_model = {6 * num_heads}."
        )
    width, heads = _choose(d_model, num_heads)
    if isinstance(thing, type):
        module = build_class(thing, width, heads)
    else:
        module = _made(lambda: thing(width, heads), _name(thing))
    return getattr(module, "_orig_mod", module), width, heads


def _choose(d_model, num_heads):
    if d_model is None:
        heads = num_heads or NUM_HEADS
        d_model = D_MODEL if D_MODEL % heads == 0 and heads in (1, 2, 4) else heads * 6
    heads = num_heads
    if heads is None:
        heads = next((n for n in (4, 3, 2, 5, 7) if d_model % n == 0 and n * n != d_model), 1)
    return d_model, heads


def build_class(kind, d_model, num_heads, d_in=None):
    """Make a module of a class whose arguments go by the usual names."""
    try:
        parameters = list(inspect.signature(kind).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    given, unknown = {}, []
    split = any(p.name in OUT_WIDTHS for p in parameters)
    for parameter in parameters:
        value = _argument(parameter.name.lower(), d_model, num_heads, (d_in or d_model), split)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if value is not None and (parameter.default is parameter.empty or _wanted(parameter)):
            given[parameter.name] = value
        elif parameter.default is parameter.empty:
            unknown.append(parameter.name)
    if unknown or not given:
        names = ", ".join(p.name for p in parameters)
        raise ValueError(
            f"{kind.__name__}({names}): the check does not know what to give for "
            f"{', '.join(unknown) or 'these'}. Write a function of three lines instead:\n\n"
            f"def make(d_model, num_heads):\n"
            f"    # every size from d_model and num_heads, so that the check can choose them\n"
            f"    return {kind.__name__}(...)\n\n"
            f"and check_attention(make)."
        )
    return _made(lambda: kind(**given), kind.__name__)


def _argument(name, d_model, num_heads, d_in, split):
    if name in _HEADS:
        return num_heads
    if name in OUT_WIDTHS or (name in WIDTHS and not split):
        return d_model
    if name in WIDTHS or name in ("embed", "d", "c", "e"):
        return d_in
    if name in _HEAD_WIDTHS:
        return max(d_model // num_heads, 1)
    if name in [context.lower() for context in _CONTEXTS]:
        return CONTEXT
    if name in _DROPOUTS:
        return 0.1
    return None


def _wanted(parameter):
    """Whole numbers are given even where they have a default; all else keeps its own."""
    return parameter.default is None or type(parameter.default) is int


def _made(make, name):
    before = read_settings()
    try:
        module = make()
    except Exception as error:
        raise CannotCheck(f"{name} could not be made: {told(error)}") from error
    finally:
        write_settings(before)
    if not isinstance(module, nn.Module):
        raise CannotCheck(
            f"{name} should return an nn.Module, but returned {_describe(module)}. "
            f"A plain function can be wrapped in a module whose forward calls it."
        )
    return module


def told(error):
    text = " ".join(str(error).split())
    if wants_cuda(error):
        return f"it asks for a CUDA device, which is not here ({text[:120]}). Use x.device."
    return f"{type(error).__name__}: {text[:300]}"


def wants_cuda(error):
    """Whether an exception says that a GPU is missing."""
    text = str(error)
    return bool(re.search(r"CUDA|NVIDIA|cuda", text)) and bool(
        re.search(
            r"not compiled|No NVIDIA|no NVIDIA|not available|is_available|driver|No CUDA", text
        )
    )


def _describe(thing):
    return f"a {type(thing).__name__}"


def _name(thing):
    return getattr(thing, "__name__", type(thing).__name__)


# --- sizes ----------------------------------------------------------------------------------


def find_heads(module):
    """The number of heads that the module itself names, or None."""
    return _attribute(module, _HEADS)


def _attribute(module, names):
    for part in module.modules():
        for holder in (part, getattr(part, "config", None), getattr(part, "cfg", None)):
            for name in names:
                value = getattr(holder, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None


def widths(module, given):
    """The widths that an input may have, the likeliest first."""
    if given is not None:
        return [given]
    found = [getattr(module, name, None) for name in WIDTHS]
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention):
            found.append(part.embed_dim)
        elif isinstance(part, nn.Linear | nn.LazyLinear):
            found.append(part.in_features)
        elif isinstance(part, nn.LayerNorm):
            found.append(part.normalized_shape[-1])
    found += [_attribute(module, WIDTHS)]
    for _, thing in reachable(module):
        if isinstance(thing, nn.Linear):
            found.append(thing.in_features)
    found += [
        size
        for parameter in module.parameters()
        if not lazy(parameter) and parameter.dim() >= 2
        for size in sorted(parameter.shape[-2:])
    ]
    # GPT-2 of transformers keeps its weights as (in, out) under another class
    numbers = [f for f in found if isinstance(f, int) and not isinstance(f, bool) and f > 0]
    return list(dict.fromkeys(numbers))


def lazy(parameter):
    return isinstance(parameter, nn.parameter.UninitializedParameter)


def find_context(module):
    """The longest input that the module takes, from its square mask or an attribute, or None."""
    return find_mask_size(module) or _attribute(module, _CONTEXTS)


def find_mask_size(module):
    """The size of the smallest square mask that the module keeps, or None."""
    tensors = [*module.buffers(), *(t for _, t in reachable(module) if isinstance(t, torch.Tensor))]
    return min((t.shape[-1] for t in tensors if is_mask(t)), default=None)


def is_mask(tensor):
    """Whether a tensor is a square triangle: one value above the diagonal, another below."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    if tensor.numel() != tensor.shape[-1] ** 2 or tensor.is_complex():
        return False
    square = tensor.detach().reshape(tensor.shape[-2:])
    size = len(square)
    corner = square[0, -1]  # most are told apart by their first and last rows
    if (square[0, 2:] != corner).any() or (square[-1, :-2] != square[-1, 0]).any():
        return False
    square = square.float().cpu()
    above = square[torch.ones(size, size, dtype=torch.bool).triu(1 + (size > 3))]
    below = square[torch.ones(size, size, dtype=torch.bool).tril(-1 - (size > 3))]
    return bool((above == above[0]).all() and (below == below[0]).all() and above[0] != below[0])


def choose_sizes(d_model, num_heads, context):
    """Batch and tokens that equal no other size; tokens shares no factor with the heads."""
    taken = {1, d_model, num_heads, d_model // num_heads if num_heads else None}
    limit = context or 10**9
    tokens = [
        n
        for n in (TOKENS, 7, 6, 9, 8, 4, 3, 2)
        if n <= limit and n not in taken and math.gcd(n, num_heads or 1) == 1
    ] or [min(TOKENS, limit)]
    batch = next(n for n in (BATCH, 2, 4, 7, 9) if n not in taken and n != tokens[0])
    return Sizes(batch, tokens[0], d_model, num_heads, context)


# --- the arguments of forward ---------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A way to call forward.

    inputs: how many times x is given; keywords: names that get x as well; zeros, places: names
    that get 0, or 0, 1, 2, …; turns: rotary tables, which get a turn by nothing; masks: names
    that can take a mask; required: those that must; passed_over: those of a context's masks that
    the check gives no mask of its own.
    layout: "batch" (batch, tokens, d_model), "tokens first", or "one sentence" (tokens, d_model).
    """

    inputs: int = 1
    keywords: tuple = ()
    zeros: tuple = ()
    places: tuple = ()
    masks: tuple = ()
    required: tuple = ()
    passed_over: tuple = ()
    turns: tuple = ()
    layout: str = "batch"
    names: tuple = ()  # the arguments that get x, in order, where they have names
    other: tuple = ()  # (number, tensor): the one of them that gets another tensor
    narrow: tuple = ()  # (number, width): the one of them that has a width of its own
    optional: tuple = ()  # the names of a context that is not given

    def __call__(self, module, x, masks=None):
        """Return the output (batch, tokens, width) for x (batch, tokens, d_model)."""
        given = self._laid_out(x)
        inputs = [given] * (self.inputs + len(self.keywords))
        for number, tensor in [self.other] if self.other else ():
            inputs[number] = self._laid_out(tensor)
        for number, width in [self.narrow] if self.narrow else ():
            times = -(-width // x.shape[-1])
            inputs[number] = torch.cat([inputs[number]] * times, dim=-1)[..., :width]
        keywords = dict(zip(self.keywords, inputs[self.inputs :], strict=True))
        keywords |= {name: 0 for name in self.zeros}
        keywords |= {name: torch.arange(x.shape[1], device=x.device) for name in self.places}
        keywords |= {name: _no_turn(module, x) for name in self.turns}
        keywords |= {name: None for name in self.required}
        keywords |= masks or {}
        output = module(*inputs[: self.inputs], **keywords)
        output = first_tensor(output, given.shape[:-1])
        if self.layout == "one sentence":
            return output.unsqueeze(0)
        return output.transpose(0, 1) if self.layout == "tokens first" else output

    def _laid_out(self, x):
        if self.layout == "one sentence":
            return x[0]
        return x.transpose(0, 1) if self.layout == "tokens first" else x

    @property
    def guessed(self):
        """The arguments for which the check has but a guess."""
        known = self.roles or (len(self.names) == 2 and context_number(self.names) is not None)
        return self.turns + (() if known else self.names[1:])

    @property
    def roles(self):
        """Role -> number of the input that plays it, where forward names queries, keys, values."""
        found = [_ROLE.fullmatch(name.lower()) for name in self.names]
        roles = {match[1]: number for number, match in enumerate(found) if match}
        whole = len(roles) == 3 and len(self.names) == self.inputs + len(self.keywords)
        return roles if whole else {}


def context_number(names):
    """Which of two arguments is a context by its name, or None."""
    found = [number for number, name in enumerate(names) if _CONTEXT.fullmatch(name.lower())]
    if not found and _SECOND.fullmatch(names[1].lower()):
        return 1
    return found[0] if len(found) == 1 else None


def ways_of_two_widths(module, d_model):
    """The ways to call forward(x, context) with a context that is as wide as another layer takes.

    A width that is a part or a multiple of d_model is more likely a mistake than meant.
    """
    for way in ways(module):
        at = context_number(way.names) if len(way.names) == 2 else None
        for width in widths(module, None) if at is not None else ():
            if d_model % width and width % d_model:
                yield replace(way, narrow=(at, width))


def _no_turn(module, x):
    """(cos, sin) of no rotation, (1, tokens, head_dim) each, as the transformers package has it."""
    size = _attribute(module, _HEAD_WIDTHS) or x.shape[-1]
    return x.new_ones(1, x.shape[1], size), x.new_zeros(1, x.shape[1], size)


class NoTensor(Exception):
    """forward returned something without a tensor in it."""


def first_tensor(output, leading):
    """The first tensor that is shaped like an output, or the first of all."""
    found = list(flat(output))
    if not found:
        raise NoTensor(f"forward returned {_describe(output)}")
    wanted = len(leading) + 1
    fitting = [t for t in found if t.dim() == wanted and t.shape[:-1] == leading]
    return (fitting or found)[0]


def flat(output):
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for item in output.values():
            yield from flat(item)
    elif isinstance(output, list | tuple):
        for item in output:
            yield from flat(item)
    elif is_dataclass(output):
        for part in fields(output):
            yield from flat(getattr(output, part.name))


def ways(module):
    """The ways to call the module's forward, by the names of its arguments, likeliest first."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    way, first, inputs = Way(inputs=0), None, 0
    positional = True
    for p in parameters:
        name, needed = p.name, p.default is p.empty
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        if _MASK.search(name.lower()):
            positional = False
            if not _OTHER_MASK.search(name.lower()) and not isinstance(p.default, bool | int):
                way = replace(way, masks=(*way.masks, name))
            elif _CONTEXT_MASK.search(name.lower()) and (needed or p.default is None):
                way = replace(way, passed_over=(*way.passed_over, name))
            if needed:
                way = replace(way, required=(*way.required, name))
        elif needed and _ZEROS.search(name):
            positional, way = False, replace(way, zeros=(*way.zeros, name))
        elif needed and _PLACES.search(name):
            positional, way = False, replace(way, places=(*way.places, name))
        elif name == "position_embeddings":
            positional, way = False, replace(way, turns=(*way.turns, name))
        elif needed and first and _NOT_TOKENS.search(name.lower()):
            raise CannotCheck(
                f"{type(module).__name__}.forward needs {name}, and the check does not know "
                f"what to give for it. Wrap it in a module whose forward(x) gives it."
            )
        elif needed or (first and _QUERIES.search(first.lower()) and _KEYS.search(name.lower())):
            first = first or name
            if positional and p.kind is not p.KEYWORD_ONLY:
                inputs += 1
            else:
                way = replace(way, keywords=(*way.keywords, name))
            way = replace(way, names=(*way.names, name))
        else:
            positional = False
            if p.default is None and _OPTIONAL.fullmatch(name.lower()):
                way = replace(way, optional=(*way.optional, name))
    way = replace(way, inputs=inputs if way.keywords else max(inputs, 1))
    starred = not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    counts = (1, 3, 2) if starred else ()
    others = [replace(way, inputs=n, keywords=()) for n in counts if n != way.inputs]
    layouts = ["batch", "one sentence"]
    if getattr(module, "batch_first", None) is False or _tokens_first_inside(module):
        layouts.insert(0, "tokens first")
    return [replace(w, layout=layout) for w in (way, *others) for layout in layouts]


def _tokens_first_inside(module):
    """Whether this is one of torch's own blocks, and takes (tokens, batch, d_model)."""
    inside = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    own = type(module).__module__.startswith("torch.nn.")
    return own and any(not part.batch_first for part in inside)


# --- a copy that is ready to be run ---------------------------------------------------------


def prepare(module, dtype=torch.float32):
    """Return a copy in evaluation mode with `dtype` numbers and gradients on."""
    copied = copy_module(module)
    with torch.no_grad():
        nn.Module.to(copied, dtype)  # as a learner's class may have a method of that name
        for _, thing in reachable(copied):
            if isinstance(thing, nn.Module):
                nn.Module.to(thing, dtype).eval()
            elif isinstance(thing, torch.Tensor) and thing.is_floating_point():
                thing.data = thing.data.to(dtype)
    for parameter in copied.parameters():
        if not lazy(parameter) and parameter.is_floating_point() and not is_mask(parameter):
            parameter.requires_grad_(True)
    return copied.eval()


def weights_of(module):
    """All trainable tensors by path: the registered ones, then those in plain attributes."""
    found = dict(module.named_parameters())
    known = {id(parameter) for parameter in found.values()}
    for path, thing in reachable(module):
        trainable = isinstance(thing, torch.Tensor) and thing.requires_grad and thing.is_leaf
        if trainable and id(thing) not in known:
            known.add(id(thing))
            found[path] = thing
    return found


def randomise(module, d_model, seed):
    """Fill the weights with random numbers of the usual spread, 1 / √fan_in.

    Numbers and vectors (biases, norms, temperatures) keep their values, stirred by a tenth.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in weights_of(module).values():
            if lazy(weight) or not weight.is_floating_point() or is_mask(weight):
                continue
            noise = torch.randn(weight.shape, generator=generator).to(weight)
            if weight.dim() >= 2:
                weight.data = noise / math.sqrt(fan_in(weight, d_model))
            else:
                kept = weight.data.nan_to_num(0.0, 0.0, 0.0).clamp(-100, 100)
                weight.data = kept + 0.1 * noise


def fan_in(weight, d_model):
    """How many numbers one output of the weight adds up."""
    return d_model if d_model in weight.shape else weight.shape[-1]
