"""Write docs/codes.md, the page of the check's codes, from the registry of rules (`make docs`)."""

import re
from pathlib import Path

from attention_check.rules import RULES

PAGE = Path(__file__).parents[1] / "docs" / "codes.md"
HEAD = """# The codes of the check

What `check_attention` and `attention-check` may find, in the order in which they are judged:
causes stand before what they cause. Written from the rules by `make docs`."""


def page():
    """Return the page: for each rule its code, one sentence, and a few lines with the fault."""
    parts = [HEAD]
    for rule in RULES:
        example = re.sub(r" {2,}#", "  #", rule.example)  # as a formatter writes it
        after = sorted(rule.unless)
        hidden = f"\n\nNot judged beside {', '.join(after)}." if after else ""
        parts.append(f"## {rule.code}\n\n{rule.sentence}\n\n```python\n{example}\n```{hidden}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{len(RULES)} codes are in {PAGE.name}.")
