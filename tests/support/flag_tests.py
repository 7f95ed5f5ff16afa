"""For every supported flag the tests that would fail if it did nothing. Data for
test_flag_states.py.

A place is "path below tests::function". The first one mentions the flag; where it ends halfway
(a flag has reached the resolved engine, say), the next ones show what follows from there.
"""

from __future__ import annotations

from support.media_flag_tests import MEDIA_FLAG_TESTS
from support.owner_flag_tests import OWNER_FLAG_TESTS

SPEC = "plugins/config/test_resolve.py::test_fields_reach_the_spec"
CHECKPOINT = "plugins/config/checkpoint/test_checkpoint_flags.py"
CHECKPOINT_WHOLE = "e2e/test_checkpoint_flags.py"
ENVIRONMENT = "plugins/config/parse/test_environment.py"
SETTINGS = "core/engine/test_engine_settings.py"
OBSERVERS = "core/config/rules/test_stat_loggers.py"
WHOLE = "e2e/test_flags_take_effect.py"
WEIGHTS = "plugins/packed_weights/test_restored.py"
CODE = "plugins/test_checkpoint_code.py"
CHAT = "plugins/apis/test_chat.py"
EDGES = "plugins/server/http/test_edges.py"
FP8_CACHE = "e2e/test_fp8_cache.py"
GATEWAY = "plugins/gateway/test_entries.py"
FRONTEND = "plugins/server/test_frontend.py"
FRONTEND_WHOLE = "e2e/test_frontend_flags.py"
SEVERAL = "e2e/test_several_models.py"
LIFE = "e2e/test_server_life.py"
NEWER = "plugins/server/test_newer_flags.py"
RANKS = "e2e/test_tensor_parallel.py"
STAGES = "plugins/config/rules/test_stages.py"
HALVES = "core/config/rules/test_halves.py"
POOLING = "plugins/config/rules/test_pooling.py"
PLANS = "plugins/test_continuous.py"

MACHINES = "e2e/test_several_machines.py::test_both_machines_answer_as_one_engine"

ADAPTERS = "plugins/config/rules/test_adapters.py"
MEDIA_ADAPTERS = "plugins/adapters/test_media_adapters.py"
ADAPTERS_WHOLE = "e2e/test_adapters_served.py"

ROPE = f"{CHECKPOINT_WHOLE}::test_rope_flags_do_what_the_same_config_does_in_transformers"

