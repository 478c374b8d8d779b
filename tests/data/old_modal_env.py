"""An environment as it was written for the old framework. It must run as it is.

Its boxes have the shape of SWE-ReX on Modal: blocking methods, each of which calls
``asyncio.run`` on an asynchronous deployment. It gives hermes-agent a tool of its own on them.
"""

import asyncio
import json
from dataclasses import dataclass

from environments.patches import apply_patches

apply_patches()

from environments.agent_loop import AgentResult  # noqa: E402
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig  # noqa: E402
from environments.tool_context import ToolContext  # noqa: E402
from tools.registry import registry  # noqa: E402


@dataclass
class Command:
    command: str
    timeout: float = 60


class Runtime:
    async def execute(self, command: Command) -> str:
        process = await asyncio.create_subprocess_shell(
            command.command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await asyncio.wait_for(process.communicate(), command.timeout)
        return output.decode()


class ModalDeployment:
    runtime = None

    async def start(self) -> None:
        await asyncio.sleep(0.01)
        self.runtime = Runtime()

    async def stop(self) -> None:
        await asyncio.sleep(0.01)
        self.runtime = None


class SwerexModalEnvironment:
    def __init__(self):
        self.deployment = ModalDeployment()
        asyncio.run(self.deployment.start())

    def execute(self, command: str) -> dict:
        return {"output": asyncio.run(self.deployment.runtime.execute(Command(command)))}

    def stop(self) -> None:
        asyncio.run(asyncio.wait_for(self.deployment.stop(), timeout=10))


def modal_exec(args, task_id=None, **kwargs):
    box = SwerexModalEnvironment()
    try:
        return json.dumps(box.execute(args["command"]))
    finally:
        box.stop()


registry.register(
    name="modal_exec",
    toolset="old_modal",
    schema={
        "name": "modal_exec",
        "description": "Run a command on Modal.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
    handler=modal_exec,
)


class OldModalEnv(HermesAgentBaseEnv):
    name = "old-modal"
    env_config_cls = HermesAgentEnvConfig

    @classmethod
    def config_init(cls):
        config = HermesAgentEnvConfig(
            enabled_toolsets=["terminal", "old_modal"], max_agent_turns=5, group_size=2
        )
        return config, []

    async def setup(self):
        self.number = 0
        self.box = SwerexModalEnvironment()
        self.greeting = self.box.execute("echo well met")["output"].strip()

    async def get_next_item(self):
        self.number += 1
        return {"id": f"item-{self.number}", "prompt": "Use modal_exec to say something."}

    def format_prompt(self, item):
        return f"{self.greeting}. {item['prompt']}"

    async def compute_reward(self, item: dict, result: AgentResult, ctx: ToolContext) -> float:
        said = [m["content"] for m in result.messages if m["role"] == "tool"]
        here = ctx.terminal("echo from the sandbox")
        there = self.box.execute("echo from the box")
        assert here["exit_code"] == 0
        good = "from the agent" in said[0] and "sandbox" in here["output"]
        return 1.0 if good and "box" in there["output"] else 0.0

    async def evaluate(self, *args, **kwargs):
        pass
