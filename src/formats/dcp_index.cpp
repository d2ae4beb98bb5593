#include "formats/dcp_index.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "catalog_notes.h"
#include "formats/dcp_state.h"
#include "formats/shard_files.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using PiecesByFile = std::map<std::string, std::vector<DcpPiece>>;

void write_piece(WireWriter& out, const DcpPiece& piece) {
  out.number(piece.tensor);
  out.values(piece.box.offset);
  out.values(piece.box.extent);
  out.number(piece.position);
  out.number(piece.size_bytes);
}

DcpPiece read_piece(WireReader& in, const std::vector<IndexedTensor>& tensors) {
  DcpPiece piece;
  piece.tensor = static_cast<std::uint32_t>(in.number_up_to(tensors.size() - 1));
  const std::size_t rank = tensors[piece.tensor].shape.size();
  piece.box.offset = in.values(rank);
  piece.box.extent = in.values(rank);
  piece.position = in.number();
  piece.size_bytes = in.number();
  return piece;
}

/// `__<rank>_<n>.distcp`, perhaps with something in front: the rank, for the order of files.
std::uint32_t rank_in(std::string_view name) {
  const auto mark = name.rfind("__");
  std::uint32_t rank = 0;
  for (std::size_t i = mark == std::string_view::npos ? name.size() : mark + 2; i < name.size() && name[i] >= '0' && name[i] <= '9'; ++i) {
    if (rank >= UINT32_MAX / 16) return UINT32_MAX / 16;
    rank = rank * 10 + static_cast<std::uint32_t>(name[i] - '0');
  }
  return rank;
}

/// Packs one `.metadata`.
class Packer {
 public:
  Packer(const std::vector<DcpEntry>& entries, const EntryKinds& kinds, const std::string& label)
      : entries_(entries), kinds_(kinds), label_(label) {}

  Bytes run() {
    for (std::size_t i = 0; i < entries_.size(); ++i) sort_out(entries_[i], kinds_.reasons[i]);
    write_tensors();
    write_files();
    write_set_aside();
    out_.number(kinds_.sections.size());
    for (const std::string& section : kinds_.sections) out_.text(section);
    out_.number(findings_.size());
    for (const Finding& finding : findings_) write_finding(out_, finding);
    out_.text(state_.file);
    out_.number(state_.position);
    out_.number(state_.size_bytes);
    return out_.take();
  }

 private:
  void sort_out(const DcpEntry& entry, const std::string& reason) {
    if (!reason.empty()) {
      aside_.push_back({&entry, reason});
      const bool is_state = !entry.is_tensor && entry.name.starts_with("common_state/") && entry.items.size() == 1;
      if (is_state) state_ = {entry.items[0].file, entry.items[0].position, entry.items[0].size_bytes};
      return;
    }
    const auto id = static_cast<std::uint32_t>(weights_.size());
    weights_.push_back(&entry);
    if (!entry.problem.empty()) {
      findings_.push_back({Severity::error, entry.name, "in " + printable(label_) + ": " + entry.problem, ErrorCode::bad_input});
      return;
    }
    for (const DcpItem& item : entry.items) {
      if (item.file.empty()) continue;  // no elements
      std::vector<DcpPiece>& pieces = files_[item.file];
      if (volume(item.box.extent) == 0) continue;
      if (!item.transform.empty()) return refuse_transform(entry, item);
      pieces.push_back({id, item.box, item.position, item.size_bytes});
    }
  }

  void refuse_transform(const DcpEntry& entry, const DcpItem& item) {
    findings_.push_back({Severity::error, entry.name,
                         "is encoded by " + printable(item.transform) + " in " + printable(item.file) +
                             ", which this version can't undo; save it without transforms",
                         ErrorCode::unsupported});
  }

  void write_tensors() {
    out_.number(weights_.size());
    for (const DcpEntry* entry : weights_) {
      out_.text(entry->name);
      out_.number(static_cast<std::uint64_t>(entry->dtype));
      out_.shape(entry->shape);
    }
  }

