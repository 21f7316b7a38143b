"""Exercises: a stub in a notebook, a check here, a folded solution below it.

To add one, say `two_heads` in notebook 3:

1. In the file of the notebook (here `heads_in_a_loop.py`), a check, imported and listed below:

       @exercise("two_heads", 3, "Two heads")
       def check_two_heads(answer):
           context = numbers(run(answer, x, W), (2, 5, 6), "batch, tokens, 2 * head_dim")
           if same(context, right): return "The sentence that a learner reads after Passed."
           if ...: raise Wrong("The heads are added: join them side by side.")

   A stub never reaches it. The tools stand in `exercise.py`: `draw` gives inputs, `run` calls
   the learner's function and tells its errors in one sentence, `numbers` looks at the shape
   first. The check computes what is right, at sizes that all differ, and names the fitting
   mistake; where a learner writes a module, `blame(module_or_factory)` lets `check_attention`
   name it.

2. In the notebook, five cells: a heading `### Try: two heads (medium, 5 minutes)` and the task;
   the stub, tagged `exercise`; a sentence; `check_two_heads(two_heads)`; and the solution, which
   is what the stub's cell should become, as a ```python block inside
   `<details><summary>Solution</summary>` and `</details>`.
   A stub is a function or class whose body is `pass`, or a value, list or dictionary of None.
   Easy, medium or hard. The notebook's last code cell is `progress()`.

   What later notebooks use is pasted there by the learner: `carried(name, answer)` gives it back,
   or the course's own version where none is pasted.

3. In `tests/wrong_answers.py`: three or more wrong answers, with words of their messages.
   `tests/test_exercises.py` finds the rest, and says where names and titles do not agree.
"""

from .carried import carried
from .causal_mask import (
    check_causal_head,
    check_keep_mask,
    check_sees_future,
    check_silent_fault,
)
from .exercise import EXERCISES, Verdict, Wrong, blame, exercise, numbers, progress, run, same
from .faults import find_the_fault
from .heads_in_a_loop import check_added_by, check_all_heads, check_predicted_r2
from .qkv_by_hand import check_attend_all, check_dog_diagonal, check_query_weights
from .shape_tracing import Suspect, check_can_join, check_missing_row, check_seven_shapes
from .weight_split import check_heads_fault, check_join_weights, check_my_attention
from .word_order import check_moves_along, check_places

__all__ = [
    "EXERCISES",
    "Suspect",
    "Verdict",
    "Wrong",
    "blame",
    "carried",
    "check_added_by",
    "check_all_heads",
    "check_attend_all",
    "check_can_join",
    "check_causal_head",
    "check_dog_diagonal",
    "check_heads_fault",
    "check_join_weights",
    "check_keep_mask",
    "check_missing_row",
    "check_moves_along",
    "check_my_attention",
    "check_places",
    "check_predicted_r2",
    "check_query_weights",
    "check_sees_future",
    "check_seven_shapes",
    "check_silent_fault",
    "exercise",
    "find_the_fault",
    "numbers",
    "progress",
    "run",
    "same",
]
