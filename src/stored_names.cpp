// From the names in the checkpoint to clean ones: no wrappers, no adapters, no buffers that transformers makes itself.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "mapping_steps.h"
#include "names.h"
#include "save_order.h"
#include "unshard/error.h"

namespace unshard {
namespace {

class Cleaner {
 public:
  explicit Cleaner(const MapContext& context) : context_(context), idle_(context.options.drop.size(), true) {
    for (const auto& [from, to] : context.renames) idle_parts_.push_back(from);
    for (const TensorRow& row : context.table) {
      const std::string clean = without_wrappers(own_name(row));
      has_adapters_ = has_adapters_ || (row.origin == 0 && (is_lora(clean) || clean.rfind("base_model.model.", 0) == 0));
    }
  }

  NamedTensors run() {
    for (TensorId id = 0; id < context_.table.size(); ++id) sort_out(id);
    require_one_section();
    require_base_weights();
    sort_as_saved(context_, named_.tensors);
    add_notes();
    return std::move(named_);
  }

 private:
  void sort_out(TensorId id) {
    const TensorRow& row = context_.table[id];
    std::string clean = without_wrappers(own_name(row));
    if (is_dropped(row.name, clean)) {
      if (row.origin == 0) dropped_.push_back(row.name);
      return leave_out(row, "dropped by --drop");
    }
    if (const auto left = context_.adapters.left_out.find(id); left != context_.adapters.left_out.end())
      return leave_out(row, left->second);
    if (const auto name = context_.adapters.names.find(id); name != context_.adapters.names.end()) {
      named_.tensors.push_back({id, name->second});
      return;
    }
    if (is_lora(clean) || (has_adapters_ && is_saved_module(clean))) {
      if (row.origin == 0) adapters_.push_back(row.name);
      return leave_out(row, "LoRA tensor, dropped by --lora drop");
    }
    if (has_adapters_ && row.origin == 0) clean = without_peft(clean);
    if (is_rebuilt(clean, row.shape)) {
      if (row.origin == 0) rebuilt_.push_back(clean);
      return leave_out(row, "buffer that transformers makes itself");
    }
    if (!context_.renames.empty() && row.origin == 0) {
      std::erase_if(idle_parts_, [&](const std::string& part) { return clean.find(part) != std::string::npos; });
      clean = with_parts_replaced(clean, context_.renames);
    }
    if (!context_.options.names_are_published && row.origin == 0) {
      clean = megatron_name(
          context_.family, [&](const Captures& captures) { return context_.names(captures); }, std::move(clean));
    }
    named_.tensors.push_back({id, std::move(clean)});
    if (row.origin == 0) ++in_section_[section_of(row)];
  }

  /// The dictionary that held the tensor: the longest that fits.
  [[nodiscard]] std::string_view section_of(const TensorRow& row) const {
    std::string_view longest;
    if (row.origin != 0) return longest;
    for (const std::string& section : context_.options.sections) {
      if (section.size() > longest.size() && row.name.starts_with(section)) longest = section;
    }
    return longest;
  }
  /// The name in its dictionary.
  [[nodiscard]] std::string_view own_name(const TensorRow& row) const { return std::string_view(row.name).substr(section_of(row).size()); }

  void require_one_section() const {
    if (in_section_.size() < 2) return;
    std::vector<std::string> found;
    for (const auto& [section, count] : in_section_) found.push_back("'" + std::string(section) + "' (" + counted(count, "tensor") + ")");
    throw Error(ErrorCode::bad_input, "the checkpoint: holds weights of several models: " + name_list(found, 12) +
                                          "; leave out all but one, as with --drop '" + std::string(in_section_.rbegin()->first) + "*'");
  }

  bool is_dropped(const std::string& name, const std::string& clean) {
    bool dropped = false;
    for (std::size_t i = 0; i < context_.options.drop.size(); ++i) {
      if (!glob_matches(context_.options.drop[i], name) && !glob_matches(context_.options.drop[i], clean)) continue;
      idle_[i] = false;
      dropped = true;
    }
    return dropped;
  }

  void leave_out(const TensorRow& row, const std::string& reason) {
    if (row.origin == 0) named_.unused.push_back({row.name, reason});
  }

  [[nodiscard]] bool is_rebuilt(const std::string& name, const Shape& shape) const {
    if (context_.like.contains(name)) return false;
    return std::any_of(context_.family.left_out.begin(), context_.family.left_out.end(),
                       [&](const LeftOut& one) { return (!one.rank || *one.rank == shape.size()) && glob_matches(one.pattern, name); });
  }

  void require_base_weights() const {
    if (adapters_.empty() && context_.adapters.left_out.empty()) return;
    if (named_.tensors.empty()) {
      std::vector<std::string> names = adapters_;
      for (const auto& [id, reason] : context_.adapters.left_out) names.push_back(context_.table[id].name);
      std::sort(names.begin(), names.end());
      throw Error(ErrorCode::bad_input,
                  name_list(names) + ": LoRA tensors and no base weights; give the base model's folder with --fill-missing-from");
    }
    if (adapters_.empty() || context_.options.lora.what == LoraChoice::What::drop) return;
    throw Error(ErrorCode::unsupported, name_list(adapters_) + ": " + counted(adapters_.size(), "LoRA tensor") +
                                            " that belong to no adapter that is extracted or folded; leave them out with --lora drop");
  }

  void add_notes() {
    for (const std::string& note : context_.adapters.notes) named_.notes.push_back(note);
    if (!adapters_.empty())
      named_.notes.push_back("Dropped " + counted(adapters_.size(), "LoRA tensor") + "; the base weights are written");
    if (!dropped_.empty()) named_.notes.push_back("Dropped " + counted(dropped_.size(), "tensor") + " by --drop: " + name_list(dropped_));
    for (std::size_t i = 0; i < idle_.size(); ++i) {
      if (idle_[i]) named_.notes.push_back("--drop " + printable(context_.options.drop[i]) + " matches no tensor");
    }
    if (!idle_parts_.empty() && !has_adapters_)  // names of adapters are translated elsewhere
      named_.notes.push_back("--custom-mapping: in no tensor's name: " + name_list(idle_parts_));
    if (!rebuilt_.empty())
      named_.notes.push_back("Left out " + counted(rebuilt_.size(), "buffer") + " that transformers makes itself: " + name_list(rebuilt_));
  }

  const MapContext& context_;
  NamedTensors named_;
  bool has_adapters_ = false;
  std::vector<bool> idle_;                              ///< by pattern of --drop: it has matched nothing
  std::vector<std::string> idle_parts_;                 ///< of --custom-mapping: they were in no name
  std::map<std::string_view, std::size_t> in_section_;  ///< tensors to publish, by section
  std::vector<std::string> adapters_, dropped_, rebuilt_;
};

}  // namespace

NamedTensors clean_names(const MapContext& context) {
  return Cleaner(context).run();
}

}  // namespace unshard
