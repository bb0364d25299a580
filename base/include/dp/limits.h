// Every maximum in one place. Sizes from outside are compared with these before any allocation.
#pragma once

#define DP_ERROR_MESSAGE_MAX 4096
#define DP_NAME_MAX 64     // job, node, model, schedule names, with the terminator
#define DP_PATH_MAX 1024   // paths in specs, with the terminator
#define DP_ID_MAX 32       // job ids ("job-17"), request ids are DP_NAME_MAX
#define DP_ADDRESS_MAX 128 // host:port, unix:path

// specs
#define DP_SPEC_BYTES_MAX (1u << 20)
#define DP_SPEC_DEPTH_MAX 32
#define DP_DIAGS_MAX 20 // problems listed for one file
#define DP_LAYERS_MAX 1024
#define DP_HIDDEN_MAX (1 << 20)
#define DP_HEADS_MAX 65536 // attention heads, and the width of one
#define DP_EXPERTS_MAX 4096
#define DP_EXPERT_SLOTS_MAX (4 * DP_EXPERTS_MAX) // with copies of busy experts
#define DP_VOCABULARY_MAX (1 << 24)
#define DP_PARAMETERS_MAX 1e15 // counts above leave the range in which doubles are exact
#define DP_SEQUENCE_MAX (1 << 24)
#define DP_STEPS_MAX 1000000000
#define DP_GLOBAL_BATCH_MAX (1 << 24)
#define DP_NODES_MAX 16384
#define DP_CLUSTER_LEVELS_MAX 4 // of the fabric beyond scale-up
#define DP_TENSOR_MAX 1024
#define DP_CONTEXT_MAX 1024
#define DP_PLACE_LEVELS_MAX 8            // of where a node hangs: switch-2/rack-7
#define DP_CLUSTERS_MAX 1024             // stored by name
#define DP_CLUSTER_GROUPS_MAX 4096       // sizes of a level's groups, as text
#define DP_CLUSTER_HOSTS_MAX 16384       // names of a cluster's hosts, as a host list
#define DP_TOPOLOGY_BYTES_MAX (4u << 20) // a topology.conf
#define DP_TOPOLOGY_SWITCHES_MAX 16384
#define DP_HOST_LIST_BRACKETS_MAX 4    // of one name
#define DP_SEED_MAX 9007199254740992.0 // what a JSON number holds exactly
#define DP_THREADS_MAX 1024            // that share a rank's computations
#define DP_COMM_UNITS_MAX 1024         // multiprocessors of a device that communicate
#define DP_IMBALANCE_MAX 1024          // fullest expert rank over the mean
#define DP_CHECKPOINTS_KEPT_MAX (1 << 20)
#define DP_PRIORITY_MAX 1000000
#define DP_QUOTA_RANKS_MAX (DP_RANKS_MAX - 1) // more than that is no bound
#define DP_RETRIES_MAX 1000000
#define DP_BACKOFF_S_MAX 86400

// schedules
#define DP_SCHEDULE_BYTES_MAX (256u << 20) // a file with all actions, JSON or CSV
#define DP_PIPELINE_MAX 256
#define DP_STAGES_MAX 1024
#define DP_MICROBATCHES_MAX 65536
#define DP_ACTIONS_MAX (1u << 27)
#define DP_AUTO_ACTIONS_MAX (1u << 23) // of an order that auto looks at, and of all it improves
#define DP_RANKS_MAX 65536             // P x D of one job
#define DP_RANK_STAGES_MAX 32          // stages that one rank holds

// drawings
#define DP_RENDER_SLOTS_MAX 4096   // of the table of a schedule
#define DP_RENDER_FLOWS_MAX 200000 // arrows of a trace

