from pathlib import Path

import pytest

from rlhfless.client.connection import ADMIN_KEY_FILE, DEFAULT_URL, Connection, connection
from rlhfless.errors import UserError


def test_arguments_go_before_the_environment() -> None:
    environ = {"RLHFLESS_URL": "https://there", "RLHFLESS_API_KEY": "theirs"}
    assert connection(environ=environ) == Connection("https://there", "theirs", False)
    assert connection("https://here", " mine\n", environ) == Connection(
        "https://here", "mine", False
    )


def test_the_key_left_here_is_for_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert connection(environ={}) == Connection(DEFAULT_URL, None, True)
    (tmp_path / ADMIN_KEY_FILE).parent.mkdir()
    (tmp_path / ADMIN_KEY_FILE).write_text("rlk_left\n")
    for url in (None, "http://localhost:9", "http://[::1]:9", "http://127.8.0.1"):
        assert connection(url, environ={}).key == "rlk_left"
    assert connection(environ={"RLHFLESS_API_KEY": "rlk_set"}).key == "rlk_set"
    for url in ("https://there", "http://10.0.0.1", "http://127.0.0.1.there"):
        assert connection(url, environ={}).key is None


@pytest.mark.parametrize("url", ["there:80", "ftp://there", "http://", "http://x:port", "/v1"])
def test_what_is_no_url_is_told(url: str) -> None:
    with pytest.raises(UserError, match="no URL"):
        connection(url, environ={})