FLAG_TESTS: dict[str, tuple[str, ...]] = {
    **MEDIA_FLAG_TESTS,
    **OWNER_FLAG_TESTS,
    "allow_runtime_lora_updating": (
        "plugins/apis/test_adapters.py::test_load_use_reload_unload",
        "plugins/apis/test_adapters.py::test_loading_needs_its_flag_and_room_for_adapters",
    ),
    "enable_lora": (
        f"{ADAPTERS_WHOLE}::test_each_name_answers_as_its_adapter",
        f"{ADAPTERS}::test_without_the_flag_there_is_no_room",
    ),
    "enable_prompt_adapter": (f"{ADAPTERS}::test_prompt_adapters_where_a_plugin_reads_them",),
    "max_prompt_adapter_token": (f"{ADAPTERS}::test_prompt_adapters_where_a_plugin_reads_them",),
    "max_prompt_adapters": (f"{ADAPTERS}::test_prompt_adapters_where_a_plugin_reads_them",),
    "prompt_adapters": (f"{ADAPTERS}::test_prompt_adapters_where_a_plugin_reads_them",),
    **dict.fromkeys(
        (
            "enable_lora_bias",
            "lora_dtype",
            "lora_extra_vocab_size",
            "long_lora_scaling_factors",
            "max_cpu_loras",
            "max_lora_rank",
            "max_loras",
        ),
        (f"{ADAPTERS}::test_every_flag_has_its_place",),
    ),
    "fully_sharded_loras": (f"{ADAPTERS}::test_flags_that_change_nothing_are_told",),
    "default_mm_loras": (f"{MEDIA_ADAPTERS}::test_media_choose_an_adapter",),
    "lora_modules": (
        f"{ADAPTERS_WHOLE}::test_each_name_answers_as_its_adapter",
        f"{ADAPTERS}::test_adapters_of_the_start",
    ),
    "lora_resolver_cache_dir": (
        f"{ADAPTERS_WHOLE}::test_a_folder_of_adapters_answers_by_name",
        f"{ADAPTERS}::test_resolvers",
    ),
    "lora_resolvers": (f"{ADAPTERS}::test_resolvers",),
    "override_attention_dtype": (
        "e2e/test_attention_dtype.py::test_attention_is_computed_in_the_type_that_is_named",
        "e2e/test_attention_dtype.py::test_what_is_resolved",
    ),
    "kv_sharing_fast_prefill": (
        "e2e/test_shared_caches.py::test_the_flag_leaves_tokens_out_and_changes_no_answer",
        "plugins/config/rules/test_shared_layers.py::test_why_the_flag_changes_nothing",
    ),
    **dict.fromkeys(
        ("mamba_cache_dtype", "mamba_ssm_cache_dtype"),
        (
            "e2e/test_states.py::test_types_of_states",
            "e2e/test_states.py::test_states_of_16_bits_are_kept_so_and_answer_nearly_the_same",
        ),
    ),
    "data_parallel_address": (f"{WHOLE}::test_several_engines", MACHINES),
    "data_parallel_backend": (f"{WHOLE}::test_several_engines",),
    "data_parallel_hybrid_lb": (
        f"{WHOLE}::test_several_engines",
        "core/config/rules/test_engines.py::test_which_engines_run_here",
    ),
    "data_parallel_rank": (
        f"{WHOLE}::test_several_engines",
        "core/config/rules/test_engines.py::test_which_engines_run_here",
    ),
    "data_parallel_router": (
        f"{WHOLE}::test_several_engines",
        "e2e/test_many_engines.py::test_answers_are_those_of_one_engine_and_both_gave_some",
    ),
    "data_parallel_join_timeout": (
        "plugins/joining/test_joining.py::test_waiting_has_an_end_and_says_who_came",
    ),
    "data_parallel_rpc_port": (f"{WHOLE}::test_several_engines", MACHINES),
    "data_parallel_secret": (
        "plugins/joining/test_joining.py::test_who_does_not_belong_is_told_and_the_server_waits_on",
    ),
    "headless": (MACHINES,),
    "join": ("e2e/test_cut_link.py::test_a_machine_joins_is_cut_off_and_joins_again",),
    "data_parallel_size": (
        f"{WHOLE}::test_several_engines",
        "e2e/test_many_engines.py::test_answers_are_those_of_one_engine_and_both_gave_some",
    ),
    "data_parallel_size_local": (
        f"{WHOLE}::test_several_engines",
        "core/config/rules/test_engines.py::test_which_engines_run_here",
    ),
    "data_parallel_start_rank": (
        f"{WHOLE}::test_several_engines",
        "core/config/rules/test_engines.py::test_which_engines_run_here",
    ),
    "default_chat_template_kwargs": (f"{NEWER}::test_default_chat_template_kwargs",),
    "disable_access_log_for_endpoints": (f"{NEWER}::test_paths_without_a_line",),
    "idle_after_s": (
        f"{GATEWAY}::test_models_of_a_file_have_flags_of_their_own",
        "plugins/gateway/test_gateway.py::test_idle_models_are_unloaded_and_come_back",
    ),
    "manage_models": (
        "plugins/gateway/manage/test_access.py"
        "::test_models_are_managed_from_this_machine_unless_a_flag_says_otherwise",
    ),
    "load": (f"{GATEWAY}::test_models_of_a_file_have_flags_of_their_own",),
    "max_loaded_models": (
        f"{GATEWAY}::test_flags_of_the_gateway_reach_it",
        "plugins/gateway/test_any_model.py::test_so_many_models_are_loaded_and_pinned_ones_stay",
    ),
    "pinned": (
        "plugins/gateway/test_any_model.py::test_a_file_may_offer_all_others_too",
        "plugins/gateway/test_any_model.py::test_so_many_models_are_loaded_and_pinned_ones_stay",
    ),
    "load_wait_s": (
        f"{GATEWAY}::test_flags_of_the_gateway_reach_it",
        "plugins/gateway/test_gateway.py::test_requests_wait_for_a_load_within_a_bound",
    ),
    "models": (
        "e2e/test_several_models.py::test_two_models_answer_and_the_death_of_one_is_its_own",
    ),
    "models_memory_bytes": (
        f"{GATEWAY}::test_flags_of_the_gateway_reach_it",
        "plugins/gateway/test_gateway.py::test_the_model_unused_for_longest_makes_room",
    ),
    "on_idle": (
        f"{GATEWAY}::test_models_of_a_file_have_flags_of_their_own",
        "plugins/gateway/test_gateway.py::test_idle_models_sleep_and_wake_up",
    ),
    "file_storage": ("plugins/apis/test_batches.py::test_a_batch_from_file_to_file",),
    "file_storage_quota": ("plugins/apis/test_batch_faults.py::test_a_key_has_a_quota",),
    "enable_log_deltas": (f"{NEWER}::test_pieces_are_logged",),
    "enable_per_request_metrics": (f"{NEWER}::test_times_are_told",),
    "logits_processor_pattern": (
        "core/engine/client/test_input.py::test_a_pattern_says_which_processors_may_be_named",
    ),
    "performance_mode": ("plugins/config/test_resolve.py::test_performance_mode",),
    "sse_keep_alive_interval": (f"{NEWER}::test_silent_streams_are_kept_alive",),
    "ssl_ciphers": ("plugins/server/launch/test_tls.py::test_ciphers",),
    "stream_interval": (f"{NEWER}::test_streams_in_intervals",),
    "additional_config": (f"{CHECKPOINT}::test_additional_config_is_the_workers_options",),
    "allow_control_tokens": ("e2e/test_control_tokens.py::test_the_flag_lets_clients_write_them",),
    "allow_credentials": (f"{FRONTEND}::test_cross_origin_rules",),
    "allow_long_max_model_len": (f"{WHOLE}::test_allow_long_max_model_len",),
    "allowed_headers": (f"{FRONTEND}::test_cross_origin_rules",),
    "allowed_hosts": ("plugins/server/http/test_local_only.py::test_hosts",),
    "allowed_methods": (f"{FRONTEND}::test_cross_origin_rules",),
    "allowed_origins": (f"{EDGES}::test_cross_origin_calls",),
    "all2all_backend": (
        "e2e/test_experts_over_engines.py::test_answers_are_those_of_one_engine",
        "plugins/config/rules/test_experts.py::test_an_exchange_of_one_engine_has_no_effect",
    ),
    "api": (
        "plugins/apis/test_families.py::test_api_names_a_family",
        "e2e/test_added_endpoint.py::test_the_tutorial",
    ),
    "api_server_count": (f"{LIFE}::test_several_api_processes",),
    "async_scheduling": (f"{WHOLE}::test_async_scheduling",),
    "attention_backend": (
        SPEC,
        "plugins/attention/test_native_cpu.py::test_steps_follow_each_other",
    ),
    "block_size": (f"{WHOLE}::test_size_of_the_cache",),
    "code_revision": (
        f"{CODE}::test_wrong_pins",
        f"{CODE}::test_a_commit_of_the_hub_is_a_pin",
    ),
    "chat_template": (f"{FRONTEND}::test_chat_template_as_text_and_as_file",),
    "chat_template_content_format": (f"{FRONTEND}::test_content_format",),
    "collect_detailed_traces": (
        f"{WHOLE}::test_collect_detailed_traces",
        "plugins/test_otlp.py::test_detail_is_told_when_asked_for",
    ),
    "compilation_config": (
        f"{CHECKPOINT}::test_compilation_levels",
        "core/runner/test_graphs.py::test_graphs_equal_eager",
    ),
    "config_format": ("plugins/mistral/test_mistral_layout.py::test_both_layouts_in_one_folder",),
    "convert": (
        f"{POOLING}::test_what_a_model_is_run_for",
        "e2e/test_pooled_rewards.py::test_what_tells_no_classes_apart_is_refused",
    ),
    "configure_logging": ("e2e/test_variables.py::test_a_log_that_others_set_up",),
    "calculate_kv_scales": (f"{FP8_CACHE}::test_calculated_scales",),
    "cpu_cores": (
        f"{WHOLE}::test_settings_of_the_engine_reach_it",
        f"{SETTINGS}::test_the_engine_keeps_to_its_processors",
    ),
    "cpu_offload_gb": (
        "e2e/test_offload.py::test_cpu_offload_gb",
        "e2e/test_offload.py::test_weights_are_there_while_their_block_runs",
    ),
    "cuda_graph_sizes": (
        "e2e/test_recorded_steps.py::test_only_the_sizes_asked_for_are_recorded",
        "plugins/config/rules/test_compile_level.py::test_sizes",
    ),
    "communicator": (f"{RANKS}::test_two_ranks_answer_as_one",),
    "device": (f"{WHOLE}::test_device",),
    "disable_custom_all_reduce": (
        "plugins/config/rules/test_ranks.py::test_the_communicator_fits_the_device",
    ),
    "disable_fastapi_docs": (f"{EDGES}::test_models_and_docs",),
    "disable_frontend_multiprocessing": (f"{WHOLE}::test_disable_frontend_multiprocessing",),
    "disable_hybrid_kv_cache_manager": (
        f"{CHECKPOINT_WHOLE}::test_windowed_layers_keep_as_much_as_the_others",
    ),
    "disable_log_stats": (f"{WHOLE}::test_stat_loggers_and_their_options",),
    "disable_sliding_window": (
        f"{CHECKPOINT_WHOLE}::test_without_sliding_window_all_layers_attend_and_keep_everything",
    ),
    "disable_uvicorn_access_log": ("plugins/server/launch/test_logs.py::test_the_access_log",),
    "distributed_executor_backend": (f"{WHOLE}::test_worker_and_executor_by_path",),
    "download_dir": (f"{WHOLE}::test_revisions_and_download_dir",),
    "dtype": (SPEC, "plugins/test_platforms.py::test_dtype"),
    "enable_auto_tool_choice": (f"{CHAT}::test_whether_the_model_may_decide_to_call",),
    "enable_chunked_prefill": (
        SPEC,
        f"{PLANS}::test_without_chunks_a_prompt_waits_until_it_fits_whole",
    ),
    "enable_dev_endpoints": (
        "plugins/apis/test_admin.py::test_there_with_the_flag_alone_and_closed",
    ),
    "enable_force_include_usage": (f"{FRONTEND}::test_forced_usage_comes_unasked",),
    "enable_log_outputs": (f"{FRONTEND}::test_answers_are_logged_whole",),
    "enable_log_requests": (f"{FRONTEND}::test_answers_are_logged_whole",),
    "enable_prefix_caching": (f"{WHOLE}::test_enable_prefix_caching",),
    "enable_prompt_tokens_details": (f"{FRONTEND}::test_prompt_tokens_details",),
    "enable_request_id_headers": (f"{EDGES}::test_request_ids",),
    "enable_server_load_tracking": (f"{FRONTEND}::test_server_load_counts_requests_in_flight",),
    "enable_sleep_mode": ("e2e/test_sleep.py::test_enable_sleep_mode",),
    "enable_ssl_refresh": (
        "plugins/server/launch/test_tls.py::test_a_renewed_certificate_is_used",
    ),
    "enable_tokenizer_info_endpoint": (f"{FRONTEND}::test_tokenizer_info",),
    "enforce_eager": ("e2e/test_recorded_steps.py::test_steps_are_recorded_unless_forbidden",),
    "engine_reply_timeout": (
        f"{WHOLE}::test_settings_of_the_engine_reach_it",
        f"{SETTINGS}::test_a_reset_does_not_wait_for_ever_and_late_answers_go_to_nobody",
    ),
    "engine_step_timeout": (
        f"{WHOLE}::test_settings_of_the_engine_reach_it",
        f"{SETTINGS}::test_a_step_that_takes_too_long_ends_the_engine",
    ),
    "exclude_tools_when_tool_choice_none": (f"{CHAT}::test_tool_choice_none_reads_no_call",),
    "generation_config": (
        "plugins/config/test_resolve.py::test_generation_config_becomes_the_default",
    ),
    "gpu_memory_utilization": (f"{WHOLE}::test_gpu_memory_utilization",),
    "h11_max_header_count": (f"{FRONTEND_WHOLE}::test_heads_over_the_limits_are_refused",),
    "h11_max_incomplete_event_size": (f"{FRONTEND_WHOLE}::test_heads_over_the_limits_are_refused",),
    "hf_config_path": (f"{CHECKPOINT_WHOLE}::test_config_of_another_folder",),
    "hf_overrides": (f"{WHOLE}::test_model_and_hf_overrides",),
    "hf_token": (f"{CHECKPOINT}::test_the_hub_is_shown_the_token_and_nobody_else",),
    "host": (f"{WHOLE}::test_host_and_port",),
    "ignore_patterns": (f"{WHOLE}::test_ignore_patterns",),
    "keep_alive_on_engine_death": (
        "e2e/test_variables.py::test_the_server_outlives_its_engine_and_says_so",
    ),
    "use_modelscope": ("plugins/commands/test_pull_modelscope.py::test_pull",),
    "model_dir": (
        "plugins/gguf/test_through_the_engine.py::test_files_of_folders_are_listed_and_served_by_name",
        "plugins/commands/test_model_stores.py::test_folders_of_model_dir",
    ),
    "kv_cache_dtype": (
        SPEC,
        "plugins/attention/test_native_cpu.py::test_auto_takes_it_where_it_fits",
        f"{FP8_CACHE}::test_without_scales_they_are_one",
    ),
    "kv_events_config": ("e2e/test_kv_events.py::test_a_router_knows_what_the_engine_holds",),
    "kv_transfer_config": ("e2e/test_kv_connectors.py::test_blocks_come_back_bit_by_bit",),
    "kv_policy": (
        "e2e/test_pretend_device.py::test_flags_are_stronger_than_the_device",
        "e2e/test_pretend_device.py::test_the_kv_policy_leaves_its_share",
    ),
    "kv_cache_memory_bytes": (f"{WHOLE}::test_size_of_the_cache",),
    "load_format": (
        SPEC,
        "plugins/load_formats/test_load_formats.py::test_dummy_depends_on_seed_and_name_alone",
    ),
    "log_config_file": (f"{FRONTEND_WHOLE}::test_the_log_goes_where_the_file_says",),
    "log_error_stack": (f"{FRONTEND}::test_tracebacks_of_error_answers",),
    "log_format": ("plugins/observability/test_log_format.py::test_a_message_is_one_line",),
    "log_level": (f"{WHOLE}::test_log_level",),
    "log_prefix": (f"{WHOLE}::test_log_prefix",),
    "logits_processors": (f"{WHOLE}::test_logits_processors",),
    "logprobs_mode": (f"{CHECKPOINT_WHOLE}::test_logprobs_modes_from_the_models_logits",),
    "long_prefill_token_threshold": (
        f"{CHECKPOINT}::test_limits_of_prompts_in_parts",
        f"{PLANS}::test_long_prefills_are_capped",
    ),
    "max_engine_restarts": (f"{WHOLE}::test_settings_of_the_engine_reach_it",),
    "max_body_bytes": (f"{EDGES}::test_large_bodies_are_refused_and_what_still_comes_is_dropped",),
    "max_log_len": (f"{FRONTEND}::test_answers_are_logged_whole",),
    "max_logprobs": (f"{WHOLE}::test_max_logprobs",),
    "max_long_partial_prefills": (
        f"{CHECKPOINT}::test_limits_of_prompts_in_parts",
        f"{PLANS}::test_short_prompts_overtake_a_long_one_that_waits_for_its_turn",
    ),
    "max_model_len": (f"{WHOLE}::test_max_model_len",),
    "max_num_batched_tokens": (SPEC, f"{PLANS}::test_simulation"),
    "max_num_partial_prefills": (
        f"{CHECKPOINT}::test_limits_of_prompts_in_parts",
        f"{PLANS}::test_so_many_prompts_are_in_parts_and_no_more",
    ),
    "max_num_queued_reqs": (
        f"{WHOLE}::test_max_num_queued_reqs",
        f"{EDGES}::test_a_full_queue_refuses_at_once",
    ),
    "max_parallel_loading_workers": (
        "plugins/load_formats/test_ahead.py::test_the_flag_reaches_the_load_format",
        "plugins/load_formats/test_ahead.py::test_as_many_threads_and_files_as_asked_for",
    ),
    "ray_workers_use_nsight": (
        "plugins/config/rules/test_placement.py::test_ray_workers_use_nsight",
    ),
    "max_num_seqs": (SPEC, f"{PLANS}::test_simulation"),
    "enable_eplb": (
        "plugins/runner/test_expert_balancer.py::test_flags_reach_the_spec",
        "plugins/runner/test_expert_balancer.py::test_experts_move_and_answers_stay",
        f"{RANKS}::test_two_ranks_answer_as_one",
    ),
    "eplb_config": (
        "plugins/runner/test_expert_balancer.py::test_flags_reach_the_spec",
        "plugins/runner/test_expert_balancer.py::test_experts_move_and_answers_stay",
    ),
    **dict.fromkeys(
        ("enable_dbo", "dbo_decode_token_threshold", "dbo_prefill_token_threshold"),
        (
            f"{HALVES}::test_which_steps_are_divided",
            "core/runner/test_halves.py::test_thresholds_say_which_steps_are_divided",
        ),
    ),
    "decode_context_parallel_size": (
        f"{RANKS}::test_two_ranks_answer_as_one",
        "plugins/config/rules/test_context_parallel.py::test_as_many_bytes_hold_so_many_times_the_tokens",
    ),
    "enable_expert_parallel": (f"{RANKS}::test_two_ranks_answer_as_one",),
    "expert_placement_strategy": (
        "plugins/config/rules/test_experts.py::test_whole_experts_are_placed",
        f"{RANKS}::test_two_ranks_answer_as_one",
    ),
    "tensor_parallel_size": (f"{RANKS}::test_two_ranks_answer_as_one",),
    "pipeline_parallel_size": (f"{RANKS}::test_two_ranks_answer_as_one",),
    "pipeline_layer_split": (f"{STAGES}::test_a_split_is_read",),
    "middleware": (
        "plugins/server/http/test_user_middleware.py::test_classes_and_functions_see_every_answer",
    ),
    "model": (f"{WHOLE}::test_model_and_hf_overrides",),
    "model_impl": (SPEC, "plugins/models/test_against_transformers.py::test_transformers_backed"),
    "model_loader_extra_config": (f"{WHOLE}::test_model_loader_extra_config",),
    "no_plugin": (f"{WHOLE}::test_no_plugin",),
    "num_gpu_blocks_override": (f"{WHOLE}::test_size_of_the_cache",),
    "num_threads": (f"{WHOLE}::test_threads_of_the_kernels",),
    "otlp_traces_endpoint": (
        f"{OBSERVERS}::test_flags_become_receivers",
        "plugins/test_otlp.py::test_a_request_is_a_server_span_with_three_phases",
    ),
    "override_generation_config": (f"{WHOLE}::test_override_generation_config",),
    "pin_threads": (f"{WHOLE}::test_threads_of_the_kernels",),
    "plugin_options": (
        "e2e/test_native_equals_torch.py::test_int4_weights_with_float_activations",
    ),
    "port": (f"{WHOLE}::test_host_and_port",),
    "prefix_caching_hash_algo": (
        f"{WHOLE}::test_prefix_caching_hash_algo",
        "core/engine/kv/test_prefix_hash.py::test_equal_prefixes_meet_and_others_do_not",
    ),
    "mmproj": ("plugins/gguf/test_projector_files.py::test_the_flag",),
    "pt_load_map_location": (
        f"{CHECKPOINT}::test_where_torch_files_go_reaches_the_load_format",
        "plugins/load_formats/test_load_formats.py::test_pt_reads_onto_the_device_asked_for",
    ),
    "quantization": ("e2e/test_native_equals_torch.py::test_int4_weights_with_float_activations",),
    "quantization_param_path": (f"{FP8_CACHE}::test_scales_of_a_file_come_first",),
    "reasoning_parser": (f"{WHOLE}::test_parsers_and_their_files",),
    "reasoning_parser_plugin": (f"{WHOLE}::test_parsers_and_their_files",),
    "renderer": ("e2e/test_renderer.py::test_every_process_renders_by_the_file",),
    "response_role": (f"{FRONTEND}::test_the_response_role_in_streams_and_whole",),
    "reasoning_budget": (
        "e2e/test_soft_thinking_end.py::test_the_servers_budget_is_that_of_requests_without_one",
    ),
    "reasoning_budget_message": ("e2e/test_soft_thinking_end.py::test_every_api_ends_it_softly",),
    "reasoning_field": ("plugins/server/generate/test_thinking_fields.py::test_reasoning_field",),
    "return_tokens_as_token_ids": (f"{FRONTEND}::test_tokens_as_token_ids",),
    "revision": (f"{WHOLE}::test_revisions_and_download_dir",),
    "root_path": (f"{FRONTEND}::test_root_path",),
    "rope_scaling": (ROPE,),
    "rope_theta": (ROPE,),
    "pooler_config": (
        f"{POOLING}::test_pooler_config",
        "e2e/test_pooled_ways.py::test_long_prompts_in_pieces",
    ),
    "runner": (
        f"{POOLING}::test_what_a_model_is_run_for",
        "e2e/test_pooled_decoders.py::test_every_family_equals_transformers",
    ),
    "safetensors_load_strategy": (
        f"{CHECKPOINT}::test_the_eager_strategy_reaches_the_load_format",
        "plugins/load_formats/test_load_formats.py::test_an_eager_file_is_in_memory_before_its_first_tensor",
    ),
    "scheduler_cls": (f"{WHOLE}::test_scheduler_cls",),
    "scheduling_policy": (SPEC, f"{PLANS}::test_the_largest_key_yields_and_comes_back_in_front"),
    "seed": (f"{WHOLE}::test_seed",),
    "served_model_name": (f"{WHOLE}::test_served_model_name",),
    "show_hidden_metrics_for_version": (
        f"{OBSERVERS}::test_flags_become_receivers",
        "plugins/test_stat_loggers.py::test_deprecated_metrics_are_shown_only_when_asked_for",
    ),
    "show_notes": (f"{ENVIRONMENT}::test_notes_can_be_hidden_and_warnings_cannot",),
    "shutdown_timeout": (f"{LIFE}::test_what_does_not_finish_in_time_gets_an_error",),
    "skip_tokenizer_init": (f"{CHECKPOINT}::test_no_tokenizer_is_looked_for_where_none_is_wanted",),
    "socket_dir": (
        f"{WHOLE}::test_settings_of_the_engine_reach_it",
        f"{SETTINGS}::test_the_socket_lies_where_it_is_wanted",
    ),
    "speculative_config": (
        "e2e/test_speculation.py::test_a_repetitive_answer_takes_far_fewer_steps",
    ),
    "ssl_ca_certs": ("plugins/server/launch/test_tls.py::test_client_certificates",),
    "ssl_cert_reqs": ("plugins/server/launch/test_tls.py::test_client_certificates",),
    "ssl_certfile": (f"{FRONTEND_WHOLE}::test_tls_with_client_certificates",),
    "ssl_keyfile": (f"{FRONTEND_WHOLE}::test_tls_with_client_certificates",),
    "stat_loggers": (f"{WHOLE}::test_stat_loggers_and_their_options",),
    "strict_request_fields": (f"{EDGES}::test_unknown_fields_are_errors_when_strict",),
    "structured_outputs_config": (
        "plugins/config/rules/test_structured_output.py::test_the_backend_that_is_named_is_taken",
        "plugins/config/rules/test_structured_output.py::test_others_are_tried_unless_that_is_forbidden",
        "plugins/config/rules/test_structured_output.py::test_how_json_is_written",
        "plugins/config/rules/test_structured_output.py::test_bounds",
        "e2e/test_hostile_constraints.py::test_hostile_constraints_cost_their_own_request",
    ),
    "swap_space": ("plugins/test_swap.py::test_swap_space",),
    "thread_spin_us": (f"{WHOLE}::test_threads_of_the_kernels",),
    "timeout_keep_alive": (f"{WHOLE}::test_timeout_keep_alive",),
    "tokenizer": (f"{WHOLE}::test_tokenizer",),
    "tokenizer_mode": (f"{WHOLE}::test_tokenizer_mode",),
    "tokenizer_revision": (f"{WHOLE}::test_revisions_and_download_dir",),
    "tool_call_parser": (f"{WHOLE}::test_parsers_and_their_files",),
    "tool_parser_plugin": (f"{WHOLE}::test_parsers_and_their_files",),
    "tool_parser_strict": (f"{CHAT}::test_bare_calls_are_calls_unless_the_parser_is_strict",),
    "tool_server": (
        "e2e/test_tool_server.py::test_the_server_calls_and_the_model_goes_on",
        "e2e/test_tool_server.py::test_at_start",
    ),
    "trust_remote_code": (f"{CODE}::test_its_model_answers_as_its_own_code_does",),
    "trust_request_chat_template": (f"{FRONTEND}::test_templates_of_requests",),
    "ui": ("plugins/apis/test_ui.py::test_no_ui_takes_the_page_away",),
    "uds": (f"{FRONTEND_WHOLE}::test_a_unix_socket_answers",),
    "use_tqdm_on_load": (f"{WHOLE}::test_use_tqdm_on_load",),
    "weight_cache": (f"{WEIGHTS}::test_no_weight_cache",),
    "weight_cache_bytes": (f"{WEIGHTS}::test_no_weight_cache",),
    "uvicorn_log_level": (
        f"{FRONTEND_WHOLE}::test_tls_with_client_certificates",
        "plugins/server/launch/test_logs.py::test_uvicorns_level",
    ),
    "worker_cls": (f"{WHOLE}::test_worker_and_executor_by_path",),
    "profiler_config": (
        "core/config/rules/test_profiling.py::test_the_keys_of_the_flag",
        "e2e/test_profiling.py::test_two_ranks_are_profiled_while_a_request_runs",
    ),
    "worker_extension_cls": (f"{WHOLE}::test_methods_are_added_to_the_worker",),
}
"""Honoured flag -> places."""
