"""Names of kernels as tables have room for them."""

from __future__ import annotations


def kernel_name(name: str, longest: int) -> str:
    """A kernel's name without namespaces of no name, template arguments, parameters and return type.

    longest: characters that it may have; a longer one is cut.
    """
    plain = name
    for part in ("(anonymous namespace)::", "<unnamed>::", "at::native::"):
        plain = plain.replace(part, "")
    plain = _outside(plain, "<", ">")
    plain = _outside(plain, "(", ")").strip()
    # What is left is a return type, if there is one, and the name.
    plain = plain.rsplit(" ", 1)[-1] if plain else name
    return cut(plain, longest)


def cut(name: str, longest: int) -> str:
    """The name, without its end if it has more characters than so many."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _outside(text: str, opening: str, closing: str) -> str:
    """The text without what stands in brackets of a kind."""
    kept, depth = [], 0
    for letter in text:
        depth += letter == opening
        if not depth:
            kept.append(letter)
        depth -= letter == closing and depth > 0
    return "".join(kept)
