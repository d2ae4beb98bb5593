// The output layer of a model whose config.json ties it to the embedding: written only where it is something else.
#include <algorithm>
#include <array>
#include <string_view>

#include "mapping_steps.h"
#include "unshard/error.h"

namespace unshard {
namespace {

/// The stored tensor whose first elements the target is: all of it, or without the rows that pad a vocabulary.
std::optional<TensorId> copied_tensor(const MapContext& context, const Target& target) {
  if (target.terms.size() != 1) return std::nullopt;
  const TensorId source = target.terms.front().source;
  const bool same_rank = context.table[source].shape.size() == target.shape.size();
  if (!same_rank || !(target.terms.front() == copy_of(source, target.shape))) return std::nullopt;
  return source;
}

}  // namespace

namespace {

// Model types that were published with false at the top of config.json and true in text_config, which their classes in transformers 5 pass
// on (configuration_llava.py and others, __post_init__). Other types believe the top, and have a head of their own then.
constexpr std::array<std::string_view, 13> tied_by_text{
    "fast_vlm",        "glm4v",         "glm4v_moe",    "glm_ocr",    "hunyuan_vl", "llava",        "llava_next_video",
    "llava_onevision", "minimax_m3_vl", "paddleocr_vl", "qwen2_5_vl", "qwen2_vl",   "video_llama_3"};

bool text_says_tied(const ModelConfig& config) {
  const bool is_passed_on = std::find(tied_by_text.begin(), tied_by_text.end(), config.model_type()) != tied_by_text.end();
  return is_passed_on && config.flag("text_config.tie_word_embeddings").value_or(false);
}

bool tied_by_config(const MapContext& context) {
  const auto flag = context.config.flag("tie_word_embeddings");
  if (!flag && context.config.has("tie_word_embeddings")) {
    throw Error(ErrorCode::bad_input,
                printable(context.config.path(), 4096) + ": tie_word_embeddings is neither true nor false; correct it");
  }
  if (flag) return *flag || text_says_tied(context.config);
  return context.family.tied_by_default.value_or(false);
}

/// An adapter changed one of the two: both are written.
void untie(const MapContext& context, const Tie& tie, Published& published, Mapping& mapping) {
  if (context.options.tie_word_embedding) {
    throw Error(ErrorCode::bad_input, tie.head_name +
                                          ": differs from the embedding once the adapter is folded, but --tie-word-embedding says "
                                          "that it is the same; leave the option out");
  }
  if (tie.head == nullptr) {
    Target head = *tie.embedding;
    head.name = tie.head_name;
    published.add(std::move(head), false);
  }
  mapping.edits.tie_word_embeddings = false;
  mapping.warnings.push_back("The adapter changes only one of " + tie.head_name +
                             " and the embedding, which config.json ties: both are written and tie_word_embeddings becomes false");
}

}  // namespace

bool is_tied(const MapContext& context) {
  return tied_by_config(context) || context.options.tie_word_embedding;
}

Tie find_tie(const MapContext& context, const Published& published) {
  Tie tie;
  tie.by_config = tied_by_config(context);
  tie.tied = tie.by_config || context.options.tie_word_embedding;
  for (const auto& [head, embedding] : context.family.ties) {
    const Target* found_head = published.find(head);
    const Target* found_embedding = published.find(embedding);
    if (found_embedding == nullptr) continue;
    tie.head_name = head;
    tie.head = found_head;
    tie.embedding = found_embedding;
    break;
  }
  return tie;
}

bool needs_comparison(const MapContext& context, const Tie& tie) {
  if (context.adapters.unties || !tie.tied || tie.head == nullptr || tie.embedding == nullptr || !(tie.head->shape == tie.embedding->shape))
    return false;
  return copied_tensor(context, *tie.head) && copied_tensor(context, *tie.embedding);
}

void settle_tie(const MapContext& context, TieAnswer answer, Published& published, Mapping& mapping) {
  const Tie tie = find_tie(context, published);
  if (!tie.tied) return;
  if (context.adapters.unties && tie.embedding != nullptr) return untie(context, tie, published, mapping);
  if (tie.head == nullptr || tie.embedding == nullptr) {
    if (context.options.tie_word_embedding && !tie.by_config) mapping.edits.tie_word_embeddings = true;
    return;
  }
  const std::string head = tie.head->name;
  const std::string embedding = tie.embedding->name;
  const std::size_t place = published.by_name.at(head);
  std::vector<bool> without_head(published.targets.size(), false);
  without_head[place] = true;
  if (published.filled[place]) return published.remove_if(without_head);  // the checkpoint ties it, the folder that fills need not
  if (needs_comparison(context, tie) && answer == TieAnswer::not_asked) {
    throw Error(ErrorCode::internal, head + ": whether it is a copy of " + embedding + " was not settled");
  }
  if (answer == TieAnswer::equal) {
    mapping.targets.unused.push_back({context.table[*copied_tensor(context, *tie.head)].name, "tied copy of " + embedding});
    published.remove_if(without_head);
    if (!tie.by_config) mapping.edits.tie_word_embeddings = true;
    return;
  }
  if (context.options.tie_word_embedding) {
    throw Error(ErrorCode::bad_input, head + ": is stored and differs from " + embedding +
                                          ", but --tie-word-embedding says that it is the same; leave the option out");
  }
  mapping.edits.tie_word_embeddings = false;
  mapping.warnings.push_back("config.json ties " + head + " to " + embedding +
                             ", but the stored ones differ: both are written and tie_word_embeddings becomes false");
}

std::optional<TieQuestion> tie_question(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options) {
  const MapContext context = make_context(table, config, options);
  const Published published = publish_names(context, clean_names(context));
  const Tie tie = find_tie(context, published);
  if (!needs_comparison(context, tie) || published.filled[published.by_name.at(tie.head->name)]) return std::nullopt;
  return TieQuestion{*copied_tensor(context, *tie.embedding), *copied_tensor(context, *tie.head), tie.embedding->shape,
                     dtype_for(context, tie.embedding->name, tie.embedding->dtype)};
}

}  // namespace unshard
