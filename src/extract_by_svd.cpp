// The differences of layers are divided among the ranks, the largest first, one layer at a time; what they become is gathered and written
// by one, since an adapter is small.
#include "extract_by_svd.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cast.h"
#include "command_identity.h"
#include "crc32c.h"
#include "families/families.h"
#include "input_watch.h"
#include "merge_steps.h"
#include "report.h"
#include "steps.h"
#include "svd_energy.h"
#include "svd_pairs.h"
#include "target_reader.h"
#include "unshard/agree.h"
#include "value_bytes.h"
#include "write_out.h"

namespace unshard {
namespace {

/// The decomposition of one layer's difference.
LowRank decompose(TargetReader& reader, std::size_t number, const SvdPair& pair, std::uint64_t most_held_bytes) {
  const Shape& shape = pair.difference.shape;
  const std::uint64_t row_bytes = shape[1] * sizeof(float);
  std::vector<float> held;
  if (shape[0] * row_bytes <= most_held_bytes) {
    held.resize(shape[0] * shape[1]);
    reader.read(number, 0, std::as_writable_bytes(std::span(held)));
  }
  const auto read = [&](std::uint64_t first_row, std::span<float> block) {
    if (held.empty()) return reader.read(number, first_row * row_bytes, std::as_writable_bytes(block));
    std::copy_n(held.begin() + static_cast<std::ptrdiff_t>(first_row * shape[1]), block.size(), block.begin());
  };
  LowRank parts = arithmetic().approximate(shape[0], shape[1], pair.rank, read);
  if (!std::isfinite(parts.square_norm)) {
    throw Error(ErrorCode::bad_input,
                printable(pair.difference.name) + ": the two models differ by NaN or infinity here; no pair can hold that");
  }
  return parts;
}

std::vector<float> transposed(const std::vector<float>& matrix, std::uint64_t columns) {
  std::vector<float> turned(matrix.size());
  const std::uint64_t rows = matrix.size() / columns;
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t column = 0; column < columns; ++column) turned[column * rows + row] = matrix[row * columns + column];
  return turned;
}

/// lora_A [rank, in], then lora_B [out, rank].
struct Factors {
  std::vector<float> a, b;
};
Factors factors_of(LowRank parts, const SvdPair& pair) {
  if (!pair.transposed) return {std::move(parts.right), std::move(parts.left)};
  return {transposed(parts.left, pair.rank), transposed(parts.right, pair.difference.shape[1])};
}

/// The file, on the one rank that writes it.
class Writer {
 public:
  Writer(const Session& session, const TargetFolder& target, const Plan& plan) : plan_(plan) {
    const OutputFile& file = plan.layout.files.front();
    file_ = session.files.open_for_writing(join_path(target.partial, partial_name(file)), false);
  }

  void write(const PlacedTarget& placed, std::span<const std::byte> bytes) {
    write_out(*file_, placed.position, bytes);
    report_.extents.push_back({placed.file, placed.position, placed.position + bytes.size(), crc32c(bytes)});
    report_.written_bytes += bytes.size();
  }

  MoveReport finish() {
    std::sort(report_.extents.begin(), report_.extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    return std::move(report_);
  }

 private:
  const Plan& plan_;
  std::unique_ptr<File> file_;
  MoveReport report_;
};

class Extraction {
 public:
  Extraction(const Session& session, FileCache& files, const Catalog& catalog, const Differences& found, const Output& output,
             const Targets& targets)
      : session_(session), files_(files), catalog_(catalog), found_(found), output_(output), targets_(targets) {
    for (const PlacedTarget& placed : output.plan.layout.placed) places_[placed.target] = &placed;
  }

  /// Collective. Returns what this rank wrote: everything, or nothing.
  MoveReport run(const TargetFolder& target) {
    root_ = target.leader;
    std::unique_ptr<Writer> writer = collectively(
        session_.comm, "extract", [&] { return is_root() ? std::make_unique<Writer>(session_, target, output_.plan) : nullptr; });
    write_whole(writer.get());
    write_pairs(writer.get());
    Bytes energies = bytes_of(energies_);
    session_.comm.broadcast(energies, root_);
    energies_.clear();
    append_values(energies_, energies);
    return writer ? writer->finish() : MoveReport{};
  }

  [[nodiscard]] const std::vector<Energy>& energies() const { return energies_; }  ///< by pair

 private:
  [[nodiscard]] bool is_root() const { return session_.comm.rank() == root_; }

