"""Prompts to tokens and responses to text, on the tiny character tokenizer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.dataset import Row
from controller.tokenizer import PromptTokenizer
from rlhfless.errors import UserError
from rlhfless.spec import ModelSpec

EOS = 2


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> PromptTokenizer:
    return PromptTokenizer.load(ModelSpec(path=str(tiny_model_dir)))


def rows_of(*prompts: Any) -> list[Row]:
    return [Row(prompt, {}, f"a.jsonl line {i}") for i, prompt in enumerate(prompts, 1)]


def encode(tokenizer: PromptTokenizer, *prompts: Any, **changes: Any) -> dict[int, list[int]]:
    options = {"max_tokens": 16, "overlong": "error", "param": "dataset"} | changes
    return dict(tokenizer.encode(rows_of(*prompts), **options))


def test_plain_and_chat_prompts_in_one_dataset(tokenizer: PromptTokenizer) -> None:
    chat = [{"role": "user", "content": "a1"}]
    encoded = encode(tokenizer, "a1b7?", chat, "c0?")
    texts = [tokenizer.decode([encoded[i]])[0] for i in range(3)]
    assert texts == ["a1b7?", "<user>a1\n<assistant>", "c0?"]
    assert len(encoded[0]) == 5


def test_decode_leaves_out_special_tokens_and_the_stop_token(tokenizer: PromptTokenizer) -> None:
    a, semicolon = tokenizer.tokens_of("a")[0], tokenizer.tokens_of(";")[0]
    responses = [[a, semicolon, EOS], [a, semicolon], [semicolon, a], [], [0, a, 1]]
    assert tokenizer.decode(responses) == ["a;", "a;", ";a", "", "a"]
    assert tokenizer.decode(responses, stop=[EOS, semicolon]) == ["a;", "a", ";a", "", "a"]
    assert tokenizer.decode([]) == []


def test_stop_tokens_are_the_models_and_those_asked_for(tokenizer: PromptTokenizer) -> None:
    assert tokenizer.stop_token_ids([]) == [EOS]
    assert tokenizer.stop_token_ids([";", ";"]) == [EOS, *tokenizer.tokens_of(";")]
    with pytest.raises(UserError, match="'ab' is 2 tokens") as caught:
        tokenizer.stop_token_ids([";", "ab"])
    assert caught.value.param == "rollout.stop.1"


def test_stop_tokens_of_the_generation_config_count_too(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert PromptTokenizer.load(ModelSpec(path=str(folder))).stop_token_ids([]) == [2, 7]


def test_a_model_without_an_end_needs_a_stop(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    for name, key in (
        ("tokenizer_config.json", "eos_token"),
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
    ):
        config = json.loads((folder / name).read_text())
        del config[key]
        (folder / name).write_text(json.dumps(config))
    tokenizer = PromptTokenizer.load(ModelSpec(path=str(folder)))
    with pytest.raises(UserError, match="no end-of-sequence token") as caught:
        tokenizer.stop_token_ids([])
    assert caught.value.param == "rollout.stop"
    assert tokenizer.stop_token_ids(["?"]) == tokenizer.tokens_of("?")


def test_an_overlong_prompt_is_an_error_that_names_row_and_lengths(
    tokenizer: PromptTokenizer,
) -> None:
    assert tokenizer.context == 256
    with pytest.raises(UserError) as caught:
        encode(tokenizer, "a", "b" * 241)
    assert "a.jsonl line 2: a prompt of 241 tokens and responses of up to 16" in caught.value.detail
    assert "context of 256" in caught.value.detail
    assert caught.value.param == "dataset.overlong"
    assert len(encode(tokenizer, "b" * 240)[0]) == 240


def test_overlong_prompts_may_be_dropped_or_cut_at_the_left(tokenizer: PromptTokenizer) -> None:
    long = "a" * 100 + "b" * 200
    assert list(encode(tokenizer, "a", long, "c", overlong="drop")) == [0, 2]
    cut = encode(tokenizer, long, overlong="truncate_left")[0]
    assert tokenizer.decode([cut]) == ["a" * 40 + "b" * 200]
    with pytest.raises(UserError, match="every prompt is too long"):
        encode(tokenizer, long, overlong="drop")


def test_responses_that_fill_the_context_leave_no_room(tokenizer: PromptTokenizer) -> None:
    with pytest.raises(UserError) as caught:
        encode(tokenizer, "a", max_tokens=256)
    assert caught.value.param == "rollout.max_tokens"


def test_chat_prompts_need_a_template_that_takes_them(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    chat = [{"role": "user", "content": "a"}]
    bare = PromptTokenizer.load(ModelSpec(path=str(folder)))
    with pytest.raises(UserError, match="no chat template") as caught:
        encode(bare, chat)
    assert caught.value.param == "model.chat_template"
    own = ModelSpec(path=str(folder), chat_template="{{ messages[0]['content'] }}!")
    tokenizer = PromptTokenizer.load(own)
    assert tokenizer.decode([encode(tokenizer, chat)[0]]) == ["a!"]
    refusing = ModelSpec(path=str(folder), chat_template="{{ raise_exception('no system role') }}")
    with pytest.raises(UserError, match=r"line 1: the chat template refuses .* no system role"):
        encode(PromptTokenizer.load(refusing), chat)


def test_a_missing_model_names_the_nearest_folder(tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()
    with pytest.raises(UserError) as caught:
        PromptTokenizer.load(ModelSpec(path=str(tmp_path / "smolm2")))
    assert caught.value.param == "model.path"
    assert f"did you mean {tmp_path / 'smollm2'}?" in caught.value.detail
    with pytest.raises(UserError, match="cannot load a tokenizer"):
        PromptTokenizer.load(ModelSpec(path=str(tmp_path / "smollm2")))


def test_a_config_that_is_no_json_is_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model_dir / name, tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": ')
    with pytest.raises(UserError, match=r"config\.json is not JSON: ") as caught:
        PromptTokenizer.load(ModelSpec(path=str(tmp_path)))
    assert caught.value.param == "model.path"


def test_a_generic_tokenizer_is_loaded_without_torch(tiny_model_dir: Path) -> None:
    program = (
        "import sys\n"
        "from controller.tokenizer import PromptTokenizer\n"
        "from rlhfless.spec import ModelSpec\n"
        "tokenizer = PromptTokenizer.load(ModelSpec(path=sys.argv[1]))\n"
        "tokenizer.decode([tokenizer.tokens_of('a1')])\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tiny_model_dir)], check=True)


def test_jobs_that_start_together_load_their_tokenizers(tiny_model_dir: Path) -> None:
    """In a process where transformers is not imported yet, as in a service's first moments."""
    code = """
import sys, threading, time
from controller.tokenizer import PromptTokenizer
from rlhfless.spec import ModelSpec

def load(number):
    time.sleep(0.1 * number)  # into each other's imports
    loaded.append(PromptTokenizer.load(ModelSpec(path=sys.argv[1])))

loaded = []
threads = [threading.Thread(target=load, args=(number,)) for number in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(loaded))
"""
    command = [sys.executable, "-c", code, str(tiny_model_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["12"], done.stderr
