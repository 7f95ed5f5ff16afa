"""The kit catches deliberately wrong plugins: each fails the clause it breaks, right ones none."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.registry.kinds import interface_of
from dovetail_testing.contract import files_of, gates_of
from support import kit_pairs

pytestmark = pytest.mark.timeout(900)  # one run of the whole kit serves them all

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PLAIN, TORCH = HERE / "wrong_plugins.py", HERE / "wrong_torch_plugins.py"
APIS = HERE / "wrong_apis.py"
IO_PROCESSORS = HERE / "wrong_io_processors.py"
RENDERERS = HERE / "wrong_renderers.py"
CLIENTS = HERE / "wrong_clients.py"
CONDITIONS = HERE / "wrong_stop_conditions.py"
ROUTERS, EXECUTORS = HERE / "wrong_routers.py", HERE / "wrong_executors.py"
EXCHANGES = HERE / "wrong_exchanges.py"
STAGES = HERE / "wrong_stages.py"
POOLERS = HERE / "wrong_poolers.py"
RESOLVERS = HERE / "wrong_resolvers.py"
ACCEPTANCES = HERE / "wrong_acceptances.py"
ADAPTERS = HERE / "wrong_adapters.py"
CONNECTORS = HERE / "wrong_connectors.py"
EVICTIONS = HERE / "wrong_evictions.py"
POLICIES = HERE / "wrong_policies.py"
GATES = HERE / "wrong_gates.py"
STORES = HERE / "wrong_stores.py"

POLICY = "scheduling_policy"
WRONG: list[tuple[str, str, str]] = [
    (POLICY, "no_such_module:Thing", "loads_in_a_fresh_process"),
    (POLICY, f"{HERE}/wrong_eager.py:EagerImport", "import_leaves_optional_packages_alone"),
    (POLICY, f"{PLAIN}:WrongSignature", "keeps_its_interface"),
    (POLICY, f"{PLAIN}:Undocumented", "says_what_it_is"),
    (POLICY, f"{PLAIN}:UnhelpfulReason", "says_why_it_is_unavailable"),
    (POLICY, f"{PLAIN}:AlwaysObjects", "asked_nothing_it_objects_to_nothing"),
    (POLICY, f"{PLAIN}:HelplessOptions", "options_explain_themselves"),
    (POLICY, f"{PLAIN}:LyingOptions", "options_round_trip_through_text"),
    (POLICY, f"{PLAIN}:UnknownFailure", "expected_failures_name_clauses"),
    (POLICY, f"{PLAIN}:FalseFailure", "keys_compare"),
    (POLICY, f"{PLAIN}:InfiniteKeys", "keys_are_finite_numbers"),
    (POLICY, f"{PLAIN}:RaggedKeys", "keys_compare"),
    (POLICY, f"{PLAIN}:DriftingKeys", "key_stays_while_waiting"),
    (POLICY, f"{PLAIN}:PersonalKeys", "two_objects_agree"),
    (POLICY, f"{POLICIES}:UndeclaredKeys", "a_key_that_moves_is_declared"),
    (POLICY, f"{POLICIES}:UndeclaredAge", "a_key_that_moves_is_declared"),
    (POLICY, f"{POLICIES}:RaggedLater", "keys_compare"),
    (POLICY, f"{POLICIES}:InfiniteLater", "keys_are_finite_numbers"),
    (POLICY, f"{POLICIES}:CountingKeys", "key_stays_while_waiting"),
    (POLICY, f"{POLICIES}:CrashingLater", "a_scheduler_works_under_it[False]"),
    (POLICY, f"{POLICIES}:ListedLines", "lines_have_keys"),
    (POLICY, f"{POLICIES}:EndlessLines", "lines_have_keys"),
    (POLICY, f"{POLICIES}:RestlessLines", "nobody_makes_way_for_itself"),
    ("scheduler", f"{POLICIES}:BlindScheduler", "asks_again_about_keys_that_move"),
    ("scheduler", f"{POLICIES}:SettledScheduler", "asks_again_about_keys_that_move"),
    ("api", f"{APIS}:SlashedApi", "routes_are_distinct_paths"),
    ("api", f"{APIS}:GreedyApi", "takes_no_route_of_dovetail"),
    ("api", f"{APIS}:SilentApi", "endpoints_are_documented"),
    ("api", f"{APIS}:FlaggedApi", "flags_are_flags"),
    ("api", f"{APIS}:OnceApi", "state_opens_again"),
    ("api", f"{APIS}:AjarApi", "closed_without_a_key"),
    ("api", f"{APIS}:BodilessApi", "described_in_openapi"),
    ("api", f"{APIS}:CrashingApi", "a_body_that_is_not_json_is_a_client_error"),
    ("api", f"{APIS}:MuteApi", "errors_say_what_is_wrong[404]"),
    ("gate", f"{GATES}:ShutGate", "open_routes_are_open[flags1]"),
    ("gate", f"{GATES}:SleepyGate", "what_is_no_request_passes[flags0]"),
    ("gate", f"{GATES}:MuteGate", "every_request_is_answered_once[/nothing/here-flags1]"),
    ("gate", f"{GATES}:AjarGate", "a_server_with_keys_is_closed"),
    ("gate", f"{GATES}:ForgetfulGate", "keeps_owners_that_it_does_not_know"),
    ("model_store", f"{STORES}:NamelessStore", "says_where_models_are"),
    ("model_store", f"{STORES}:CurlyStore", "says_where_models_are"),
    ("model_store", f"{STORES}:SecretiveStore", "finds_what_it_lists"),
    ("model_store", f"{STORES}:GhostStore", "paths_exist"),
    ("model_store", f"{STORES}:ObligingStore", "finds_nothing_else[../out]"),
    ("model_store", f"{STORES}:TimelessStore", "a_missing_revision_is_not_another"),
    ("model_store", f"{STORES}:TouchingStore", "changes_nothing"),
    ("model_store", f"{STORES}:OnceStore", "a_listing_repeats"),
    ("io_processor", f"{IO_PROCESSORS}:PaintingProcessor", "names_a_task"),
    ("io_processor", f"{IO_PROCESSORS}:SilentProcessor", "makes_prompts_of_its_sample"),
    ("io_processor", f"{IO_PROCESSORS}:ArrayProcessor", "answers_in_json"),
    ("io_processor", f"{IO_PROCESSORS}:PoppingProcessor", "leaves_the_data_alone"),
    ("io_processor", f"{IO_PROCESSORS}:DeafProcessor", "reads_every_output"),
    ("io_processor", f"{IO_PROCESSORS}:CountingProcessor", "requests_do_not_mix"),
    ("io_processor", f"{IO_PROCESSORS}:TrustingProcessor", "other_data_is_a_client_error[None]"),
    ("renderer", f"{RENDERERS}:PictureRenderer", "says_what_it_reads"),
    ("renderer", f"{RENDERERS}:HastyRenderer", "every_turn_is_there"),
    ("renderer", f"{RENDERERS}:ToollessRenderer", "calls_and_results_are_there"),
    ("renderer", f"{RENDERERS}:LeadingRenderer", "the_opening_comes_last"),
    ("renderer", f"{RENDERERS}:PoppingRenderer", "leaves_the_conversation_alone"),
    ("renderer", f"{RENDERERS}:CountingRenderer", "conversations_do_not_mix"),
    ("renderer", f"{RENDERERS}:TidyRenderer", "an_answer_can_be_continued"),
    (
        "renderer",
        f"{RENDERERS}:TrustingRenderer",
        "odd_conversations_are_client_errors[result]",
    ),
    ("renderer", f"{RENDERERS}:DeafRenderer", "renders_by_the_template_of_a_request"),
    ("renderer", f"{RENDERERS}:MeekRenderer", "refuses_the_template_of_a_request"),
    ("client", f"{CLIENTS}:SpacedClient", "says_how_to_get_it"),
    ("client", f"{CLIENTS}:DeafClient", "names_the_server"),
    ("client", f"{CLIENTS}:DemandingClient", "an_unknown_context_and_no_key_are_fine"),
    ("client", f"{CLIENTS}:LoyalClient", "names_no_other_model"),
    ("client", f"{CLIENTS}:StrayingClient", "files_stay_in_its_folder"),
    ("client", f"{CLIENTS}:HomelyClient", "leaves_the_user_alone"),
    ("client", f"{CLIENTS}:PointingClient", "leaves_the_user_alone"),
    ("client", f"{CLIENTS}:DashedClient", "variables_can_be_set"),
    ("stop_condition", f"{CONDITIONS}:LyingCondition", "says_why"),
    ("stop_condition", f"{CONDITIONS}:DemandingCondition", "plain_requests_pass"),
    ("stop_condition", f"{CONDITIONS}:TrustingCondition", "wrong_values_are_client_errors"),
    ("stop_condition", f"{CONDITIONS}:SharingCondition", "answers_do_not_mix"),
    ("router", f"{ROUTERS}:ForeignRouter", "names_an_engine_that_takes_requests[few]"),
    ("router", f"{ROUTERS}:FavouringRouter", "uses_every_engine"),
    ("router", f"{ROUTERS}:ScribblingRouter", "leaves_the_tokens_alone"),
    ("router", f"{ROUTERS}:HoardingRouter", "memory_is_bounded"),
    ("router", f"{ROUTERS}:MoodyRouter", "is_deterministic"),
    ("router", f"{ROUTERS}:SlowRouter", "is_quick"),
    ("router", f"{ROUTERS}:DeafRouter", "a_busy_engine_is_spared[few]"),
    ("router", f"{ROUTERS}:LoyalRouter", "a_prefix_is_left_for_an_idle_engine"),
    ("router", f"{ROUTERS}:UnawareRouter", "a_prefix_is_followed"),
    ("router", f"{ROUTERS}:SaltlessRouter", "a_salt_is_another_prefix"),
    ("router", f"{ROUTERS}:RememberingRouter", "a_forgotten_prefix_is_not_followed"),
    ("kv_connector", f"{CONNECTORS}:MixingConnector", "keys_do_not_mix"),
    ("kv_connector", f"{CONNECTORS}:BoastfulConnector", "unknown_keys_are_not_there"),
    ("kv_connector", f"{CONNECTORS}:GreedyConnector", "a_block_is_kept_once"),
    ("kv_connector", f"{CONNECTORS}:StubbornConnector", "lost_blocks_are_wanted_again"),
    ("kv_connector", f"{CONNECTORS}:HoardingConnector", "dropped_blocks_are_gone"),
    ("kv_connector", f"{CONNECTORS}:ForgetfulConnector", "what_the_index_has_can_be_read"),
    ("kv_connector", f"{CONNECTORS}:MortalConnector", "a_restart_finds_what_was_there"),
    ("kv_connector", f"{CONNECTORS}:SharedRanksConnector", "ranks_do_not_mix"),
    ("kv_connector", f"{CONNECTORS}:TearingConnector", "reading_beside_writing"),
    ("kv_connector", f"{CONNECTORS}:CarelessPiecesConnector", "pieces_go_to_other_ranks"),
    ("kv_connector", f"{CONNECTORS}:UnsealedFake", "what_is_made_up_is_sealed"),
    ("kv_eviction", f"{EVICTIONS}:HoardingEviction", "keeps_no_more_than_its_limit[10]"),
    ("kv_eviction", f"{EVICTIONS}:SecretiveEviction", "says_what_goes[10]"),
    ("kv_eviction", f"{EVICTIONS}:ShutEviction", "a_new_block_is_kept[10]"),
    ("kv_eviction", f"{EVICTIONS}:StubbornEviction", "discarded_blocks_are_gone"),
    ("kv_eviction", f"{EVICTIONS}:MoodyEviction", "is_deterministic"),
    ("kv_event_publisher", f"{CONNECTORS}:WaitingPublisher", "takes_batches_at_once"),
    ("kv_event_publisher", f"{CONNECTORS}:OncePublisher", "ends_twice"),
    ("adapter", f"{ADAPTERS}:NamelessAdapter", "names_types"),
    ("adapter", f"{ADAPTERS}:NumblessAdapter", "reads_an_adapter"),
    ("adapter", f"{ADAPTERS}:RememberingAdapter", "reads_alike_twice"),
    ("adapter", f"{ADAPTERS}:WrappedAdapter", "modules_are_named_as_in_the_model"),
    ("adapter", f"{ADAPTERS}:ContentAdapter", "missing_weights_are_told"),
    ("adapter", f"{ADAPTERS}:VagueAdapter", "torn_weights_are_told"),
    ("adapter", f"{ADAPTERS}:CarelessAdapter", "unknown_tensors_are_told"),
    ("adapter", f"{ADAPTERS}:TrustingAdapter", "runs_no_code"),
    ("adapter", f"{ADAPTERS}:SecretAdapter", "claims_its_vectors"),
    ("adapter", f"{ADAPTERS}:MiscountingAdapter", "counts_its_vectors"),
    ("pooler", f"{POOLERS}:SpreadingPooler", "makes_one_vector[1]"),
    ("pooler", f"{POOLERS}:SummingPooler", "length_alone_changes_nothing[40]"),
    ("pooler", f"{POOLERS}:ScribblingPooler", "leaves_its_input_alone"),
    ("pooler", f"{POOLERS}:RememberingPooler", "prompts_do_not_mix"),
    ("pooler", f"{POOLERS}:NarrowPooler", "narrow_types_lose_little[f16]"),
    ("pooler", f"{POOLERS}:FarSightedLast", "reads_the_last_token_alone"),
    ("pooler", f"{POOLERS}:FarSightedFirst", "reads_the_first_token_alone"),
    ("pooler", f"{POOLERS}:PaddingSteps", "makes_a_vector_for_tokens[9]"),
    ("pooler", f"{POOLERS}:CentringSteps", "vectors_are_those_of_their_tokens"),
    ("pooler", f"{POOLERS}:LastStep", "steps_are_found"),
    ("adapter_resolver", f"{RESOLVERS}:TrustingResolver", "no_name_leads_elsewhere[3]"),
    ("adapter_resolver", f"{RESOLVERS}:IndifferentResolver", "the_base_counts"),
    ("adapter_resolver", f"{RESOLVERS}:RaisingResolver", "what_is_not_there_is_none"),
    ("adapter_resolver", f"{RESOLVERS}:RenamingResolver", "what_is_there_is_found"),
    ("adapter_resolver", f"{RESOLVERS}:SharedResolver", "threads_do_not_mix"),
    ("adapter_resolver", f"{RESOLVERS}:ScribblingResolver", "nothing_is_written"),
    ("dtype", f"{PLAIN}:ALIEN", "keeps_its_interface"),
    ("expert_placement", f"{PLAIN}:CROWDED", "each_expert_is_on_one_rank[8-2]"),
    ("hash_algorithm", f"{PLAIN}:COLLIDING", "hashes_tell_blocks_apart"),
    ("rope_type", f"{TORCH}:LONG", "frequencies_fit_a_head"),
    ("platform", f"{PLAIN}:BoastfulPlatform", "defaults_keep_the_limits"),
    ("platform", f"{PLAIN}:LonelyPlatform", "its_plugins_exist"),
    ("platform", f"{PLAIN}:OddPlatform", "auto_gives_types_it_takes[float16]"),
    ("platform", f"{PLAIN}:ForgetfulPlatform", "tells_what_memory_is_free"),
    ("platform", f"{PLAIN}:StingyPlatform", "engines_get_a_device_each"),
    ("platform", f"{TORCH}:SloppyPlatform", "ops_compute_what_is_defined"),
    ("kv_policy", f"{TORCH}:GreedyPolicy", "stays_within_the_memory"),
    ("kv_policy", f"{TORCH}:SharingPolicy", "every_request_ends[plain]"),
    ("bench_dataset", f"{PLAIN}:ForgetfulDataset", "draws_the_same_again"),
    ("bench_dataset", f"{PLAIN}:ShiftyDataset", "more_prompts_add_to_the_end"),
    ("scheduler", f"{TORCH}:CrampedScheduler", "drafts_of_the_worker_have_room[False]"),
    ("drafter", f"{PLAIN}:EagerDrafter", "never_more_than_asked[1]"),
    ("drafter", f"{PLAIN}:ForeignDrafter", "ids_are_in_the_vocabulary"),
    ("drafter", f"{PLAIN}:ScribblingDrafter", "leaves_the_tokens_alone"),
    ("drafter", f"{PLAIN}:ChattyDrafter", "requests_do_not_mix"),
    ("drafter", f"{PLAIN}:ForgetlessDrafter", "forgets"),
    ("drafter", f"{PLAIN}:AmnesicDrafter", "remembers"),
    ("drafter", f"{TORCH}:MixingDrafter", "batch_and_chunks"),
    ("drafter", f"{TORCH}:WideDrafter", "logits_over_the_vocabulary"),
    ("drafter", f"{TORCH}:MoodyDrafter", "is_deterministic"),
    ("drafter", f"{TORCH}:ScribblingSettings", "leaves_the_settings_alone"),
    ("drafter", f"{PLAIN}:ImposingDrafter", "is_of_its_sort"),
    ("stat_logger", f"{PLAIN}:SlowLogger", "does_not_block"),
    ("stat_logger", f"{PLAIN}:PickyLogger", "takes_all_numbers"),
    ("acceptance", f"{ACCEPTANCES}:EagerAcceptance", "chances_are_probabilities[far]"),
    ("acceptance", f"{ACCEPTANCES}:TrustingAcceptance", "nothing_impossible_stands[filtered]"),
    ("acceptance", f"{ACCEPTANCES}:CarelessAcceptance", "keeps_the_distribution[near]"),
    ("acceptance", f"{ACCEPTANCES}:ScribblingAcceptance", "leaves_its_input_alone"),
    ("acceptance", f"{ACCEPTANCES}:CrowdAcceptance", "rows_do_not_mix"),
    ("tool_parser", f"{PLAIN}:NoSamples", "has_samples"),
    ("tool_parser", f"{PLAIN}:WrongSample", "samples_parse"),
    ("tool_parser", f"{PLAIN}:CrashingParser", "malformed_bodies[0]"),
    ("tool_parser", f"{PLAIN}:ForgetfulParser", "cut_does_not_matter"),
    ("tool_parser", f"{PLAIN}:LooseArguments", "arguments_are_json_objects"),
    ("tool_parser", f"{PLAIN}:ChoosyParser", "unknown_tools_are_passed_on"),
    ("tool_parser", f"{PLAIN}:RepentantParser", "damaged_text_loses_nothing"),
    ("tool_parser", f"{PLAIN}:WanderingEnd", "region_end_stays"),
    ("reasoning_parser", f"{PLAIN}:AlwaysThinks", "unmarked_text_is_content"),
    ("reasoning_parser", f"{PLAIN}:NeverThinks", "prompt_may_open_thinking"),
    ("modality", f"{PLAIN}:THING", "value_crosses_processes"),
    ("attention_backend", f"{TORCH}:FutureAttention", "steps_follow_each_other[grouped-mixed]"),
    ("attention_backend", f"{TORCH}:WindowlessAttention", "window_over_steps[3]"),
    ("attention_backend", f"{TORCH}:ChunklessAttention", "chunks_over_steps[3]"),
    ("attention_backend", f"{TORCH}:SlopelessAttention", "alibi_over_steps[mixed]"),
    ("attention_backend", f"{TORCH}:FreshKeysAttention", "new_keys_may_lie_elsewhere[9]"),
    ("attention_backend", f"{TORCH}:BaseTwoAttention", "tells_log_sum_exps[plain]"),
    ("attention_backend", f"{TORCH}:RewritingAttention", "reads_what_another_layer_wrote[plain]"),
    ("attention_backend", f"{TORCH}:FutureLatents", "latents_equal_the_definition"),
    ("attention_backend", f"{TORCH}:RoundingLatents", "latents_are_written_alone"),
    ("attention_backend", f"{TORCH}:LatestPicks", "picks_equal_the_definition"),
    ("attention_backend", f"{TORCH}:EveryLatent", "picked_latents_alone_are_attended_to"),
    (
        "attention_backend",
        f"{TORCH}:OneSidedAttention",
        "window_to_both_sides[prefill_not_causal_sides_H4_K2-float32]",
    ),
    (
        "attention_backend",
        f"{TORCH}:MirroredBiasAttention",
        "position_bias[mixed_bias_H4_K2-float32]",
    ),
    ("attention_backend", f"{TORCH}:PaddingAttention", "steps_follow_each_other[full-decode]"),
    (
        "attention_backend",
        f"{TORCH}:ScalelessAttention",
        "8_bit_floats_count_times_their_scale[e4m3-tight]",
    ),
    ("logits_processor", f"{TORCH}:TouchesAll", "other_rows_stay"),
    ("logits_processor", f"{TORCH}:WantsAll", "plain_requests_are_left_alone"),
    ("logits_processor", f"{TORCH}:MakesNan", "never_makes_nan"),
    ("logits_processor", f"{TORCH}:CopiesOutput", "sees_tokens_as_they_come"),
    ("logits_processor", f"{TORCH}:NeverForgets", "rows_are_forgotten"),
    ("logits_processor", f"{TORCH}:BatchMean", "batch_does_not_matter"),
    ("logits_processor", f"{TORCH}:FiltersBest", "filters_keep_the_best"),
    ("load_format", f"{TORCH}:TwiceFormat", "every_tensor_once"),
    ("load_format", f"{TORCH}:WideFormat", "every_tensor_once"),
    ("load_format", f"{TORCH}:LyingFormat", "headers_tell_what_is_read"),
    ("load_format", f"{TORCH}:ForgivingFormat", "truncated_file"),
    ("load_format", f"{TORCH}:HoardingFormat", "keeps_no_tensor"),
    ("load_format", f"{TORCH}:SecretFormat", "reads_something"),
    ("quantization", f"{TORCH}:DoubleBias", "is_linear"),
    ("quantization", f"{TORCH}:PlainEnds", "ends_are_those_of_the_plain_product"),
    ("quantizer", f"{TORCH}:ScribblingQuantizer", "leaves_the_matrix_alone"),
    ("quantizer", f"{TORCH}:NamelessQuantizer", "settings_name_the_method"),
    ("scheduler", f"{TORCH}:SilentAbort", "keeps_every_promise[0]"),
    ("scheduler", f"{TORCH}:LazyPlanner", "keeps_every_promise[0]"),
    ("scheduler", f"{TORCH}:TrustingScheduler", "drafts_change_no_token[False]"),
    ("scheduler", f"{TORCH}:TalkativeCounts", "plans_nothing_for_nobody"),
    ("scheduler", f"{TORCH}:LosingScheduler", "swapped_blocks_are_where_they_should_be[400]"),
    ("scheduler", f"{TORCH}:KeepingScheduler", "takes_all_blocks_when_asked[running]"),
    ("worker", f"{TORCH}:ForgivingWorker", "faults_are_reported_not_raised"),
    ("worker", f"{TORCH}:AnywhereWorker", "says_which_devices_fit"),
    ("worker", f"{TORCH}:BackwardWorker", "draws_what_was_asked"),
    ("worker", f"{TORCH}:CredulousWorker", "drafts_change_no_token"),
    ("worker", f"{TORCH}:LosingWorker", "swapped_blocks_come_back"),
    ("worker", f"{TORCH}:SleepyWorker", "sleeps_and_wakes_up"),
    ("executor", f"{TORCH}:QuietExecutor", "a_crash_is_told[False]"),
    ("executor", f"{TORCH}:LeakyExecutor", "shutdown_twice"),
    ("executor", f"{EXECUTORS}:ForgetfulExecutor", "methods_are_called[False]"),
    ("executor", f"{EXECUTORS}:PatientExecutor", "a_call_ends_in_time[False]"),
    ("executor", f"{EXECUTORS}:FragileExecutor", "a_call_that_fails_ends_nothing[raises]"),
    ("all2all", f"{EXCHANGES}:SelfishExchange", "equals_one_rank[(4, 4)]"),
    ("all2all", f"{EXCHANGES}:EvenExchange", "ranks_may_have_different_tokens[(0, 5)]"),
    ("all2all", f"{EXCHANGES}:WideningExchange", "keeps_the_type"),
    ("communicator", f"{TORCH}:CopyingCommunicator", "sums[dtype0]"),
    ("communicator", f"{TORCH}:OwnFirstCommunicator", "gathers_in_rank_order"),
    ("communicator", f"{TORCH}:EagerCommunicator", "a_barrier_waits"),
    ("communicator", f"{TORCH}:BoastfulCommunicator", "calls_that_were_begun_end_in_their_order"),
    ("communicator", f"{TORCH}:AnywhereCommunicator", "says_where_it_fits"),
    ("model", f"{TORCH}:Qwen3ForCausalLM", "equals_transformers"),
    ("model", f"{TORCH}:LlamaForCausalLM", "batch_and_chunks"),
    ("tokenizer", f"{TORCH}:HastyTokenizer", "stream_gives_whole_characters"),
    ("tokenizer", f"{TORCH}:ChattyTokenizer", "pair_frame"),
    ("executor", f"{STAGES}:SecretiveExecutor", "stages_learn_what_the_last_one_draws"),
    ("communicator", f"{STAGES}:TwistingCommunicator", "sends_to_the_other_of_two"),
    ("scheduler", f"{STAGES}:PatientScheduler", "keeps_the_stages_of_a_pipeline_busy[windows0]"),
    ("model", f"{STAGES}:Phi3ForCausalLM", "stages_equal_the_whole"),
]
RIGHT = [
    (POLICY, f"{PLAIN}:RightPolicy"),
    (POLICY, f"{PLAIN}:KnownFailure"),
    (POLICY, f"{POLICIES}:RightMoving"),
    ("api", f"{APIS}:RightApi"),
    ("drafter", f"{PLAIN}:RightDrafter"),
    ("drafter", "dovetail_plugins.drafters.eagle:Eagle"),
    ("client", f"{CLIENTS}:RightClient"),
    ("model_store", f"{STORES}:RightStore"),
    ("gate", f"{GATES}:RightGate"),
    ("stop_condition", f"{CONDITIONS}:RightCondition"),
    ("renderer", f"{RENDERERS}:RightRenderer"),
    ("renderer", f"{RENDERERS}:StrictRenderer"),
    ("router", f"{ROUTERS}:RightRouter"),
    ("io_processor", f"{IO_PROCESSORS}:RightProcessor"),
    ("kv_connector", f"{CONNECTORS}:RightConnector"),
    ("kv_event_publisher", f"{CONNECTORS}:RightPublisher"),
    ("kv_eviction", f"{EVICTIONS}:RightEviction"),
    ("adapter_resolver", f"{RESOLVERS}:RightResolver"),
    ("acceptance", f"{ACCEPTANCES}:RightAcceptance"),
    ("adapter", f"{ADAPTERS}:RightAdapter"),
    ("pooler", f"{POOLERS}:RightPooler"),
    ("pooler", f"{POOLERS}:RightSteps"),
    ("tool_parser", f"{PLAIN}:SlashParser"),
    ("logits_processor", f"{TORCH}:RightBias"),
    ("attention_backend", "dovetail_testing.reference:ReferenceAttention"),
    ("model", "dovetail_testing.models:ReplayModel"),
]
Rows = list[tuple[str, str, str]]
"""Kinds, plugins and clauses; a clause "" is all of them."""
Outcomes = dict[str, dict[str, str]]


def run_kit(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `dovetail plugins check` in a process of its own."""
    paths = [str(ROOT / part) for part in ("core", "plugins", "kernels", "tests")]
    return subprocess.run(
        [sys.executable, "-m", "dovetail", "plugins", "check", *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | variables,
        cwd=ROOT,
    )


def id_of(kind: str, spec: str) -> str:
    """Return the name by which the kit's report has a plugin."""
    return f"{kind}:{registry.find(kind, spec).id}"


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """Return plugin -> clause -> what the kit says: of right plugins all clauses, of the wrong ones
    that this run asks for those that they break."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    cases = [item.callspec.params for item in items if item.originalname == WRONG_TEST]
    wrong: Rows = [(case["kind"], case["spec"], case["clause"]) for case in cases]
    asked = [*wrong, *((kind, spec, "") for kind, spec in RIGHT)]
    # What every kind owes is broken by policies: it imports each plugin in a process of its own.
    owing = [row for row in asked if row[0] == POLICY or not row[2]]
    with ThreadPoolExecutor() as pool:  # some clauses wait for what a wrong plugin never does
        runs = [
            pool.submit(run_kit, *named(rows), "--json", **kit_pairs.variables(pairs_of(rows)))
            for rows in (owing, [row for row in asked if row not in owing])
        ]
    found: Outcomes = {}
    for done in (run.result() for run in runs):
        assert done.stdout, done.stderr
        for row in json.loads(done.stdout)["clauses"]:
            found.setdefault(row["plugin"], {})[row["clause"]] = row["outcome"]
    return found


def named(asked: Rows) -> Iterable[str]:
    """Return the plugins of rows, each once, as the command line names them."""
    return dict.fromkeys(f"{kind}:{spec}" for kind, spec, _ in asked)


def pairs_of(asked: Rows) -> list[tuple[str, str]]:
    """Return the plugins of rows, as reports name them, and the clauses asked for."""
    return [(id_of(kind, spec), clause) for kind, spec, clause in asked]


WRONG_TEST = "test_wrong_plugin_is_caught"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("kind", "spec", "clause"), WRONG, ids=lambda text: text.split(":")[-1])
def test_wrong_plugin_is_caught(outcomes: Outcomes, kind: str, spec: str, clause: str) -> None:
    assert outcomes[id_of(kind, spec)][clause] == "failed"


@pytest.mark.parametrize(("kind", "spec"), RIGHT, ids=lambda text: text.split(":")[-1])
def test_right_plugin_passes(outcomes: Outcomes, kind: str, spec: str) -> None:
    failed = [clause for clause, how in outcomes[id_of(kind, spec)].items() if how == "failed"]
    assert failed == []


def test_what_failed_is_said_in_sentences() -> None:
    plugin = f"{POLICY}:{PLAIN}:Undocumented"
    told = run_kit(plugin, "--clause", "says_what_it_is")
    assert told.returncode == 1
    assert f"{plugin}@wrong_plugins.py fails says_what_it_is" in told.stdout
    assert "promised: The class has a docstring, and the summary is a short phrase." in told.stdout
    assert "has no docstring: write one sentence that says what it is" in told.stdout
    assert "assert" not in told.stdout and "Error" not in told.stdout
    assert "test_plugin.py" not in told.stdout
    shown = run_kit(plugin, "--clause", "says_what_it_is", "--traceback").stdout
    assert "test_plugin.py" in shown


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        ("Greedy", "`torch.equal(logits[index], before[index])` is not so, for it was: False."),
        ("Raising", "`return TABLE[28]` ended with KeyError: 28."),
    ],
)
def test_a_finding_without_words_is_a_sentence(attribute: str, found: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(ODD, encoding="utf-8")
    told = run_kit(f"logits_processor:{file}:{attribute}", "--clause", "other_rows_stay").stdout
    assert f"  found:    {found}" in told.splitlines()


ODD = '''
from dovetail.interfaces.logits import LogitsProcessor
from dovetail.interfaces.plugin import Info

TABLE = {}

class Greedy(LogitsProcessor):
    """Changes every row."""

    info = Info(summary="changes every row")

    @classmethod
    def wants(cls, params):
        return True

    def add_row(self, tokens):
        pass

    def remove_row(self, row):
        pass

    def apply(self, logits, rows):
        logits += 1

class Raising(Greedy):
    """Looks for what is not there."""

    def add_row(self, tokens):
        return TABLE[28]
'''


def test_known_fault_is_reported_as_such(outcomes: Outcomes) -> None:
    clauses = outcomes[id_of(POLICY, f"{PLAIN}:KnownFailure")]
    assert clauses["keys_compare"] == "xfailed"


@pytest.mark.parametrize("kind", [k.name for k in registry.KINDS.values() if not k.is_value])
def test_every_kind_has_clauses_and_every_word_is_asked(kind: str) -> None:
    modules = [importlib.import_module(name) for name in files_of(kind)]
    asked = {word for module in modules for word in words_of(module)}
    known = set(getattr(interface_of(kind), "known_capabilities", {}))
    assert known - asked - UNASKED.get(kind, set()) == set()


UNASKED = {
    "kv_connector": {"has_ports", "several"},  # how the flag's keys are read
    "communicator": {"overlaps"},  # the clause of begun calls looks whether it is claimed
    "drafter": {"by_depth", "own_weights", "whole_model"},  # how engines load and record it
    "executor": {"launched_ranks", "places_ranks"},  # who starts ranks: a kit has no launcher
    "worker": {"stages"},  # a stage needs others in their own processes: whole engines show it
    "platform": {"host_cores"},  # a claim about who computes: resolve gives it threads
    "tool_parser": {"parallel_calls"},  # every sample with several calls asks it
    # Claims about how it reads its input; runners act on them.
    "model": {"needs_host_rows", "encoder", "leaves_out_tokens", "media", "vectors"},
    # The command asks these: the kit hands over layers, not models, and all that it measures.
    "quantizer": {"tables", "squares"},
    "quantization": {"from_checkpoint"},  # needs a packed checkpoint, which the kit cannot invent
}
"""Words that gate no clause, with the reason."""


def words_of(module: Any) -> set[str]:
    """Return the capability words that a contract file's clauses require."""
    found = set()
    for _, cls in inspect.getmembers(module, inspect.isclass):
        for clause in vars(cls).values():
            found |= {word for word, _ in gates_of(clause)}
    return found
