"""Three ways to tell a token where it stands: sinusoidal, learned, rotary.

The lectures only name them, as the door to the next lecture (lecture 8, 1:10:15); the sources
are the papers below.
"""

import torch
from torch import nn

from .attention import _check_count


def sinusoidal(tokens, d_model, base=10000.0):
    """Return sines and cosines of each position, to be added to the embeddings.

    Shape: (tokens, d_model). Row p holds sin(p / base^(2i/d_model)) at column 2i and the cosine
    at 2i + 1: slow and fast waves, measured in tokens.
    Source: "Attention Is All You Need" (Vaswani et al., 2017), section 3.5.
    Raises ValueError where d_model is odd.
    """
    _check_count("tokens", tokens)
    angles = _angles(tokens, d_model, base)  # (tokens, d_model / 2)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1)  # (tokens, d_model / 2, 2)
    return waves.flatten(-2)  # -> (tokens, d_model): sine and cosine side by side


class LearnedPositions(nn.Module):
    """One trainable vector for each position, added to the embeddings, as in GPT-2.

    forward: (batch, tokens, d_model) -> the same shape. Untrained, the vectors are random.
    Source: "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019).
    Raises ValueError for more tokens than there are positions.
    """

    def __init__(self, max_tokens, d_model):
        super().__init__()
        _check_count("max_tokens", max_tokens)
        _check_count("d_model", d_model)
        self.vectors = nn.Parameter(torch.randn(max_tokens, d_model))

    def forward(self, x):
        tokens, max_tokens = x.shape[-2], len(self.vectors)
        if tokens > max_tokens:
            raise ValueError(
                f"There are {max_tokens} learned positions, too few for {tokens} tokens: "
                f"LearnedPositions({tokens}, {self.vectors.shape[1]}) would do."
            )
        return x + self.vectors[:tokens]


def rotary(x, base=10000.0):
    """Return queries or keys, each pair of numbers turned by an angle that grows with its place.

    Shape: (..., tokens, head_dim) -> the same. Applied to queries *and* keys, never to values:
    the product of two turned vectors depends on their distance alone.
    Source: "RoFormer" (Su et al., 2021), equation 34; pairs are neighbours, as in the paper.
    Raises ValueError where head_dim is odd.
    """
    angles = _angles(x.shape[-2], x.shape[-1], base).to(x)  # (tokens, head_dim / 2)
    sin, cos = angles.sin(), angles.cos()
    even, odd = x[..., 0::2], x[..., 1::2]  # (..., tokens, head_dim / 2) each
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return turned.flatten(-2)  # (..., tokens, head_dim / 2, 2) -> (..., tokens, head_dim)


def _angles(tokens, width, base):
    _check_count("width", width)
    if width % 2:
        raise ValueError(
            f"Positions by sine and cosine need an even width, but it is {width}: "
            f"{width + 1} would work."
        )
    places = torch.arange(tokens, dtype=torch.float64)
    speeds = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(places, speeds).float()