  void write_whole(Writer* writer) {
    Targets whole;
    std::vector<const PlacedTarget*> places;
    for (std::uint32_t i = 0; i < targets_.targets.size(); ++i) {
      if (targets_.targets[i].terms.empty()) continue;
      whole.targets.push_back(targets_.targets[i]);
      places.push_back(places_.at(i));
    }
    TargetReader reader(session_, files_, catalog_, whole, std::vector<int>(whole.targets.size(), root_));
    collectively(session_.comm, "extract", [&] {
      if (writer == nullptr) return;
      for (std::size_t i = 0; i < places.size(); ++i) copy(reader, i, *places[i], *writer);
    });
  }

  static void copy(TargetReader& reader, std::size_t number, const PlacedTarget& placed, Writer& writer) {
    constexpr std::uint64_t most = std::uint64_t{4} << 20;
    std::vector<std::byte> bytes;
    for (std::uint64_t at = 0; at < placed.size_bytes; at += bytes.size()) {
      bytes.resize(std::min(most, placed.size_bytes - at));
      reader.read(number, at, bytes);
      writer.write({placed.target, placed.file, placed.position + at, bytes.size()}, bytes);
    }
  }

  void write_pairs(Writer* writer) {
    const auto ranks = static_cast<std::size_t>(session_.comm.size());
    std::vector<std::size_t> order(found_.pairs.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto cost = [&](std::size_t i) { return volume(found_.pairs[i].difference.shape); };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return cost(a) > cost(b); });
    Targets differences;
    std::vector<int> owners;
    for (std::size_t i = 0; i < order.size(); ++i) {
      differences.targets.push_back(found_.pairs[order[i]].difference);
      owners.push_back(static_cast<int>(i % ranks));
    }
    TargetReader reader(session_, files_, catalog_, differences, owners);
    energies_.resize(order.size());
    for (std::size_t first = 0; first < order.size(); first += ranks) {
      const std::size_t mine = first + static_cast<std::size_t>(session_.comm.rank());
      const Bytes bytes = collectively(session_.comm, "extract", [&] {
        stop_if_signalled(files_.limits());
        return mine < order.size() ? made(reader, mine, order[mine]) : Bytes{};
      });
      const std::vector<Bytes> all = session_.comm.gather(bytes, root_);
      collectively(session_.comm, "extract", [&] {
        for (const Bytes& one : all)
          if (!one.empty()) write_pair(one, *writer);
      });
      for (std::size_t i = first; i < std::min(order.size(), first + ranks); ++i) session_.log.add_progress(cost(order[i]) * sizeof(float));
    }
  }

  Bytes made(TargetReader& reader, std::size_t number, std::size_t pair_number) {
    const SvdPair& pair = found_.pairs[pair_number];
    LowRank parts = decompose(reader, number, pair, files_.limits().buffer_bytes / 2);
    Bytes bytes = bytes_of(std::vector{Energy{pair_number, parts.square_norm, parts.captured}});
    const Factors factors = factors_of(std::move(parts), pair);
    for (const std::vector<float>* values : {&factors.a, &factors.b}) {
      const auto raw = std::as_bytes(std::span(*values));
      bytes.insert(bytes.end(), raw.begin(), raw.end());
    }
    return bytes;
  }

  void write_pair(const Bytes& bytes, Writer& writer) {
    Energy energy;
    std::memcpy(&energy, bytes.data(), sizeof energy);
    energies_[energy.pair] = energy;
    std::span<const std::byte> rest = std::span(bytes).subspan(sizeof energy);
    for (const std::uint32_t half : {0U, 1U}) {
      const auto number = static_cast<std::uint32_t>(2 * energy.pair + half);
      const Target& target = targets_.targets[number];
      const std::uint64_t count = volume(target.shape);
      Bytes cast_bytes(count * info(target.dtype).size_bytes);
      cast(rest.first(count * sizeof(float)), DType::f32, cast_bytes, target.dtype);
      rest = rest.subspan(count * sizeof(float));
      writer.write(*places_.at(number), cast_bytes);
    }
  }

  const Session& session_;
  FileCache& files_;
  const Catalog& catalog_;
  const Differences& found_;
  const Output& output_;
  const Targets& targets_;
  int root_ = 0;
  std::map<std::uint32_t, const PlacedTarget*> places_;
  std::vector<Energy> energies_;
};

void say_differences(const Session& session, const std::vector<TensorRow>& table, const Differences& found) {
  session.log.line("Of the tensors of the fine-tuned model " + std::to_string(found.pairs.size()) +
                   " linear layers differ from the base, " + std::to_string(found.whole.size()) + " other tensors differ, " +
                   std::to_string(found.unchanged.size()) + " are the same");
  if (!found.whole.empty()) {
    std::vector<std::string> names;
    for (const TensorId id : found.whole) names.push_back(table[id].name);
    session.log.warning("no pair can hold these, which are kept whole in the adapter (vLLM refuses such adapters): " +
                        name_list(names, 64));
  }
  if (!found.missing.empty()) session.log.warning("only the base model has these: " + name_list(found.missing, 64));
}

}  // namespace

