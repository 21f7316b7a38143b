"""Exercises: a stub in a notebook, a check here, a folded solution below it.

To add one, say `two_heads` in notebook 3:

1. Here, in the file of the notebook (`heads_in_a_loop.py`, imported at the end of this file):

       @exercise("two_heads", 3, "Two heads")
       def check_two_heads(answer):
           context = numbers(run(answer, x, W), (2, 5, 6), "batch, tokens, d_model")
           if ...: raise Wrong("The heads are added: join them side by side.")
           return "Two heads, joined: nothing is missing."

   Untried answers never reach it. It computes what is right, at sizes that all differ; looks
   at the shape first (`numbers`); names the fitting mistake (`Wrong`, or `blame` for a module).

2. In the notebook, four cells: a heading `### Try: two heads (medium, 5 minutes)` with the
   task; the stub, tagged `exercise` (`def two_heads(x, W): pass`, or a value that is None);
   `check_two_heads(two_heads)`; and the solution, the whole stub cell as it should become:

       <details><summary>Solution</summary>      a ```python block      </details>

   The notebook's last code cell is `progress()`.

3. In `tests/wrong_answers.py`: three or more wrong answers with words of their messages.

`difficulty` is easy, medium or hard. The heading, the title given to `exercise` and the
stub's name have to agree; `tests/test_exercises.py` says where they do not.
"""

from .causal_mask import check_causal_head, check_keep_mask, check_silent_fault
from .exercise import EXERCISES, Verdict, Wrong, blame, exercise, numbers, progress, run
from .faults import find_the_fault
from .qkv_by_hand import check_attend_all, check_dog_diagonal, check_query_weights

__all__ = [
    "EXERCISES",
    "Verdict",
    "Wrong",
    "blame",
    "check_attend_all",
    "check_causal_head",
    "check_dog_diagonal",
    "check_keep_mask",
    "check_query_weights",
    "check_silent_fault",
    "exercise",
    "find_the_fault",
    "numbers",
    "progress",
    "run",
]