  void write_files() {
    out_.number(files_.size());
    for (auto& [name, pieces] : files_) {
      out_.text(name);
      std::sort(pieces.begin(), pieces.end(), [](const DcpPiece& a, const DcpPiece& b) { return a.position < b.position; });
      out_.number(pieces.size());
      for (const DcpPiece& piece : pieces) write_piece(out_, piece);
    }
  }

  void write_set_aside() {
    std::set<std::string> side_files;
    out_.number(aside_.size());
    for (const auto& [entry, reason] : aside_) {
      out_.text(entry->name);
      out_.number(entry->is_tensor ? 1 : 0);
      if (entry->is_tensor) {
        out_.number(static_cast<std::uint64_t>(entry->dtype));
        out_.shape(entry->shape);
      }
      out_.text(reason);
      for (const DcpItem& item : entry->items) {
        if (!item.file.empty() && !files_.contains(item.file)) side_files.insert(item.file);
      }
    }
    out_.number(side_files.size());
    for (const std::string& name : side_files) out_.text(name);
  }

  const std::vector<DcpEntry>& entries_;
  const EntryKinds& kinds_;
  const std::string& label_;
  std::vector<const DcpEntry*> weights_;
  std::vector<std::pair<const DcpEntry*, std::string>> aside_;
  PiecesByFile files_;
  std::vector<Finding> findings_;
  StateObject state_;  ///< of Megatron-core since 0.19
  WireWriter out_;
};

/// Unites what all index files say.
class Applier {
 public:
  Applier(const Tree& tree, Source& source) : tree_(tree), source_(source) {}

  void add(const Bytes& packed) {
    if (packed.empty()) return;  // a finding already
    WireReader in(packed);
    const std::vector<std::uint32_t> ids = read_tensors(in);
    read_files(in, ids);
    read_set_aside(in);
    for (std::size_t count = in.count(); count > 0; --count) sections_.insert(in.text());
    for (std::size_t count = in.count(); count > 0; --count) source_.findings.push_back(read_finding(in));
    StateObject state;
    state.file = in.text();
    state.position = in.number();
    state.size_bytes = in.number();
    if (!state.file.empty()) source_.state = std::move(state);
  }

  void finish() {
    source_.sections.assign(sections_.begin(), sections_.end());
    place_files();
    note_side_files();
  }

 private:
  std::vector<std::uint32_t> read_tensors(WireReader& in) {
    std::vector<std::uint32_t> ids(in.count());
    here_.clear();
    for (std::uint32_t& id : ids) {
      IndexedTensor tensor{in.text(), static_cast<DType>(in.number_up_to(static_cast<std::uint64_t>(DType::c128))), in.shape()};
      const auto [place, is_new] = ids_.try_emplace(tensor.name, static_cast<std::uint32_t>(source_.tensors.size()));
      id = place->second;
      here_.push_back(tensor);
      if (is_new) {
        source_.tensors.push_back(std::move(tensor));
      } else if (const IndexedTensor& known = source_.tensors[id]; known.dtype != tensor.dtype || !(known.shape == tensor.shape)) {
        throw Error(ErrorCode::bad_input, printable(tensor.name) + ": is " + std::string(info(known.dtype).name) + " " +
                                              to_string(known.shape) + " by one .metadata and " + std::string(info(tensor.dtype).name) +
                                              " " + to_string(tensor.shape) + " by another; give the files of one checkpoint");
      }
    }
    return ids;
  }

  void read_files(WireReader& in, const std::vector<std::uint32_t>& ids) {
    for (std::size_t files = in.count(); files > 0; --files) {
      std::vector<DcpPiece>& pieces = files_[in.text()];
      for (std::size_t count = in.count(); count > 0; --count) {
        pieces.push_back(read_piece(in, here_));
        pieces.back().tensor = ids[pieces.back().tensor];
      }
    }
  }

