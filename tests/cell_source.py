"""What a cell's source binds, reads and changes, and which decimals a text holds."""

import ast
import re

CHANGES = {"eval", "train", "load_state_dict", "append", "update", "backward"}


def decimals(text):
    """Return the decimal numbers of a text, without signs, outside the targets of links."""
    text = re.sub(r"\]\([^)]+\)", "]", text)
    return set(re.findall(r"(?<![\d.])\d+\.\d+(?!\.?\d)", text))


class Names(ast.NodeVisitor):
    """The names that a cell binds, binds as loop variables, and reads, at its own level."""

    def __init__(self, source):
        self.bound, self.loops, self.read = set(), set(), set()
        self.visit(ast.parse(source))
        self.bound = {name for name in self.bound if not name.startswith("_")}
        self.loops = {name for name in self.loops if not name.startswith("_")}

    def visit_Name(self, node):
        (self.read if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)

    def visit_For(self, node):
        self.loops |= _names(node.target)
        for child in (node.iter, *node.body, *node.orelse):
            self.visit(child)

    def visit_Import(self, node):
        self.bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node):
        self.bound.add(node.name)
        self._read_outside(node)

    visit_ClassDef = visit_FunctionDef

    def _read_outside(self, node):
        self.read |= _names(node) - _stored(node)

    visit_Lambda = visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = (
        _read_outside
    )

    def visit_ExceptHandler(self, node):
        self.loops |= {node.name} if node.name else set()
        self.generic_visit(node)


def foreign_changes(source):
    """Yield the expressions that change an object which the cell did not make itself."""
    tree = ast.parse(source)
    own = _stored(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            if _root(node) not in own:
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, owner = node.func.attr, _root(node.func.value)
            changes = re.search(r"[^_]_$", method) or method in CHANGES
            globally = owner == "torch" and method.startswith("set_")
            if globally or (changes and owner is not None and owner not in own):
                yield ast.unparse(node)


def _names(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _stored(node):
    """Return the names that are bound anywhere inside, arguments included."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _is_stored(n)}
    return names | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def _is_stored(node):
    return isinstance(node.ctx, ast.Store)


def _root(node):
    """Return the name at the left end of a.b[c].d, or None where there is no name."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
