"""What is wrong with somebody's attention, and why.

The way through the house, each room on top of those before it: `search` (how to make the module,
and a way to call it), `runs` (what it answers), `graph` (what was made of what), `stages`
(queries, keys, scores, weights, context), `facts` and `trust` (what follows, and what to
believe), `rules` (one file a family, one function a code), `report`.

To add a rule:

1. Choose its family in `rules/`, and its place there: causes stand before what they cause.
2. Write `@rule("its-code", unless={codes that would be its cause})` and a function of that name.
   Its docstring is one sentence and three lines of code with the fault, for the page of codes.
3. It gets the facts `s` and returns a Finding, Unjudged(why it cannot tell), a Note, or None. It
   sets nothing, and asks no other rule. Measure, with `s.look` (an output), `s.rows_moved` (who
   moves whom), `s.cores` (the stages of each attention) or `s.slopes`; read names last. What
   several rules ask is a function under `@fact` in `trust` or in the earlier family.
4. Say what was measured, and one change that mends it.
5. In `tests/check/`, plant it in two styles, `@fault("its-code", "how")`, and add two right
   modules that look like it, `@correct("its-code")`. Spoil the rule once, to see the tests fail.
6. `make docs` writes the page of codes anew.
"""

from .check import check_attention
from .findings import Finding
from .report import Report

__all__ = ["Finding", "Report", "check_attention"]
