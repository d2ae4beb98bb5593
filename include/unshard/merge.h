// Start here: the commands as functions. Each is Collective and throws the same Error on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unshard/arithmetic.h"
#include "unshard/comm.h"
#include "unshard/file_system.h"
#include "unshard/log.h"
#include "unshard/mapping.h"
#include "unshard/move.h"

namespace unshard {

/// What every command has: where to read, how much memory.
struct InputOptions {
  std::string backend = "auto";
  std::vector<std::string> local_dirs;
  int threads = 4;
  std::uint64_t buffer_bytes = std::uint64_t{256} << 20;
  std::string cache_dir;           ///< --cache-dir: where catalogs are kept
  bool low_cpu_mem_usage = false;  ///< at most 64 MiB of buffers, one step in flight
};

/// An adapter folder that is folded into the model, `weight` times.
struct AdapterFolder {
  std::string path;
  double weight = 1;
};

struct MergeOptions {
  std::string command = "merge";  ///< for the report
  InputOptions input;
  std::vector<AdapterFolder> adapters;
  std::optional<double> lora_alpha;  ///< of adapters inside the checkpoint, where it does not say
  std::string target_dir;
  std::string hf_config;  ///< --hf-config, else found
  MapOptions map;
  std::vector<std::pair<std::string, std::uint64_t>> config_overrides;  ///< num_attention_heads = 16 …
  std::string like_dir, fill_missing_from, custom_mapping_path;
  std::uint64_t max_shard_bytes = 50'000'000'000;
  std::string output_format = "safetensors";
  int stage = 0;
  std::uint64_t stage_layers = 10;
  IoMode io = IoMode::automatic;
  std::vector<std::pair<std::string, std::string>> mpi_hints;
  bool dry_run = false;
  int dry_run_ranks = 0;  ///< --ranks; 0: as many as run
  bool overwrite = false;
  bool restart = false;  ///< nothing of an earlier run is continued
  bool verify = true;
  std::string report_path;
};

/// The base model is merge.input, a Hugging Face folder; merge.adapters have the folders, weights are set by the method.
struct MergeLoraOptions {
  enum class Method : std::uint8_t { concat, average, weighted } method = Method::concat;
  MergeOptions merge;
  std::vector<double> weights;  ///< --adapter-weights
  bool writes_adapter = false;  ///< --output adapter
};

/// Adapters inside a checkpoint (merge.input), or (finetuned) the difference of two model folders as one.
struct ExtractLoraOptions {
  MergeOptions merge;      ///< input, target, dtype, how to write; lora_alpha
  std::string base_model;  ///< named in adapter_config.json; with `finetuned` the folder of the base model
  std::string finetuned;
  std::uint64_t rank = 0;
};

struct CheckOptions {
  InputOptions input;
  bool deep = false;
};

struct TestOptions {
  InputOptions input;  ///< local_dirs: straight from shards; empty: merged_dir
  std::string merged_dir;
  std::string test_hf_dir;
  std::string base_dir;    ///< --base: how much the merged side differs from this model; "": not asked
  MapOptions map;          ///< for shards: names are mapped as merge does
  std::string hf_config;
  std::vector<std::pair<std::string, std::uint64_t>> config_overrides;
  std::string like_dir, fill_missing_from, custom_mapping_path;
  bool all_tensors = false;  ///< the JSON has every compared tensor, not only those that differ
  Tolerance tolerance;
  bool like_dtype = false;
};

/// What the caller has: ranks, disk, where lines go. Nothing is global.
struct Session {
  Comm& comm;
  FileSystem& files;
  Log& log;
  std::function<int()> signal = {};  ///< the number of a signal that this rank has received, 0 for none; asked often, by any thread
};

/// Results are JSON texts for --json on rank 0 (elsewhere ""); `complete` / `equal` decide the exit code.
struct CheckResult {
  bool complete = false;
  std::string json;
};
struct TestResult {
  bool equal = false;
  bool changed = true;  ///< false: with --base, and nothing differs from the base model
  std::string json;
};

/// Returns the JSON result.
std::string merge(const Session& session, const MergeOptions& options);
std::string merge_lora(const Session& session, const MergeLoraOptions& options);
std::string extract_lora(const Session& session, const ExtractLoraOptions& options);
CheckResult check(const Session& session, const CheckOptions& options);
TestResult test(const Session& session, const TestOptions& options);
/// Prints (or, `json`, returns) everything that `path` holds; a file or a folder of any format.
std::string inspect(const Session& session, const std::string& path, bool json, const std::string& cache_dir = "");

}  // namespace unshard
