"""`attention-check path/to/file.py:NAME`, or `python -m attention_check path/to/file.py:NAME`."""

import argparse
import importlib.util
import pathlib
import sys

from shape_tracing.terminal import printable

from .check import check_attention

_FACTORY = """def make(d_model, num_heads):
    # every size from d_model and num_heads
    return YourAttention(...)"""


def main(arguments=None):
    """Check the module that a file names; return 0, 1 on a finding, 2 if it could not check."""
    options = _options(arguments)
    try:
        thing = load(options.target)
        causal = {"yes": True, "no": False, None: None}[options.causal]
        report = check_attention(thing, options.num_heads, causal, options.d_model)
    except Exception as error:
        print(printable(f"could not check: {error}"), file=sys.stderr)
        return 2
    print(report)
    partial = options.strict and not report.covered.whole
    return 1 if report.findings else 2 if partial or not report.judged else 0


def _options(arguments):
    parser = argparse.ArgumentParser(
        prog="attention-check",
        description="Say what is wrong with an attention module, and why.",
        epilog=f"NAME is a module, its class, or a factory such as:\n\n{_FACTORY}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", help="path/to/file.py:NAME")
    parser.add_argument("--d-model", type=int, help="width of a token, such as 24")
    parser.add_argument("--num-heads", type=int, help="number of heads, such as 4")
    parser.add_argument("--strict", action="store_true", help="status 2 if not all was judged")
    parser.add_argument("--causal", choices=("yes", "no"), help="what is meant; found out if left")
    return parser.parse_args(arguments)


def load(target):
    """Return what NAME stands for in path/to/file.py:NAME. Raises ValueError in plain words."""
    path, _, name = target.rpartition(":")
    file = pathlib.Path(path).resolve()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if not name or not file.is_file() or spec is None:
        raise ValueError(
            f"{target} should be path/to/file.py:NAME, such as heads.py:MyAttention, of a file "
            f"that is there."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent))
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        named = [n for n in vars(module) if not n.startswith("_") and callable(vars(module)[n])]
        raise ValueError(f"{path} has no {name}. It has {', '.join(named) or 'nothing to call'}.")
    return getattr(module, name)


if __name__ == "__main__":
    sys.exit(main())
