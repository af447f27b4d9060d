"""``contextbus validate``: a payload in a file, checked before it is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import EXAMPLES, ROOT
from tests.validation.bodies import RIGHT, anthropic, assistant, openai, says, text, use, user
from typer.testing import CliRunner, Result

from contextbus.cli.commands import app
from contextbus.validation import TARGETS

LOST = anthropic(user(), assistant(use(), text("secret words")), user())


def validate(*arguments: object, code: int = 0, given: str | None = None) -> Result:
    """Run the command here; the exit code must be the expected one."""
    result = CliRunner().invoke(app, ["validate", *map(str, arguments)], input=given, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def write(folder: Path, content: object) -> Path:
    path = folder / "payload.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.rule("P.E.1", "P.A.2")
def test_a_right_payload_passes_with_or_without_its_target_named(target: str, tmp_path: Path) -> None:
    path = write(tmp_path, RIGHT[target])
    for options in (["--target", target], []):
        said = validate(path, *options, "--strict").stdout
        assert f"payload.json for {target}: no errors, no warnings" in said
        assert f"checked: rules of {target}; types of the SDK" in said


def test_findings_are_a_line_each_without_content(tmp_path: Path) -> None:
    said = validate(write(tmp_path, LOST), "--target", "anthropic", code=1).stdout.splitlines()
    assert said[0].startswith("error: anthropic.A6 messages[1].content[0]: This call has no result")
    assert said[1].startswith("warning: anthropic.L3 messages[1].content[1]: ")
    assert said[2].endswith("payload.json for anthropic: 1 error, 1 warning")
    assert len(said) == 4
    assert "secret" not in "".join(said)


def test_both_layers_speak(tmp_path: Path) -> None:
    said: Any = json.loads(validate(write(tmp_path, {**LOST, "ours": 1}), "--json", code=1).stdout)
    assert (said["target"], said["errors"], said["warnings"]) == ("anthropic", 3, 1)
    assert said["layers"] == {"rules": True, "types": True}
    assert [(one["rule"], one["severity"], one["place"]) for one in said["findings"]] == [
        ("anthropic.A19", "error", "ours"),
        ("anthropic.A6", "error", "messages[1].content[0]"),
        ("anthropic.L3", "warning", "messages[1].content[1]"),
        ("types", "error", "ours"),
    ]


def test_without_the_sdk_the_rules_are_checked_and_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(body: object, target: str) -> None:
        """What ``check_types`` answers where the SDK is not installed."""

    monkeypatch.setattr("contextbus.cli.validating.check_types", missing)
    path = write(tmp_path, RIGHT["gemini"])
    assert "no types, as the SDK is missing (pip install google-genai)" in validate(path).stdout
    assert json.loads(validate(path, "--json").stdout)["layers"] == {"rules": True, "types": False}


@pytest.mark.rule("P.E.23")
def test_warnings_count_where_it_is_strict(tmp_path: Path) -> None:
    path = write(tmp_path, openai(says("user"), says("system")))
    assert "openai.L4" in validate(path).stdout
    assert "openai.L4" in validate(path, "--strict", code=1).stdout


def test_the_model_decides_rules_that_depend_on_it(tmp_path: Path) -> None:
    path = write(tmp_path, anthropic(user(), assistant(text("{"))))
    assert "anthropic.A5" in validate(path, "--model", "claude-opus-4-6", code=1).stdout
    validate(path, "--model", "claude-sonnet-4-5")


def test_standard_input(tmp_path: Path) -> None:
    assert "standard input for openai: no errors" in validate("-", given=json.dumps(RIGHT["openai"])).stdout


def test_a_lone_surrogate_is_a_finding(tmp_path: Path) -> None:
    path = write(tmp_path, '{"messages": [{"role": "user", "content": "\\ud83d"}], "system": "s"}')
    assert "error: all.S1 messages[0].content: " in validate(path, code=1).stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no JSON, line 1"),
        ('{"x": NaN}', "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("", "is empty"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "give --target anthropic|openai|openai-responses|gemini"),
        ("[]", "does not show whose API it is for"),
    ],
)
def test_what_cannot_be_used_has_its_own_exit_code(content: str, words: str, tmp_path: Path) -> None:
    assert words in validate(write(tmp_path, content), code=2).stderr


def test_a_missing_file_and_an_unknown_target(tmp_path: Path) -> None:
    assert "there is no file" in validate(tmp_path / "nothing.json", code=2).stderr
    validate(write(tmp_path, {}), "--target", "cohere", code=2)
    assert "error: gemini.G1" in validate(write(tmp_path, {}), "--target", "gemini", code=1).stdout


def test_help_has_an_example_and_the_exit_codes() -> None:
    said = validate("--help").stdout
    for words in ("--target", "--strict", "contextbus validate payload.json", "Exit codes"):
        assert words in said


def test_what_compile_writes_is_right(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'actors'}{os.pathsep}{ROOT / 'protocol'}"}
    command = [sys.executable, "-m", "contextbus"]
    for target in ("anthropic", "openai"):
        path = tmp_path / f"{target}.json"
        words = ["compile", str(EXAMPLES / "conversation.json"), "--target", target, "--output", str(path)]
        subprocess.run([*command, *words, "--data", str(tmp_path / "data")], env=environment, check=True)
        done = subprocess.run(
            [*command, "validate", str(path), "--strict"], env=environment, check=True, text=True, stdout=-1
        )
        assert f"for {target}: no errors, no warnings" in done.stdout
