import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.sandbox import ExecResult
from hermes_rl.tools.exit_codes import exit_code_meaning
from hermes_rl.tools.output import clean_text, cut_middle, decode_tail, encode_json, shown_output


def kept(head: bytes, tail: bytes = b"", total: int | None = None) -> ExecResult:
    data = head + tail
    total = len(data) if total is None else total
    return ExecResult(exit_code=0, stdout=data, stdout_total=total, stdout_head=len(head))


def test_short_output_is_unchanged_but_stripped() -> None:
    assert shown_output(kept(b"\n a b \n\n"), 100) == "a b"


def test_long_output_keeps_40_percent_of_the_start_and_60_of_the_end() -> None:
    text = shown_output(kept(b"h" * 60 + b"t" * 60), 100)
    marker = "\n\n... [OUTPUT TRUNCATED - 20 chars omitted out of 120 total] ...\n\n"
    assert text == "h" * 40 + marker + "t" * 60


def test_bytes_left_out_in_the_sandbox_are_counted() -> None:
    text = shown_output(kept(b"h" * 100, b"t" * 150, total=1_000_000), 100)
    assert "[OUTPUT TRUNCATED - 999,900 chars omitted out of 1,000,000 total]" in text
    assert text.startswith("h" * 40 + "\n")
    assert text.endswith("\n" + "t" * 60)


def test_characters_cut_in_half_by_the_sandbox_are_left_out() -> None:
    euro = "€".encode()
    text = shown_output(kept(b"a" * 50 + euro[:1], euro[1:] + b"b" * 70, total=5_000), 100)
    assert "\ufffd" not in text


def test_terminal_codes_are_removed() -> None:
    coloured = (
        "\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\\x1b(By"
    )
    assert clean_text(coloured) == "red xlinky"


def test_undecodable_bytes_become_replacement_characters() -> None:
    assert shown_output(kept(b"a\xffb"), 100) == "a\ufffdb"


def test_a_tail_never_starts_with_half_a_character() -> None:
    assert decode_tail("€".encode() * 100, 3) == "€€€"


def test_half_surrogate_pairs_do_not_break_json() -> None:
    assert orjson.loads(encode_json({"k": ["a\udcffb"]}))["k"][0].startswith("a")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300), st.integers(10, 200))
def test_a_cut_text_keeps_its_ends(text: str, limit: int) -> None:
    cut = cut_middle(text, limit)
    if len(text) <= limit:
        assert cut == text
    else:
        assert cut.startswith(text[: int(limit * 0.4)])
        assert cut.endswith(text[-(limit - int(limit * 0.4)) :])


def test_a_flood_of_escapes_is_cleaned_in_linear_time() -> None:
    for flood in ("\x1b]" * 50_000, "\x1b[" * 50_000, "\x1bP" * 50_000, "\x1b[0;" + "0;" * 50_000):
        clean_text(flood)


def test_exit_codes_are_explained_by_the_last_part_of_a_command() -> None:
    assert exit_code_meaning("cat a | grep x", 1) == "No matches found (not an error)"
    assert exit_code_meaning("cd /x && /usr/bin/diff a b", 1) == "The files differ (not an error)"
    assert exit_code_meaning("A=1 test -e x", 1) == "The condition is false (not an error)"
    assert exit_code_meaning("curl -f http://x", 22) is not None
    assert exit_code_meaning("grep 'a|b;c' f", 1) == "No matches found (not an error)"


def test_other_exit_codes_are_not_explained() -> None:
    assert exit_code_meaning("grep x f", 2) is None
    assert exit_code_meaning("grep x f; false", 1) is None
    assert exit_code_meaning("echo 'a; grep b'", 1) is None
    assert exit_code_meaning("", 1) is None
