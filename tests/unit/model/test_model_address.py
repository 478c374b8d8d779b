"""Where a server is and which key is sent to it."""

import pytest

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ConfigError
from hermes_rl.model.address import OPENAI_URL, OPENROUTER_URL, resolve_address

BOTH = {"OPENROUTER_API_KEY": "or-key", "OPENAI_API_KEY": "oa-key"}


def resolve(environ: dict[str, str], **config: str) -> tuple[str, str | None]:
    address = resolve_address(ServerConfig(**config), environ)  # type: ignore[arg-type]
    return address.base_url, address.api_key.get_secret_value() if address.api_key else None


@pytest.mark.parametrize(
    ("environ", "config", "expected"),
    [
        (BOTH, {}, (OPENROUTER_URL, "or-key")),
        ({"OPENAI_API_KEY": "oa-key"}, {}, (OPENAI_URL, "oa-key")),
        ({}, {"api_key": "mine"}, (OPENAI_URL, "mine")),
        (BOTH, {"base_url": OPENAI_URL}, (OPENAI_URL, "oa-key")),
        (BOTH, {"base_url": OPENROUTER_URL, "api_key": "mine"}, (OPENROUTER_URL, "mine")),
        (BOTH, {"base_url": "http://gpu:8000/v1"}, ("http://gpu:8000/v1", "oa-key")),
        ({}, {"base_url": "http://gpu:8000/v1"}, ("http://gpu:8000/v1", None)),
        (
            {"OPENROUTER_API_KEY": "or-key"},
            {"base_url": "http://gpu:8000/v1"},
            ("http://gpu:8000/v1", None),
        ),
    ],
)
def test_defaults_come_from_the_environment(
    environ: dict[str, str], config: dict[str, str], expected: tuple[str, str | None]
) -> None:
    assert resolve(environ, **config) == expected


def test_without_any_server_the_error_names_the_ways_to_name_one() -> None:
    with pytest.raises(ConfigError, match=r"base_url.*OPENROUTER_API_KEY.*server_type local"):
        resolve({})


@pytest.mark.parametrize(
    ("url", "variable"), [(OPENROUTER_URL, "OPENROUTER_API_KEY"), (OPENAI_URL, "OPENAI_API_KEY")]
)
def test_a_host_that_needs_a_key_names_its_variable(url: str, variable: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        resolve({}, base_url=url)


@pytest.mark.parametrize("url", ["localhost:8000", "gpu/v1", "ftp://gpu/v1", "http://", ""])
def test_an_unusable_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:8000/v1"):
        resolve({}, base_url=url)


@pytest.mark.parametrize("url", ["http://me:secret@gpu/v1", "http://gpu/v1?key=secret"])
def test_a_secret_in_the_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="put the key in api_key") as caught:
        resolve({}, base_url=url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://[::1/v1", "http://gpu:99999/v1", "http://g:x", "http://g:0"]
)
def test_an_address_that_is_none_is_refused_by_the_setting(url: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        ServerConfig(base_url=url)


def test_blanks_around_a_key_are_no_part_of_it() -> None:
    assert resolve({"OPENAI_API_KEY": " oa-key\n"}, base_url="http://gpu/v1")[1] == "oa-key"
    assert resolve({"OPENAI_API_KEY": " "}, base_url="http://gpu/v1")[1] is None


@pytest.mark.parametrize("key", ["a\nb", "cl\u00e9", "a b"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds characters") as caught:
        resolve({"OPENAI_API_KEY": key}, base_url="http://gpu/v1")
    assert key not in str(caught.value)
    with pytest.raises(ConfigError, match=r"openai\.api_key holds characters"):
        resolve({}, base_url="http://gpu/v1", api_key=key)
