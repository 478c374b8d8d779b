import orjson
import pytest

from hermes_rl.sandbox import Sandbox
from hermes_rl.tools import NATIVE_TOOLS, ToolDispatcher, ToolSettings


async def test_a_result_has_output_exit_code_and_error(call) -> None:
    result = await call("terminal", command="echo out; echo err >&2; echo out2; exit 3")
    assert result == {"output": "out\nerr\nout2", "exit_code": 3, "error": None}


async def test_a_failing_command_is_no_failed_call(tools: ToolDispatcher) -> None:
    result = await tools.call("terminal", '{"command": "false"}', "1")
    assert result.error is None


async def test_harmless_exit_codes_are_explained(call) -> None:
    result = await call("terminal", command="grep nothing-like-this /etc/passwd")
    assert result["exit_code_meaning"] == "No matches found (not an error)"


async def test_a_signal_gives_128_and_its_number(call) -> None:
    assert (await call("terminal", command="kill -9 $$"))["exit_code"] == 137
    assert (await call("terminal", command="echo alive"))["output"] == "alive"


async def test_a_timeout_without_output_leaves_the_note_alone(call) -> None:
    result = await call("terminal", command="sleep 30", timeout=1)
    assert result["output"] == "[Command timed out after 1s]"
    assert result["exit_code"] == 124


async def test_the_default_deadline_is_the_setting(sandbox: Sandbox, call_with) -> None:
    settings = ToolSettings(command_timeout_s=0.5)
    call = call_with(ToolDispatcher(sandbox, list(NATIVE_TOOLS), settings=settings))
    assert (await call("terminal", command="sleep 30"))["exit_code"] == 124
    assert (await call("terminal", command="sleep 30", timeout=0))["exit_code"] == 124


async def test_too_long_a_timeout_is_refused(call) -> None:
    result = await call("terminal", command="true", timeout=601)
    assert list(result) == ["error"]
    assert "600 s at most" in result["error"]


async def test_standard_input_is_empty(call) -> None:
    assert (await call("terminal", command="cat; read x; echo [$x]"))["output"] == "[]"


async def test_a_missing_workdir_is_exit_code_126(call) -> None:
    result = await call("terminal", command="echo ran", workdir="/no/such/dir")
    assert result["exit_code"] == 126
    assert "/no/such/dir" in result["output"] + str(result["error"])
    assert "ran" not in result["output"]


async def test_workdir_may_be_relative_or_at_home_and_hold_any_character(call) -> None:
    await call("terminal", command="mkdir 'a $b;c'; mkdir ~/h; cd 'a $b;c'; mkdir inner")
    assert (await call("terminal", command="pwd", workdir="inner"))["output"].endswith("c/inner")
    assert (await call("terminal", command="pwd", workdir="~/h"))["output"].endswith("/h")


async def test_an_empty_command_is_an_error(call) -> None:
    assert (await call("terminal", command="  "))["error"] == "The command is empty."


async def test_a_deleted_working_directory_does_not_brick_the_session(call) -> None:
    await call("terminal", command="mkdir gone; cd gone; rmdir ../gone")
    assert (await call("terminal", command="echo on"))["output"].endswith("on")
    assert (await call("terminal", command="echo on; cd /"))["exit_code"] == 0


async def test_pty_in_the_foreground_is_said_to_have_no_effect(call) -> None:
    result = await call("terminal", command="echo x", pty=True)
    assert result["output"] == "x"
    assert "background=true only" in result["pty_note"]


async def test_commands_of_200_kilobytes_run(call) -> None:
    text = "x" * 200_000
    assert (await call("terminal", command=f"printf %s {text} | wc -c"))["output"] == "200000"


async def test_undecodable_and_control_output_stays_json(tools: ToolDispatcher) -> None:
    arguments = orjson.dumps({"command": "printf 'a\\377\\000\\033[31mb\\033[0m'"}).decode()
    result = await tools.call("terminal", arguments, "1")
    assert orjson.loads(result.content)["output"] == "a\ufffd\0b"


@pytest.mark.parametrize("sandbox_has_pty", [False])
async def test_background_without_pseudo_terminals_says_so(call, sandbox, sandbox_has_pty) -> None:
    result = await call("terminal", command="true", background=True, pty=True)
    if "pty" in sandbox.capabilities:
        assert "pty_note" not in result
    else:
        assert "no pseudo-terminals" in result["pty_note"]
    assert result["exit_code"] == 0
