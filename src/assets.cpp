// The files beside the weights: which are copied from the folder with config.json, and which kinds --overwrite removes from an old target.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "unshard/error.h"
#include "unshard/mapping.h"
#include "unshard/publish.h"

namespace unshard {
namespace {

constexpr std::string_view template_folder = "additional_chat_templates";
constexpr std::uint64_t generation_config_limit_bytes = std::uint64_t{16} << 20;

// Written anew, or not part of a model to be loaded: weights and indexes of every framework, adapters, training state, shards of every kind
// of checkpoint.
constexpr std::array<std::string_view, 32> not_copied{
    "config.json",
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.gguf",
    "*.index.json",
    "consolidated*",
    "*.h5",
    "*.hdf5",
    "*.msgpack",
    "*.onnx",
    "*.ckpt",
    "*.ckpt.*",
    "*.distcp",
    "adapter_config.json",
    "adapter_model.*",
    "optimizer*",
    "scheduler*",
    "rng_state*",
    "trainer_state.json",
    "zero_to_fp32.py",
    "latest",
    "latest_checkpointed_iteration.txt",
    "fsdp_config.json",
    "events.out.tfevents.*",
    "*.npz",
    "*.npy",
    "*.pkl",
    "*.lock",
    "*.incomplete",
    "*.part",
};

// What a merge writes or copies, beside tokenizers. Known names only: what a user keeps beside a model is not ours to remove.
constexpr std::array<std::string_view, 29> our_kinds{
    // weights and indexes of an earlier model, whoever wrote them
    "*.safetensors",
    "*.index.json",
    "pytorch_model*.bin",
    "consolidated*",
    "*.h5",
    "*.hdf5",
    "flax_model*.msgpack",
    "adapter_config.json",
    "adapter_model.*",
    // configuration
    "config.json",
    "generation_config.json",
    "params.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "image_processor_config.json",
    "feature_extractor_config.json",
    // remote code
    "configuration_*.py",
    "modeling_*.py",
    "modular_*.py",
    "processing_*.py",
    "image_processing_*.py",
    "video_processing_*.py",
    "feature_extraction_*.py",
    "generation_utils.py",
    // texts about the model
    "README.md",
    "LICENSE*",
    "NOTICE*",
    "USE_POLICY*",
};

constexpr std::array<std::string_view, 20> tokenizer_kinds{
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model*",
    "*.tiktoken",
    "vocab.json",
    "vocab.txt",
    "vocab.bpe",
    "vocab.model",
    "merges.txt",
    "spiece.model",
    "source.spm",
    "target.spm",
    "sentencepiece*.model",
    "tekken.json",
    "normalizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "*.jinja",
    "tokenization_*.py",
};

template <class Patterns>
bool matches_one_of(const Patterns& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view pattern) { return glob_matches(pattern, name); });
}

bool is_copied(std::string_view name) {
  return !name.starts_with('.') && !matches_one_of(not_copied, name);
}

/// Opens the file: what can't be read must be known before anything is written.
Asset checked_asset(FileSystem& files, const std::string& name, const std::string& path, const FileStatus& status) {
  if (status.kind == FileKind::other) {
    throw Error(ErrorCode::bad_input,
                printable(path, 4096) + ": is a link to nothing, or no regular file; repair or remove it, or choose another --hf-config");
  }
  try {
    (void)files.open_for_reading(path);
  } catch (const Error& error) {
    throw Error(ErrorCode::bad_input, std::string(error.what()) + "; repair or remove it, or choose another --hf-config");
  }
  return {name, path, status.size_bytes, status.mtime_ns};
}

void check_generation_config(FileSystem& files, const std::string& path) {
  const std::string text = read_small_file(files, path, generation_config_limit_bytes);
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{' && nlohmann::json::accept(text)) return;
  throw Error(ErrorCode::bad_input, printable(path, 4096) + ": is no JSON object; repair or remove it");
}

}  // namespace

std::vector<Asset> list_assets(FileSystem& files, const std::string& config_folder) {
  std::vector<Asset> assets;
  for (const FolderEntry& entry : files.list(config_folder)) {
    const std::string path = join_path(config_folder, entry.name);
    if (entry.status.kind != FileKind::folder) {
      if (is_copied(entry.name)) assets.push_back(checked_asset(files, entry.name, path, entry.status));
    } else if (entry.name == template_folder) {
      for (const FolderEntry& inner : files.list(path)) {
        if (inner.status.kind == FileKind::folder || !is_copied(inner.name)) continue;
        assets.push_back(checked_asset(files, join_path(entry.name, inner.name), join_path(path, inner.name), inner.status));
      }
    }
    if (entry.name == "generation_config.json" && entry.status.kind == FileKind::file) check_generation_config(files, path);
  }
  std::sort(assets.begin(), assets.end(), [](const Asset& a, const Asset& b) { return a.name < b.name; });
  return assets;
}

std::vector<Asset> with_tokenizer_of(FileSystem& files, std::vector<Asset> assets, const std::vector<std::string>& folders) {
  const auto is_tokenizer = [](const Asset& asset) { return matches_one_of(tokenizer_kinds, asset.name); };
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    std::vector<Asset> own = list_assets(files, *folder);
    std::erase_if(own, [&](const Asset& asset) { return !is_tokenizer(asset); });
    const bool has_one = std::any_of(own.begin(), own.end(), [](const Asset& asset) {
      return asset.name == "tokenizer.json" || asset.name == "tokenizer_config.json" || asset.name == "tokenizer.model";
    });
    if (!has_one) continue;
    std::erase_if(assets, is_tokenizer);
    assets.insert(assets.end(), own.begin(), own.end());
    std::sort(assets.begin(), assets.end(), [](const Asset& a, const Asset& b) { return a.name < b.name; });
    break;
  }
  return assets;
}

bool is_our_kind(const std::string& name) {
  const std::string_view file = base_name(name);
  if (file.size() != name.size()) {
    const std::string_view folder = std::string_view(name).substr(0, name.size() - file.size() - 1);
    if (folder == "lora_adapter") return file == "adapter_config.json" || file == "adapter_model.safetensors";
    return folder == template_folder && glob_matches("*.jinja", file);
  }
  return matches_one_of(our_kinds, name) || matches_one_of(tokenizer_kinds, name);
}

}  // namespace unshard