  void read_set_aside(WireReader& in) {
    for (std::size_t count = in.count(); count > 0; --count) {
      SetAside aside;
      aside.name = in.text();
      if (in.number_up_to(1) == 1) {
        aside.dtype = static_cast<DType>(in.number_up_to(static_cast<std::uint64_t>(DType::c128)));
        aside.shape = in.shape();
      }
      aside.reason = in.text();
      if (aside_.insert(aside.name).second) source_.set_aside.push_back(std::move(aside));
    }
    for (std::size_t count = in.count(); count > 0; --count) side_files_.insert(in.text());
  }

  void place_files() {
    std::vector<std::string> missing;
    for (auto& [name, pieces] : files_) {
      auto file = shard_named(tree_, source_.folders, name);
      if (!file) {
        missing.push_back(name);
        continue;
      }
      if (!is_usable(tree_, *file, source_.findings)) continue;
      file->rank = rank_in(base_name(name));
      WireWriter contents;
      for (const DcpPiece& piece : pieces) write_piece(contents, piece);
      file->contents = contents.take();
      source_.files.push_back(std::move(*file));
    }
    sort_shards(source_.files);
    if (missing.empty()) return;
    source_.findings.push_back({Severity::error, source_.folder,
                                "missing " + name_list(missing, 64) + ": .metadata names " + (missing.size() == 1 ? "it" : "them") +
                                    "; copy what is missing here, or give the folder that has it with --local-dir as well",
                                ErrorCode::bad_input});
  }

  void note_side_files() {
    std::vector<std::string> missing;
    for (const std::string& name : side_files_) {
      if (!files_.contains(name) && !shard_named(tree_, source_.folders, name)) missing.push_back(name);
    }
    if (missing.empty()) return;
    source_.findings.push_back({Severity::note, source_.folder,
                                "missing " + name_list(missing, 64) + ", with no weights in " + (missing.size() == 1 ? "it" : "them") +
                                    "; merging the model does not need " + (missing.size() == 1 ? "it" : "them"),
                                ErrorCode::bad_input});
  }

  const Tree& tree_;
  Source& source_;
  std::unordered_map<std::string, std::uint32_t> ids_;
  std::vector<IndexedTensor> here_;  ///< of the index file at hand
  PiecesByFile files_;
  std::set<std::string> side_files_, sections_, aside_;
};

}  // namespace

EntryKinds kinds_by_path(const std::vector<DcpEntry>& entries) {
  EntryKinds kinds;
  std::vector<const std::vector<std::string>*> paths;
  for (const DcpEntry& entry : entries) {
    if (entry.is_tensor) paths.push_back(&entry.path);
  }
  StateKinds state = kinds_of_state(paths);
  kinds.sections = std::move(state.sections);
  std::size_t tensor = 0;
  for (const DcpEntry& entry : entries) {
    kinds.reasons.push_back(entry.is_tensor ? std::move(state.reasons[tensor++]) : "an object, not a tensor");
  }
  return kinds;
}

Bytes pack_dcp_index(const std::vector<DcpEntry>& entries, const EntryKinds& kinds, const std::string& label) {
  return Packer(entries, kinds, label).run();
}

void apply_dcp_index(const Tree& tree, std::span<const Bytes> packed, Source& source) {
  Applier applier(tree, source);
  for (const Bytes& bytes : packed) applier.add(bytes);
  applier.finish();
}

std::vector<DcpPiece> unpack_contents(const Source& source, const ShardFile& file) {
  std::vector<DcpPiece> pieces;
  for (WireReader in(file.contents); !in.at_end();) pieces.push_back(read_piece(in, source.tensors));
  std::sort(pieces.begin(), pieces.end(), [](const DcpPiece& a, const DcpPiece& b) { return a.position < b.position; });
  return pieces;
}

}  // namespace unshard
