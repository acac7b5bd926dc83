"""How a person is told of an error."""

import pytest

from rlhfless.cli.errors import print_error
from rlhfless.errors import UserError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("there is no file"), "error: there is no file\n"),
        (
            UserError("there is no file", param="dataset.path", hint="upload it"),
            "error: there is no file\nat:    dataset.path\nhint:  upload it\n",
        ),
        (
            UserError("seed: a number\nname: a text", param="seed"),
            "error: seed: a number\n       name: a text\n",
        ),
    ],
)
def test_what_is_wrong_where_and_what_to_do(
    error: UserError, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_error(error)
    assert capsys.readouterr().err == told
