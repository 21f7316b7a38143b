"""What is wrong with somebody's attention, and why.

The way through the house, each room on top of those before it: `search` (how to make the module,
and a way to call it), `runs` (what it answers), `graph` (what was made of what), `stages`
(queries, keys, scores, weights, context), `derivative` (weights that no line makes), `facts` and
`trust` (what follows, and what to believe), `rules` (one file a family, one function a code),
`report`.

To add a rule:

1. Choose its family in `rules/`, and its place there: causes stand before what they cause.
2. Write `@rule("its-code", unless={codes that would be its cause})` and a function of that name.
   Its docstring is one sentence and up to three lines of code with the fault, for `docs/codes.md`.
3. It gets the facts `s` and returns a Finding, Unjudged(why it cannot tell), a Note, or None (also
   where another rule says already that nothing can be told). It sets nothing and asks no other
   rule. Measure, with `s.look` (an output), `s.rows_moved` (who moves whom), `s.cores` (the stages
   of each attention), `s.graph` (what was made of what, by which factor: `origin`) or `s.slopes`;
   read names last. What several rules ask is a function under `@fact`, in `trust` or earlier.
4. Say what was measured, and one change that mends it.
5. Enter the code in FAMILIES of `tests/check/registry.py`, which says how to plant it in two
   styles, `@fault`, and how to add two right modules that look like it, `@correct`. Spoil each
   condition of the rule once, to see a test fail.
6. `make docs` writes the page of codes anew.
"""

from .check import check_attention
from .findings import Finding
from .report import Report

__all__ = ["Finding", "Report", "check_attention"]
