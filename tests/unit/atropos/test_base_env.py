import inspect
import subprocess
import sys

import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.server_handling.server_manager import APIServerConfig

from hermes_rl.atropos.base_env import HermesAgentBaseEnv
from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.item_task import item_id
from hermes_rl.atropos.servers import server_configs_of
from hermes_rl.config import EnvConfig
from hermes_rl.errors import ConfigError

REPLACED = {
    "__init__",
    "add_rollouts_for_wandb",
    "cli",
    "collect_trajectories",
    "collect_trajectory",
    "config_init",
    "create_rollout_table",
    "evaluate",
    "evaluate_log",
    "get_next_item",
    "load_checkpoint",
    "postprocess_histories",
    "save_checkpoint",
    "setup",
    "wandb_log",
}
"""Defined by us with the same name and meaning."""
MACHINERY = {
    "_post_json_with_compression",
    "_register_env",
    "_run_evaluate",
    "_send_scored_data_to_api",
    "add_train_workers",
    "cleanup",
    "derived_batch_size",
    "env_manager",
    "env_step_checks",
    "get_cli_evaluate_config_cls",
    "get_cli_process_config_cls",
    "get_cli_serve_config_cls",
    "get_server_info",
    "get_status",
    "handle_env",
    "handle_send_to_api",
    "perf_stats",
    "process_manager",
    "register_env",
    "setup_wandb",
}
"""BaseEnv's scheduler, sender and command line: refused, since ours does the work."""


def test_every_method_of_base_env_is_replaced_or_refused() -> None:
    theirs = {
        name
        for name, value in vars(BaseEnv).items()
        if callable(value) or isinstance(value, classmethod | property)
    }
    theirs -= {"env_config_cls", "server_cls"}
    assert theirs == REPLACED | MACHINERY
    for name in REPLACED:
        ours = inspect.getattr_static(HermesAgentBaseEnv, name)
        assert ours is not inspect.getattr_static(BaseEnv, name)


@pytest.mark.parametrize("name", sorted(MACHINERY))
def test_the_old_machinery_is_refused_with_a_reason(name: str) -> None:
    env = HermesAgentBaseEnv(HermesAgentEnvConfig(enabled_toolsets=["terminal"]))
    with pytest.raises(ConfigError, match=name):
        getattr(env, name)


def test_making_an_environment_loads_and_connects_nothing() -> None:
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "from hermes_rl.atropos.base_env import HermesAgentBaseEnv\n"
        "from hermes_rl.atropos.config import HermesAgentEnvConfig\n"
        "env = HermesAgentBaseEnv(HermesAgentEnvConfig(), None)\n"
        "assert env._tokenizer is None and env.curr_step == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_both_configurations_accept_the_same_fields_with_the_same_defaults() -> None:
    assert HermesAgentEnvConfig.model_fields.keys() == EnvConfig.model_fields.keys()
    ours, light = HermesAgentEnvConfig(), EnvConfig()
    differing = {
        name
        for name in EnvConfig.model_fields
        if str(getattr(getattr(ours, name), "value", getattr(ours, name)))
        != str(getattr(getattr(light, name), "value", getattr(light, name)))
    }
    assert differing == {"max_token_length"}


def test_every_field_of_atropos_is_there_with_its_default() -> None:
    theirs, ours = BaseEnvConfig(), HermesAgentEnvConfig()
    for name in BaseEnvConfig.model_fields:
        assert getattr(ours, name) == getattr(theirs, name), name


def test_an_atropos_server_is_converted_by_the_fields_that_were_set() -> None:
    theirs = APIServerConfig(base_url="http://x/v1", model_name="m", server_type="vllm")
    (ours,) = server_configs_of(theirs)
    assert (ours.base_url, ours.model_name, ours.server_type) == ("http://x/v1", "m", "vllm")
    assert ours.model_fields_set == {"base_url", "model_name", "server_type"}
    assert server_configs_of([theirs, theirs]) == (ours, ours)


def test_item_ids_are_stable_and_tell_items_apart() -> None:
    assert item_id({"id": 7}) == "7"
    assert item_id({"a": 1, "b": 2}) == item_id({"b": 2, "a": 1})
    assert item_id({"a": 1}) != item_id({"a": 2})


def test_the_overridable_names_of_the_old_framework_are_there() -> None:
    for name in ("_resolve_tools_for_group", "collect_trajectory", "rollout_and_score_eval"):
        assert inspect.isfunction(getattr(HermesAgentBaseEnv, name))
