"""Every head of a model at once."""

import torch
from matplotlib.figure import Figure

from .basic import WEIGHTS, Picture


def head_grid(attention, title):
    """Draw the weights of every head as a small map, all on one scale from 0 to 1.

    attention: (layers, heads, tokens, tokens). Layers down, heads across, both from 0; in each
    small map the rows attend and the columns are attended, first token at the top left.
    """
    layers, heads, tokens, _ = attention.shape
    framed = torch.nn.functional.pad(attention.detach(), (0, 1, 0, 1), value=torch.nan)
    # One large table, a gap after each map: -> (layers * side, heads * side)
    side = tokens + 1
    mosaic = framed.transpose(1, 2).reshape(layers * side, heads * side)[:-1, :-1]
    figure = Figure(figsize=(0.9 + 0.75 * heads, 1 + 0.62 * layers), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.15)  # inches: room for the title at the upper edge
    ax = figure.subplots()
    ax.set_facecolor("#bbbbbb")  # the gaps, where no number stands
    image = ax.imshow(mosaic.numpy(), cmap=WEIGHTS, vmin=0, vmax=1, interpolation="nearest")
    middle = (tokens - 1) / 2
    ax.set_xticks([middle + side * head for head in range(heads)], range(heads))
    ax.set_yticks([middle + side * layer for layer in range(layers)], range(layers))
    ax.tick_params(length=0)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.set_title(title, fontsize=11)
    figure.colorbar(image, ax=ax, shrink=0.6, label="weight")
    size = f"{layers} layers of {heads} heads, each {tokens} tokens by {tokens} tokens"
    return Picture(figure, f"Small heat maps on one scale: {title}. {size}.")
