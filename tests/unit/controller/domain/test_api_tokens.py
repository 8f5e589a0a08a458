"""What an API token looks like."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.api_tokens import SECRET_BYTES, TOKEN_CHARS, digest_of, is_token, token_of


@given(st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES), st.data())
def test_a_token_is_found_by_its_pattern_and_a_misspelt_one_refused(
    secret: bytes, data: st.DataObject
) -> None:
    token = token_of(secret)
    assert re.fullmatch(r"eft_[A-Za-z0-9_-]{49}", token)
    assert is_token(token)
    assert len(digest_of(token)) == 64
    place = data.draw(st.integers(0, TOKEN_CHARS - 1))
    other = data.draw(st.sampled_from("abcXYZ019_-").filter(lambda char: char != token[place]))
    assert not is_token(token[:place] + other + token[place + 1 :])


def test_the_form_of_tokens_stays() -> None:
    """Scanners know it, and tokens in use have it."""
    token = token_of(bytes(range(32)))
    assert token == "eft_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8ftS1eQ"
    assert not is_token("")
    assert not is_token(token + "A")
    assert not is_token("ä" * TOKEN_CHARS)
