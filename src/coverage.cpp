// Every element of every tensor exactly once, proven on boxes before a byte moves.
#include <algorithm>
#include <unordered_set>

#include "box_cover.h"
#include "catalog_notes.h"
#include "chunk_order.h"
#include "copies.h"
#include "side_state.h"
#include "unshard/agree.h"
#include "unshard/catalog.h"
#include "wire.h"

namespace unshard {
namespace {

constexpr std::size_t most_findings = 50;
constexpr std::size_t names_listed = 6;

bool is_error(const Finding& finding) {
  return finding.severity == Severity::error;
}

/// Whether files of the checkpoint are missing or can't be read: then holes are no news of their own.
bool lacks_files(const Source& source, const Catalog& catalog) {
  if (std::any_of(source.findings.begin(), source.findings.end(), is_error)) return true;
  if (catalog.findings.empty()) return false;
  std::unordered_set<std::string_view> labels{source.folder};
  for (const ShardFile& file : source.files) labels.insert(file.label);
  return std::any_of(catalog.findings.begin(), catalog.findings.end(),
                     [&](const Finding& f) { return is_error(f) && labels.count(f.subject) > 0; });
}

/// What the home rank of some tensors found.
struct Proof {
  std::vector<TensorFinding> findings;
  std::vector<std::string> incomplete;  ///< names of tensors with holes that missing files explain
  bool has_other_holes = false;
};

class CoverageProof {
 public:
  CoverageProof(const Comm& comm, const Source& source, Catalog& catalog)
      : source_(source), catalog_(catalog), lacks_files_(lacks_files(source, catalog)) {
    for (const Finding& finding : catalog.findings) {
      if (is_error(finding)) faulty_.insert(finding.subject);
    }
    const std::size_t count = catalog.tensors.size();
    while (first_ < count && home_of(static_cast<TensorId>(first_), count, comm.size()) < comm.rank()) ++first_;
    last_ = first_;
    while (last_ < count && home_of(static_cast<TensorId>(last_), count, comm.size()) == comm.rank()) ++last_;
  }

  /// Leaves one chunk of each box: the one in the lowest file.
  void drop_copies() {
    auto& chunks = catalog_.chunks;
    const auto same_piece = [](const Chunk& a, const Chunk& b) { return a.tensor == b.tensor && a.box == b.box; };
    chunks.erase(std::unique(chunks.begin(), chunks.end(), same_piece), chunks.end());
  }

  void check(Proof& proof) {
    std::size_t next = 0;
    for (std::size_t id = first_; id < last_; ++id) {
      boxes_.clear();
      const std::size_t first = next;
      for (; next < catalog_.chunks.size() && catalog_.chunks[next].tensor == id; ++next) boxes_.push_back(catalog_.chunks[next].box);
      const TensorRow& row = catalog_.tensors[id];
      if (volume(row.shape) == 0 || faulty_.count(row.name) > 0 || is_side_state(row.name)) continue;
      const Cover cover = check_cover(row.shape, boxes_);
      if (cover.kind == Cover::Kind::exact) continue;
      const bool is_hole = cover.kind == Cover::Kind::hole;
      proof.has_other_holes = proof.has_other_holes || (is_hole && !lacks_files_);
      if (is_hole && lacks_files_) {
        proof.incomplete.push_back(row.name);
      } else {
        proof.findings.push_back({static_cast<TensorId>(id), {Severity::error, row.name, text(row, cover, first), ErrorCode::bad_input}});
      }
    }
  }

 private:
  [[nodiscard]] std::string label(std::size_t chunk) const { return printable(source_.files[catalog_.chunks[chunk].file].label, 4096); }
  [[nodiscard]] std::string text(const TensorRow& row, const Cover& cover, std::size_t first) const {
    const std::string where = to_string(cover.where) + " of " + to_string(row.shape);
    if (cover.kind == Cover::Kind::hole) return where + " is in no file; the checkpoint is not complete";
    if (cover.kind == Cover::Kind::irregular) return "its " + std::to_string(boxes_.size()) + " pieces lie too irregularly to be checked";
    const std::size_t a = first + cover.first, b = first + cover.second;
    return where + " is in two pieces, " + to_string(boxes_[cover.first]) + " of " + label(a) + " and " + to_string(boxes_[cover.second]) +
           " of " + label(b) + "; give the files of one checkpoint";
  }

