"""What is left of others' text, and which of their files are read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import foreign
from tests.one_test import one_test
from tests.properties import bounded


@one_test(
    ("text", "kept"),
    [
        ("plain, über, 张\n\tline", "plain, über, 张\n\tline"),
        ("a\r\nb", "a\r\nb"),
        ("a\rb", "a\ufffdb"),
        ("\x1b[31mred\x1b[0m", "\ufffd[31mred\ufffd[0m"),
        ("\x1b]0;title\x07", "\ufffd]0;title\ufffd"),
        ("\x9b2J\x7f\x00\x08", "\ufffd2J\ufffd\ufffd\ufffd"),
        ("\u202egpj.exe\u2066", "\ufffdgpj.exe\ufffd"),
        ("\udc1b", "\ufffd"),
    ],
)
def test_what_a_terminal_would_obey_is_replaced(text: str, kept: str) -> None:
    assert foreign.printable(text) == kept


@bounded
@given(st.text(st.characters()))
def test_text_that_is_printable_can_be_written_and_obeyed_by_nothing(text: str) -> None:
    found = foreign.printable(text)
    found.encode()
    assert len(found) == len(text)
    assert all(sign.isprintable() or sign == "\ufffd" or not sign < "\xa0" or sign in "\t\n\r" for sign in found)
    assert foreign.printable(found) == found


def test_a_name_has_one_line_and_an_end() -> None:
    assert foreign.name(" a\n\tb\x1b ") == "a b\ufffd"
    assert len(foreign.name("x" * 20_000)) == foreign.MOST_CHARACTERS


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12345678")
    assert foreign.read(file, 8) == b"12345678"
    with pytest.raises(OSError, match="more than 0 MiB, which is the limit"):
        foreign.read(file, 7)
    with pytest.raises(FileNotFoundError):
        foreign.read(tmp_path / "b", 8)
    with pytest.raises(IsADirectoryError):
        foreign.read(tmp_path, 8)


def test_what_has_no_end_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    os.mkfifo("pipe")
    Path("zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for name in ("pipe", "zero", "socket"):
            with pytest.raises(OSError, match="a pipe, a socket or a device"):
                foreign.read(Path(name), 8)
