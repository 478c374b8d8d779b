"""The environment class that researchers subclass: one rollout code for evaluation and training.

Subclass it, give items and a reward, and every command works::

    class MyEnv(HermesAgentBaseEnv):
        name = "my-env"

        async def setup(self): ...
        async def get_next_item(self): ...
        def format_prompt(self, item): ...
        async def compute_reward(self, item, result, ctx): ...
        async def evaluate(self, *args, **kwargs): ...

It is an ``atroposlib`` ``BaseEnv`` by type and by the attributes people read, but nothing of
``BaseEnv`` runs: its constructor would load a tokenizer from the hub, synchronously, always; its
scheduler, sender, servers and command line are replaced. ``tests/unit/atropos`` lists every
``BaseEnv`` method as kept, replaced or refused.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

import anyio
import anyio.to_thread

from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.environment_log import EnvironmentLog
from hermes_rl.atropos.evaluating import (
    evaluate_items,
    run_directory,
    write_evaluation,
)
from hermes_rl.atropos.group_members import GroupMembers
from hermes_rl.atropos.group_state import GroupState, current_group, group_scope
from hermes_rl.atropos.groups import merge_items, to_item
from hermes_rl.atropos.item_task import ItemTask
from hermes_rl.atropos.packing import has_own_hook, listed, packed
from hermes_rl.atropos.refused import Refused
from hermes_rl.atropos.scoring import Tokenizer, scored_sequence
from hermes_rl.atropos.servers import ServerAdapter, server_configs_of
from hermes_rl.config import ServerConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import ConfigError
from hermes_rl.evaluation import OnProgress
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.plan import ToolChoice, rollout_seed
from hermes_rl.results import RolloutResult
from hermes_rl.runlog.exports import flat_metrics
from hermes_rl.runlog.scores import Summary
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.tasks import Deadlines, Task
from hermes_rl.types import JSONObject, Message

__all__ = ["HermesAgentBaseEnv"]

_log = logging.getLogger("hermes_rl.atropos")
_loading = LoopLimiter(1)
"""One thread loads tokenizers: it takes seconds and much of it holds the interpreter lock."""


NO_TOKENIZER = "none"
"""As ``tokenizer_name``: as if it had not been set."""
EXACT = ("vllm", "sglang", "llamacpp", "local")
"""Servers that give the tokens themselves."""

_SCHEDULER = "the scheduler in hermes_rl.atropos.scheduler does its work; override hooks instead."
_SENDER = "change groups in postprocess_histories(group); sending is the scheduler's."
_COMMANDS = "run the class with MyEnv.cli() or python -m hermes_rl."


class HermesAgentBaseEnv(EnvironmentLog):
    """Base class of environments whose agents work in sandboxes.

    Attributes:
        config: The environment's configuration.
        server: The model for code of your own: ``chat_completion``, ``managed_server``.
        engine: Runs rollouts; open while a command runs.
        curr_step: The trainer's step.
        max_token_len: The trainer's limit on one sequence in tokens, -1 = none.
    """

    name: str | None = None
    env_config_cls: type[HermesAgentEnvConfig] = HermesAgentEnvConfig
    sync_reward: bool = False
    """``compute_reward`` blocks and calls its context without ``await``."""
    default_servers: ClassVar[Sequence[ServerConfig]] = (ServerConfig(),)

    def __init__(
        self,
        config: HermesAgentEnvConfig,
        server_configs: Any = None,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        """Prepare; nothing is loaded, connected or written.

        Args:
            config: The environment's configuration.
            server_configs: One server or a list, Atropos' class or ours.
            slurm: Accepted for Atropos' signature; must be False.
            testing: Accepted for Atropos' signature; does nothing.
        """
        if slurm:
            raise ConfigError("slurm=True is not supported: give the servers by base_url.")
        self.config = config
        self.server_configs = server_configs_of(server_configs) or tuple(self.default_servers)
        self.server = ServerAdapter(self.server_configs)
        self.engine: RolloutEngine | None = None
        self.max_token_len = -1
        self._begin_log()
        self.backlog: list[Any] = []
        self.resume = False
        self.on_progress: OnProgress | None = None
        self.evaluations: list[Summary] = []
        self.logged_metrics: list[JSONObject] = []
        self._tokenizer: Tokenizer | None = None
        self._group_numbers = itertools.count()
        self.sync_reward = self.sync_reward or config.sync_reward

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, Any]:
        """Return the environment's defaults: its configuration and one or more servers."""
        return cls.env_config_cls(), list(cls.default_servers)

    @classmethod
    def cli(cls, argv: Sequence[str] | None = None) -> None:
        """Run ``serve``, ``process`` or ``evaluate`` from a script; exits the process."""
        from hermes_rl.cli.env_commands import cli

        cli(cls, argv)

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer named by the configuration; loaded at first use.

        Loading blocks; inside async code use :meth:`load_tokenizer`.
        """
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self.config.tokenizer_name)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, value: Any) -> None:
        self._tokenizer = value

    async def load_tokenizer(self) -> Any:
        """Load the tokenizer in a thread; immediate when it is there.

        Raises:
            ConfigError: It cannot be loaded.
        """
        try:
            return await anyio.to_thread.run_sync(lambda: self.tokenizer, limiter=_loading)
        except Exception as error:  # transformers raises what the hub and its readers raise
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"env.tokenizer_name: {self.config.tokenizer_name} cannot be loaded: {reason} Give "
                f"a directory or a repository within reach, or {NO_TOKENIZER!r} for groups without "
                "tokens (servers that are exact need none)."
            ) from error

    async def check_tokenizer(self) -> None:
        """Load the tokenizer that rollouts will need, before the first is paid for.

        Raises:
            ConfigError: It cannot be loaded.
        """
        if self._makes_tokens and any(s.server_type not in EXACT for s in self.server_configs):
            await self.load_tokenizer()

    @property
    def _makes_tokens(self) -> bool:
        """Whether rollouts without exact tokens are tokenised afresh."""
        is_set = "tokenizer_name" in self.config.model_fields_set
        return is_set and self.config.tokenizer_name != NO_TOKENIZER

    add_train_workers = Refused(_SCHEDULER)
    cleanup = Refused(_SCHEDULER)
    derived_batch_size = Refused(_SCHEDULER)
    env_manager = Refused(_SCHEDULER)
    env_step_checks = Refused(_SCHEDULER)
    get_server_info = Refused(_SCHEDULER)
    get_status = Refused(_SCHEDULER)
    handle_env = Refused(_SCHEDULER)
    perf_stats = Refused(_SCHEDULER)
    register_env = Refused(_SCHEDULER)
    _register_env = Refused(_SCHEDULER)
    setup_wandb = Refused(_SCHEDULER)
    handle_send_to_api = Refused(_SENDER)
    _post_json_with_compression = Refused(_SENDER)
    _send_scored_data_to_api = Refused(_SENDER)
    get_cli_evaluate_config_cls = Refused(_COMMANDS)
    get_cli_process_config_cls = Refused(_COMMANDS)
    get_cli_serve_config_cls = Refused(_COMMANDS)
    process_manager = Refused(_COMMANDS)
    _run_evaluate = Refused(_COMMANDS)

    # What a subclass gives.

    async def setup(self) -> None:
        """Load the data set. Called once before anything else."""

    async def get_next_item(self) -> Any:
        """Return the next item; None = nothing now (serve asks again, process ends)."""
        return None

    def format_prompt(self, item: Any) -> str | list[Message]:
        """Return the user message of an item, or its opening messages."""
        raise ConfigError(f"{type(self).__name__} must define format_prompt(self, item).")

    async def compute_reward(self, item: Any, result: Any, ctx: Any) -> Any:
        """Score one rollout in its own sandbox; return a number or a ``Reward``."""
        raise ConfigError(f"{type(self).__name__} must define compute_reward(item, result, ctx).")

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; ``await self.evaluate_items(items)`` does the work."""

    def sandbox_spec(self, item: Any) -> SandboxSpec:
        """Return the sandbox of an item; default: what the configuration says."""
        return SandboxSpec()

    def deadlines(self, item: Any) -> Deadlines:
        """Return the limits of an item; default: what the configuration says."""
        return Deadlines()

    def task_of(self, item: Any) -> Task:
        """Return an item as a task of the engine. A task is returned as it is."""
        if isinstance(item, ItemTask) or (hasattr(item, "reward") and hasattr(item, "prompt")):
            task: Task = item
            return task
        return ItemTask(self, item)

    def _resolve_tools_for_group(self) -> tuple[list[JSONObject], set[str]]:
        """Return the tools of one group; a distribution is drawn anew for each.

        Returns:
            Schemas in OpenAI form, and the tools' names. An override may return other tools; of
            the schemas only the names count.
        """
        group = current_group()
        engine = self._open_engine
        choice = ToolChoice(self.config, engine.availability)
        names = choice.names(f"group-{group.number if group else 0}")
        return [engine.tool_schema(name) for name in names], set(names)

    # Rollouts.

    @asynccontextmanager
    async def opened(self, engine: RolloutEngine | None = None) -> AsyncIterator[RolloutEngine]:
        """Open the engine (or use the given one) while the context is open."""
        async with AsyncExitStack() as stack:
            if engine is None:
                engine = await stack.enter_async_context(
                    RolloutEngine(self.config, self.server_configs)
                )
            self.engine = engine
            self.server.model = engine.model
            try:
                yield engine
            finally:
                self.engine = None
                self.server.model = None

    @property
    def _open_engine(self) -> RolloutEngine:
        if self.engine is None:
            raise ConfigError(
                "No engine is open. Run the environment by a command, or inside "
                "'async with env.opened():'."
            )
        return self.engine

    async def rollout(self, item: Any) -> RolloutResult:
        """Run one rollout of an item, within the current group if there is one."""
        engine = self._open_engine
        task = self.task_of(item)
        group = current_group() or GroupState(next(self._group_numbers))
        attempt = group.next_attempt()
        seed = rollout_seed(self.config.seed, f"{task.id}\0{group.number}", attempt)
        handle = engine.start(task, attempt=attempt, seed=seed, tool_names=group.tool_names)
        try:
            result = await handle.result()
        finally:
            if not handle.is_done:
                await handle.stopped()
        group.tools = group.tools or result.tools
        return result

    async def collect_trajectory(self, item: Any) -> tuple[JSONObject | None, list[Any]]:
        """Run one rollout and return ``(ScoredDataItem, [])``; ``(None, [])`` if it failed."""
        result = await self.rollout(item)
        self.count(f"rollouts_{result.status}")
        if result.status != "finished":
            _log.warning("A rollout of %s is %s: %s", result.task_id, result.status, result.failure)
            return None, []
        is_exact = result.agent is not None and result.agent.managed_state is not None
        sequence = await scored_sequence(
            result,
            policy=self.config.fork_policy,
            tokenizer=await self.load_tokenizer() if self._makes_tokens and not is_exact else None,
        )
        if sequence is None:
            self.count("rollouts_dropped_forked")
            return None, []
        self.count("sampled_tokens_left_out", sequence.left_out)
        self._note_rollout(result, len(sequence.tokens))
        scored = to_item(sequence)
        return await listed(scored) if has_own_hook(self, "collect_trajectory") else scored, []

    async def collect_trajectories(self, item: Any) -> tuple[JSONObject | None, list[Any]]:
        """Run one group; its rollouts run side by side and fail alone.

        Returns:
            The group of exactly ``group_size`` sequences and the backlog.

        Raises:
            GroupFailed: Rollouts failed for good and ``group_failures`` does not mend it.
        """
        state = GroupState(next(self._group_numbers))
        with group_scope(state):
            schemas, names = self._resolve_tools_for_group()
            order = [schema["function"]["name"] for schema in schemas]
            state.tool_names = tuple(name for name in order if name in names)
            members = GroupMembers(self, item)
            items, backlog = await members.collect()
        group = merge_items(items)
        group["generation_params"] = {"temperature": self.config.agent_temperature}
        group["tools"] = list(state.tools)
        return await listed(group) if has_own_hook(self, "collect_trajectories") else group, backlog

    async def postprocess_histories(self, trajectories: Any) -> Any:
        """Change a group before it is written and sent; default: as it is."""
        return trajectories

    async def postprocessed(self, group: Any) -> Any:
        """Return a group as :meth:`postprocess_histories` leaves it, packed."""
        if group is not None and has_own_hook(self, "postprocess_histories"):
            group = await listed(group)
        group = await self.postprocess_histories(group)
        return await packed(group) if group else group

    # Evaluation.

    async def evaluate_items(self, items: Sequence[Any], *, resume: bool | None = None) -> Summary:
        """Evaluate items on the engine, recorded in the run directory; returns the scores.

        Args:
            items: As ``get_next_item`` gives them, or tasks.
            resume: Go on with the run in ``data_dir_to_save_evals``; None = as the command says.
        """
        if self.engine is None:
            raise ConfigError("evaluate_items needs an open engine: run it by a command.")
        summary = await evaluate_items(
            self,
            items,
            engine=self.engine,
            directory=run_directory(self),
            resume=self.resume if resume is None else resume,
            on_progress=self.on_progress,
        )
        self.evaluations.append(summary)
        await self.wandb_log(flat_metrics(summary))
        return summary

    async def rollout_and_score_eval(self, item: Any) -> JSONObject:
        """Run and score one item; returns its facts as a dictionary."""
        result = await self.rollout(item)
        agent = result.agent
        return {
            "task_id": result.task_id,
            "status": result.status,
            "reward": result.score,
            "passed": result.passed,
            "turns": agent.turns_used if agent else 0,
            "finished_naturally": bool(agent and agent.finished_naturally),
            "messages": agent.messages if agent else [],
            "error": result.failure.message if result.failure else None,
            **dict(result.metadata),
        }

    async def evaluate_log(
        self,
        metrics: JSONObject,
        task_name: str | None = None,
        model_name: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: JSONObject | None = None,
        samples: list[JSONObject] | None = None,
        verbose: bool = True,
    ) -> None:
        """Write metrics and samples of an evaluation in Atropos' layout.

        Args:
            metrics: Names and numbers.
            task_name: None = the environment's name with ``_eval``.
            model_name: None = the first server's.
            start_time: Unix time; None = now.
            end_time: Unix time; None = now.
            generation_parameters: Added to what the configuration says.
            samples: One line each in samples.jsonl.
            verbose: Accepted for Atropos' signature; the command prints the metrics.
        """
        task_name = task_name or f"{self.name or type(self).__name__}_eval"
        now = time.time()
        spent_s = (end_time or now) - (start_time or now)
        parameters = {"max_new_tokens": self.config.max_token_length}
        content = {
            "config_general": {
                "model_name": model_name or self.server_configs[0].model_name,
                "total_evaluation_time_seconds": str(spent_s),
                "generation_parameters": parameters | (generation_parameters or {}),
            },
            "results": {f"atropos|{task_name}|0": metrics, "all": metrics},
        }
        self.logged_metrics.append(metrics)
        await write_evaluation(run_directory(self), content, samples)