// wire
#define DP_MESSAGE_BYTES_MAX (4u << 20)            // one gRPC message, both ways
#define DP_WIRE_MEMORY_MAX (64u << 20)             // what one message may take when unpacked
#define DP_WIRE_DEPTH_MAX 16                       // messages within messages
#define DP_WIRE_TEXT_MAX 65536                     // one string for people
#define DP_CANDIDATES_MAX 4096                     // of one plan
#define DP_PLAN_SCHEDULE_BYTES_MAX (3u << 20)      // a list of actions that a plan carries, as JSON
#define DP_STATUS_DETAIL_MAX 1000                  // text of a gRPC status
#define DP_RPC_METADATA_BYTES_MAX 16384            // all headers of one call
#define DP_RPC_MESSAGE_TEXT_MAX 2048               // of an error, in "dp-message-bin"
#define DP_FRAME_BYTES_MAX (4u << 20)              // one frame on a local control socket
#define DP_TRANSPORT_BYTES_MAX (1u << 30)          // one message between ranks
#define DP_TRANSPORT_QUEUED_BYTES_MAX (64u << 20)  // on their way from one rank to another
#define DP_TRANSPORT_WAITING_BYTES_MAX (64u << 20) // from one peer to a rank that computes
#define DP_TRANSPORT_HELD_BYTES_MAX (2ull << 30)   // from one peer to a rank that waits
#define DP_TRANSPORT_PARTS_MAX 4
#define DP_TRANSPORT_WORLD_MAX 1024
#define DP_WINDOWS_MAX 256      // of one transport at a time, and their ids
#define DP_WINDOW_NOTES_MAX 256 // of the last puts of one peer that can be asked for
#define DP_WINDOW_BYTES_MAX (1ull << 36)
#define DP_ALLTOALL_TOKENS_MAX (1 << 22)      // of one rank in one micro-batch
#define DP_ALLTOALL_DEPTH_MAX 4               // exchanges of one kind at a time
#define DP_EXPERTS_FILE_BYTES_MAX (32u << 20) // loads of experts, as JSON
#define DP_EXPERT_LOADS_MAX (1u << 18)        // experts of a rank, all its layers
#define DP_STREAM_QUEUE_MAX 1024              // messages waiting on one gRPC stream
#define DP_STREAMS_OF_CALLER_MAX 512          // that one address watches over gRPC at a time
#define DP_STREAMS_MAX 2048                   // all of them together
#define DP_WATCH_QUEUED_MAX 512           // messages for who watches a job, before it catches up
#define DP_EVENTS_QUEUED_MAX 4            // batches of events that wait for their reader
#define DP_LOG_QUEUED_MAX 32              // parts of output that do, before no more are asked for
#define DP_LOG_TAIL_BYTES_MAX (16u << 20) // of one reader's last lines, shared by its ranks
#define DP_JOBS_LISTED_MAX 1000
#define DP_JOBS_ACTIVE_MAX 20000    // that wait or run
#define DP_HISTORY_LISTED_MAX 10000 // entries of the audit in one answer
#define DP_HISTORY_PARTS_MAX 100    // decisions of one job in an answer
#define DP_QUOTAS_LISTED_MAX 100000 // users with a bound, in one answer
#define DP_BACKUPS_MAX 4            // at a time: each a copy beside the database
#define DP_BACKUP_CHUNK_BYTES (256u << 10)
#define DP_REST_CONNECTIONS_MAX 256          // of HTTP clients, idle ones too
#define DP_REST_CALLS_MAX 192                // requests that wait for their answer, streams too
#define DP_REST_BODY_BYTES_MAX (8u << 20)    // of one request; a message has at most the above
#define DP_REST_BODIES_BYTES_MAX (64u << 20) // of all requests at a time
#define DP_REST_HEADER_BYTES_MAX (64u << 10)
#define DP_REST_PATH_BYTES_MAX 4096       // with the query
#define DP_REST_PARAMETERS_MAX 256        // of the query; the library has room for about 1,000
#define DP_PLANNER_SEARCHES_MAX 2         // of callers, at a time
#define DP_PLANNER_QUEUE_MAX 16           // that wait for one of these to end
#define DP_PLANNER_ACTIONS_MAX (1u << 22) // of a schedule that is simulated for a caller
#define DP_SETS_MAX 256                   // key=value of one request
#define DP_METRICS_RANKS_MAX 2048         // of running jobs with series of their own
#define DP_LOG_CHUNK_BYTES_MAX 65536