  const Source& source_;
  Catalog& catalog_;
  bool lacks_files_;
  std::unordered_set<std::string_view> faulty_;
  std::size_t first_ = 0, last_ = 0;
  std::vector<Box> boxes_;
};

Bytes encode(const Proof& proof) {
  WireWriter out;
  out.number(proof.findings.size());
  out.number(proof.incomplete.size());
  for (std::size_t i = 0; i < std::min(proof.incomplete.size(), names_listed); ++i) out.text(proof.incomplete[i]);
  for (std::size_t i = 0; i < std::min(proof.findings.size(), most_findings); ++i) write_finding(out, proof.findings[i].finding);
  return out.take();
}

/// All proofs as findings: homes follow one another in the order of tensors, so the first of each rank are enough to list the first of all.
std::vector<Finding> unite(const std::vector<Bytes>& all, const Source& source, std::size_t tensor_count) {
  std::vector<Finding> findings;
  std::vector<std::string> names;
  std::uint64_t total = 0, incomplete = 0;
  for (const Bytes& bytes : all) {
    WireReader in(bytes);
    total += in.number();
    const std::uint64_t here = in.number();
    incomplete += here;
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(here, names_listed); ++i) names.push_back(in.text());
    while (!in.at_end()) findings.push_back(read_finding(in));
  }
  if (findings.size() > most_findings) findings.resize(most_findings);
  if (total > findings.size()) {
    findings.push_back(
        {Severity::error, source.folder, std::to_string(total - findings.size()) + " more findings of this kind", ErrorCode::bad_input});
  }
  if (incomplete > 0) {
    names.resize(std::min(names.size(), names_listed));
    const std::uint64_t others = incomplete - names.size();
    findings.push_back({Severity::error, source.folder,
                        "parts of " + std::to_string(incomplete) + " of " + std::to_string(tensor_count) +
                            " tensors are in files that are missing or can't be read: " + name_list(names, names_listed) +
                            (others > 0 ? " and " + std::to_string(others) + " more" : ""),
                        ErrorCode::bad_input});
  }
  return findings;
}

/// Collective. What each home rank counted, by tensor on every rank.
std::vector<NonFinite> unite_counts(Comm& comm, const std::map<TensorId, NonFinite>& mine, std::size_t tensor_count) {
  WireWriter out;
  for (const auto& [tensor, found] : mine) {
    out.number(tensor);
    out.number(found.nan);
    out.number(found.infinite);
  }
  std::vector<NonFinite> counts(tensor_count);
  for (const Bytes& bytes : comm.gather_all(out.take())) {
    for (WireReader in(bytes); !in.at_end();) {
      NonFinite& of = counts.at(in.number());
      of.nan = in.number();
      of.infinite = in.number();
    }
  }
  return counts;
}

}  // namespace

Coverage prove_coverage(Comm& comm, FileCache& files, const Source& source, Catalog& catalog, const CoverageOptions& options) {
  Proof proof;
  CopyFindings copies = compare_copies(comm, files, source, catalog, options);
  proof.findings = std::move(copies.findings);
  const Bytes mine = collectively(comm, "coverage", [&] {
    CoverageProof coverage(comm, source, catalog);
    coverage.drop_copies();
    coverage.check(proof);
    std::stable_sort(proof.findings.begin(), proof.findings.end(),
                     [](const TensorFinding& a, const TensorFinding& b) { return a.tensor < b.tensor; });
    return encode(proof);
  });
  const std::vector<Bytes> all = comm.gather_all(mine);
  const bool has_holes = comm.reduce_all(proof.has_other_holes ? 1 : 0, Reduction::max) == 1;
  collectively(comm, "coverage", [&] {
    std::vector<Finding> found = unite(all, source, catalog.tensors.size());
    if (has_holes) catalog.findings.insert(catalog.findings.end(), catalog.replicas.begin(), catalog.replicas.end());
    for (Finding& finding : found) catalog.findings.push_back(std::move(finding));
  });
  if (!options.deep) return {};
  return {unite_counts(comm, copies.non_finite, catalog.tensors.size())};
}

}  // namespace unshard
