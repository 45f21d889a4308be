"""What is left of a source without its comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import harness
from harness.comments import without_comments
from tests.one_test import one_test
from tests.rare import rare

ROOT = Path(harness.__file__).parents[1]


@one_test(
    ("name", "text", "left"),
    [
        ("a.py", "x = 1  # one\n\n# two\ny = 2\n", "x = 1\ny = 2"),
        ("a.py", 'x = "# no comment"  # one\n', 'x = "# no comment"'),
        ("a.py", "x = 'it\\'s'  # one's\n", "x = 'it\\'s'"),
        ("a.py", 'x = """\n# no comment "\n"""\n', 'x = """\n# no comment "\n"""'),
        ("a.py", '"""Text: é."""\nx = 1\n"""What x is,\nin two lines."""\n', "x = 1"),
        ("a.py", 'def f():\n    """Does."""; x = "é"; """no"""; return x\n', 'def f():\n    ; x = "é"; ; return x'),
        ("a.py", "x = (  # no Python\n", "x = (  # no Python\n"),
        ("a.cu", "int x;  // one\n/* two\nthree */ int y;\n", "int x;\n  int y;"),
        ("a.cu", 'auto x = "// no comment";\n', 'auto x = "// no comment";'),
        ("a.cu", "char x = '\"'; // one\nchar y = '\"';", "char x = '\"';\nchar y = '\"';"),
        ("a.cuh", 'auto x = R"(a " // no comment\n)"; // one', 'auto x = R"(a " // no comment\n)";'),
        ("a.cu", "int x = 1'000'000;  // one\n", "int x = 1'000'000;"),
        ("a.cu", "int x = 1'000; int y = 2;  // one\n", "int x = 1'000; int y = 2;"),
        ("a.cu", "int/**/x;\n", "int x;"),
    ],
)
def test_what_is_left_is_what_the_computer_reads(name: str, text: str, left: str) -> None:
    assert without_comments(name, text.encode()).decode() == left


@pytest.mark.parametrize("every", [25, rare(1)])
def test_python_without_comments_is_the_same_program(every: int) -> None:
    """By Python's own parser and tokens, for modules that make numbers."""
    for path in sorted((ROOT / "harness" / "collection").rglob("*.py"))[::every]:
        left = without_comments(path.name, path.read_bytes()).decode()
        # Some classes and functions had nothing but a docstring.
        left = re.sub(r"^( *)((?:class|def) .*:)(?=\n(?! *\n)(?!\1 )|\Z)", r"\1\2 pass", left, flags=re.MULTILINE)
        assert program(left) == program(path.read_text("utf-8")), path
        tokens = tokenize.generate_tokens(io.StringIO(left).readline)
        assert not [token for token in tokens if token.type == tokenize.COMMENT], path


def test_kernels_without_comments_have_no_comment() -> None:
    for path in (ROOT / "kernels").rglob("*.cu*"):
        left = without_comments(path.name, path.read_bytes())
        assert left, path
        assert b"//" not in left, path
        assert b"/*" not in left, path


class WithoutStrings(ast.NodeTransformer):
    """Takes statements out that are nothing but a string, or `pass`."""

    def visit_Pass(self, _node: ast.Pass) -> None:
        """A `pass` is gone: it stands where a docstring was all."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """A docstring is gone; another expression stays."""
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node


def program(text: str) -> str:
    return ast.dump(WithoutStrings().visit(ast.parse(text)))