// command lines
#define DP_CALIBRATE_NODES_MAX 256   // of one call
#define DP_SCHEDULE_CHANGES_MAX 64   // of one kind
#define DP_COMPARED_SCHEDULES_MAX 16 // rows of a table
#define DP_LOCAL_NODES_MAX 64        // of a cluster on one machine
#define DP_ADDRESS_FILE_BYTES_MAX 1024

// ranks on one node
#define DP_AGENT_ASSIGNMENTS_MAX 256            // of all jobs
#define DP_AGENT_TEXT_MAX 512                   // a reason, with the terminator
#define DP_AGENT_OUTBOX_BYTES_MAX (32u << 20)   // that wait for the controller, entries included
#define DP_KEEPER_LEVELS_BYTES_MAX (256u << 20) // a keeper's file for a returning agent
#define DP_LINK_OUT_BYTES_MAX (2u * DP_FRAME_BYTES_MAX) // a usual bound of the waiting output
#define DP_LINK_TEXT_MAX 512
#define DP_INVENTORY_TEXT_MAX 256
#define DP_SYSFS_FILE_BYTES_MAX 16384
#define DP_SYSFS_ENTRIES_MAX 4096 // of one directory
#define DP_TRANSPORT_TAG_TEXT_MAX 96
#define DP_TRANSPORT_STRANGERS_MAX 64 // that connect beside the peers and say nothing
#define DP_NODE_SLOTS_MAX 1024
#define DP_NODE_PORTS_MAX 256 // of its network adapters
#define DP_NODE_NUMA_MAX 256
#define DP_RANK_LOG_BYTES_MAX (16u << 20)        // one rank's output file, rotated once
#define DP_TRACE_STEPS_MAX 8                     // steps of action records kept per job
#define DP_CORPUS_BYTES_MAX (1ull << 42)         // one file
#define DP_CORPUS_FILES_MAX 512                  // of one corpus, kept open
#define DP_CORPUS_SCAN_TOKENS_MAX (1ull << 27)   // read and checked before a job starts
#define DP_TRANSPORT_PLANNED_MS_MAX 2592000000.0 // and never waits longer than 30 days
#define DP_TRANSPORT_BLOCKED_MS_MAX 120000 // an exchange that makes no progress this long fails
#define DP_LINK_STEPS_KEPT 512             // step reports kept per rank for a returning agent
#define DP_LINK_STEPS_BYTES_MAX (1u << 20) // and their bytes
#define DP_LINK_ARGUMENTS_MAX 4096         // arguments plus environment of a started rank

// profiles
#define DP_PROFILE_GEMMS_MAX 256
#define DP_PROFILE_EXCHANGES_MAX 8
#define DP_PROVENANCE_MAX 160
#define DP_PROFILE_BYTES_MAX (1u << 20)
#define DP_DEVICE_SOURCES_MAX 48 // texts that say where figures come from
#define DP_DEVICE_SOURCE_MAX 240
#define DP_PROFILE_FITTED_MAX 1024
#define DP_PROFILE_BASES_MAX 8            // profiles that build on each other
#define DP_PAIR_MODES_MAX 8               // splits of a device that one FB is priced with
#define DP_RANK_LOG_BURST_BYTES (8 << 20) // a rank's output written at once without loss
#define DP_RANK_LOG_BYTES_PER_S (4 << 20) // and for long
#define DP_EVALUATE_TOKENS_MAX (1 << 18)  // of the held-out part, in one evaluation

