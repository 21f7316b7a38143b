"""Text in the signs that a terminal has: a Windows code page or a plain C locale lacks some."""

import codecs
import sys

WORDS = {
    "√": "sqrt ", "×": "x", "µ": "u", "·": ".", "²": "^2", "ᵀ": "^T", "∞": "inf",
    "−": "-", "…": "...", "→": "->", "▶": ">", "✗": "x",
}  # fmt: skip


def printable(text):
    """Return text as `sys.stdout` can write it: a sign that it lacks becomes a word or a code."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "shape-tracing-words").decode(encoding)


def _in_words(error):
    """An error handler of encode: the word for the first sign that the encoding lacks."""
    sign = error.object[error.start]
    return WORDS.get(sign) or sign.encode("ascii", "backslashreplace").decode(), error.start + 1


codecs.register_error("shape-tracing-words", _in_words)
