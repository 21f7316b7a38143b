"""The task on which one head is not enough, drawn by one example."""

from dataclasses import replace

import torch

from .flow import KEY, QUERY, Arrow, Grid, flow, shades

ROLES = (5, 1, 6, 7, 3, 0, 2, 4)  # of tokens 0 to 7 in the example; 0 is the noun, 1 the verb


def role_task(weights=None, title="One example of the task"):
    """Draw one example: eight tokens with roles and 8 numbers each; "it", the last, reports two.

    weights: (heads, 8), the weights of "it" on each role; with them what each head brings back.
    """
    numbers = torch.randn(8, 8, generator=torch.Generator().manual_seed(5))
    names = ["noun", "verb", *(f"role {i}" for i in range(2, 8))]
    rows, colour = [*(f"token {i}" for i in range(7)), "it"], {0: KEY, 1: QUERY}
    tint = [[colour.get(role, "white")] for role in ROLES]
    wide = {"cell": (31, 17), "decimals": 1}
    shown, count = [["?"]] * 8, 1
    if weights is not None:
        by_token = weights.detach()[:, list(ROLES)].mT  # (8 tokens, heads)
        shown, count = by_token.tolist(), by_token.shape[1]
    x, low = 92 + 34 * count + 28, 8 * 17 + 62
    grids = {
        "role": Grid(0, 0, [[names[role]] for role in ROLES], "role", "", (48, 17), rows, tint),
        "weight": Grid(86, 0, shown, "weights of “it”", "", (34, 17)),
        "numbers": Grid(x, 0, numbers.tolist(), "numbers", tint=[t * 8 for t in tint], **wide),
    }
    arrows = [Arrow("weight", "numbers", "×", "word")]
    told = "The noun is token 5, the verb token 1; “it” must report the numbers of both."
    if weights is not None:
        grids["weight"] = replace(grids["weight"], tint=shades(by_token))
        heads = [f"head {h}" for h in range(count)]
        back = (by_token.mT @ numbers).tolist()
        grids["back"] = Grid(x, low, back, "what comes back", "", rows=heads, **wide)
        arrows.append(Arrow("numbers", "back", "weigh and add up"))
        low += 17 * count + 40
        told += " One head brings" if count == 1 else f" {count} heads bring"
        told += f" back {'one blend' if count == 1 else 'a blend each'}."
    asked, faces = (
        [numbers[ROLES.index(role)].tolist() for role in (0, 1)],
        [[KEY] * 8, [QUERY] * 8],
    )
    grids["asked"] = Grid(
        x, low, asked, "what “it” must report", "", rows=names[:2], tint=faces, **wide
    )
    return flow(grids, arrows, title, told)