// what-if texts, tables of costs, measured traces
#define DP_COST_SECONDS_MAX 1e9             // one action, one message
#define DP_COST_BYTES_PER_S_MIN 1e-9        // of a link: a byte takes DP_COST_SECONDS_MAX
#define DP_COST_RANK_BYTES_MAX (1ull << 62) // activations of all chunks of one rank
#define DP_COST_FACTOR_MAX 1e6              // slower, faster
#define DP_WHAT_IF_ITEMS_MAX 1024           // of one text
#define DP_SIM_ITEMS_MAX 64                 // of a list of [sim]
#define DP_SIM_ITEMS_TEXT_MAX 2048
#define DP_SIM_NOISE_MAX 1000000 // factors of a file
#define DP_STAGE_COSTS_BYTES_MAX (4u << 20)
#define DP_CSV_COLUMNS_MAX 64
#define DP_CSV_NUMBER_MAX 64           // characters of one number
#define DP_REPLAY_BYTES_MAX (1u << 30) // one trace
#define DP_REPLAY_OPS_MAX (1u << 24)
#define DP_REPLAY_SECONDS_MAX 1e11 // a clock since 1970 and some

// profilers' traces
#define DP_TRACE_BYTES_MAX (1ull << 31) // as text, packed ones too
#define DP_TRACE_DEPTH_MAX 64           // values within values
#define DP_TRACE_EVENTS_MAX (1u << 23)  // kernels; launches; ranges; operators
#define DP_TRACE_NAMES_MAX (1u << 20)
#define DP_TRACE_TEXT_MAX 512  // characters that are kept of a name
#define DP_TRACE_NUMBER_MAX 64 // characters of a number

// stragglers
#define DP_STRAGGLER_KINDS_MAX 256 // kinds of work of one rank: with its stages, pairs of them
#define DP_STRAGGLER_LINKS_MAX 256 // peers of one rank that it receives from
#define DP_STRAGGLER_WINDOW 16     // steps that scores are medians of
#define DP_STRAGGLER_HISTORY 64    // steps that noise is known by
#define DP_STRAGGLER_PENDING_MAX 8 // steps that some ranks have not reported yet
#define DP_STRAGGLER_NEWS_MAX 4096 // verdicts that nobody has fetched
#define DP_STRAGGLER_THRESHOLD_MAX 100
#define DP_STRAGGLER_TEXT_MAX 512 // the evidence of a verdict, with the terminator

#define DPCTL_TOP_COLUMNS_MAX 512 // refreshes that `dpctl top` remembers

// learning from runs
#define DP_LEARN_STEPS_MIN 8    // measured steps
#define DP_LEARN_CHANGE_MAX 1.5 // of a factor in one run
#define DP_LEARN_FACTOR_MAX 8.0 // of all runs together
#define DP_LEARN_STEPS_KEPT 64  // of each rank, the newest
#define DP_PROFILES_KEPT 64     // of a node's history

// state from rank to rank
#define DP_STATE_PARTS_MAX (1 << 20)          // runs of values that one rank serves
#define DP_STATE_TABLE_BYTES_MAX (256u << 20) // that say which
#define DP_STATE_CHUNK_BYTES (1u << 20)       // of values, in one answer
#define DP_STATE_AHEAD 8                      // chunks that a reader has asked for and not yet got
#define DP_STATE_ELEMENTS_MAX (1ll << 48)     // of one tensor
#define DP_STATE_READERS_MAX 1088             // of one rank, strangers among them
#define DP_STATE_SILENT_MS 20000              // a source that says nothing for so long is lost

// checkpoints
#define DP_TENSOR_DIMS_MAX 8
#define DP_SAFETENSORS_HEADER_BYTES_MAX 100000000u // what the format's own reader takes
#define DP_CHECKPOINT_MANIFEST_BYTES_MAX (16u << 20)
#define DP_CHECKPOINT_FILES_MAX 65536       // of one checkpoint
#define DP_CHECKPOINT_TENSORS_MAX (1 << 24) // of all files of one checkpoint
#define DP_SAVED_WHY_MAX 1024               // why a checkpoint failed
#define DP_TENSOR_NAME_MAX 256              // in a file, with the terminator
#define DP_EXPERT_LOAD_MAX 1e12             // tokens of an expert; sums of them stay exact