std::string extract_by_svd(const Session& session, const ExtractLoraOptions& options) {
  const MergeOptions& merge = options.merge;
  const WorkLimits limits = limits_of(session, merge.input);
  constexpr std::uint64_t least_bytes = std::uint64_t{4} << 20;
  require_buffers("extract-lora", limits, least_bytes);
  StepTimes times;
  times.enter("catalog");
  Input input = open_input(session, "hf", {options.base_model});
  InputWatch watch(session.comm, session.files, input.tree, input.source);
  FileCache files(session.files, input.source, limits);
  Catalog catalog = read_proven_catalog(session, "base model", files, input.source, {&input.tree, merge.input.cache_dir});
  Input tuned = open_input(session, "hf", {options.finetuned});
  const ConfigFolder config = find_config(session, tuned.source, "");
  {
    FileCache tuned_files(session.files, tuned.source, limits);
    const Catalog tuned_catalog =
        read_proven_catalog(session, "fine-tuned model", tuned_files, tuned.source, {&tuned.tree, merge.input.cache_dir});
    append_catalog(session.comm, input.source, catalog, tuned.source, tuned_catalog);
    input.tree.entries.merge(tuned.tree.entries);
  }
  watch.extend();
  times.enter("compare");
  const Family family = collectively(session.comm, "config", [&] { return family_of(config.config.model_type(), config.config); });
  const Differences found = find_differences(session, files, catalog, family.transposed, options.rank);
  if (found.pairs.empty() && found.whole.empty())
    throw Error(ErrorCode::bad_input, "extract-lora: the two models are equal; there is nothing to extract");
  if (found.pairs.empty() && found.unchanged.empty() && found.whole.size() > 1) {
    throw Error(ErrorCode::bad_input, "extract-lora: " + printable(options.finetuned, 4096) + " and " +
                                          printable(options.base_model, 4096) + " have no tensor in common; is this its base model?");
  }
  say_differences(session, catalog.tensors, found);

  times.enter("target");
  const std::vector<std::string> sources{options.base_model, options.finetuned};
  const TargetFolder target = check_target_folder(session.comm, session.files, merge.target_dir, sources, merge.overwrite, !merge.dry_run);
  check_links(session, target, input.source);
  const DType dtype = merge.map.dtype.kind == DTypeChoice::Kind::fixed ? merge.map.dtype.fixed : DType::f32;
  const std::vector<std::string> classes = config.config.architectures();
  const bool is_causal = std::any_of(classes.begin(), classes.end(), [](const std::string& name) { return name.ends_with("ForCausalLM"); });
  Mapping mapping;
  Output output;
  const AdapterOutput adapter = svd_output(catalog.tensors, found, options.rank, options.base_model, is_causal ? "CAUSAL_LM" : "", dtype);
  const Layout layout = lay_out(session, input.source, catalog, mapping, {adapter}, "", merge, output);
  output.plan = agree_on_plan(session, mapping.targets, layout, target, merge, {});
  if (merge.dry_run) return show_plan(session, mapping.targets, output.plan, merge, {});
  check_report_path(session, merge.report_path, target, {output.plan.layout.files.front().name, output.indexes.front().name}, sources);
  const std::string identity = command_identity(session.comm, input.tree, input.source, catalog, mapping.targets, output.plan.layout, 0);
  const OpenedPartial partial =
      open_partial(session.comm, session.files, target, output.plan, {identity, merge.restart, false, beside_identity({}, output.indexes)});
  if (is_done_already(session, partial, merge.target_dir)) {
    times.leave();
    return report_merge(session, {merge, input.source, catalog, mapping, output.plan, {}, target, times});
  }

  times.enter("extract");
  if (!found.pairs.empty()) collectively(session.comm, "extract", [] { (void)arithmetic(); });
  std::uint64_t total_bytes = 0;
  for (const SvdPair& pair : found.pairs) total_bytes += volume(pair.difference.shape) * sizeof(float);
  session.log.begin_progress("Decomposing", total_bytes);
  Extraction extraction(session, files, catalog, found, output, mapping.targets);
  const MoveReport moved = extraction.run(target);
  session.log.end_progress();
  say_energies(session, found, extraction.energies());
  times.enter("verify");
  if (merge.verify) verify(session.comm, session.files, target.partial, output.plan, moved.extents, limits, target.blind);
  watch.require_unchanged();
  times.enter("publish");
  publish_adapters(session, target, output, merge);
  times.leave();
  const std::string modules = session.comm.rank() == 0 ? modules_json(found, extraction.energies()) : "";
  return report_merge(session, {merge, input.source, catalog, mapping, output.plan, moved, target, times, modules});
}

}  // namespace unshard
