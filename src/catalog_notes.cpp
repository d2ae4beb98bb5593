#include "catalog_notes.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "unshard/agree.h"

namespace unshard {
namespace {

constexpr std::size_t most_files_listed = 20;
constexpr std::size_t most_tensor_findings = 100;
constexpr std::size_t most_objects = 1000;

/// One finding about a tensor, made in `files` files, first in `file`.
struct Repeated {
  FileId file = 0;
  std::uint64_t order = 0;  ///< among the findings of its first file
  std::uint64_t files = 0;
  Finding finding;
};

using Key = std::tuple<std::string, std::string>;

/// By subject and text.
class RepeatedFindings {
 public:
  void add(const Repeated& repeated) {
    const auto [place, is_new] = by_key_.try_emplace({repeated.finding.subject, repeated.finding.text}, repeated);
    if (is_new) return;
    Repeated& known = place->second;
    known.files += repeated.files;
    if (std::tie(repeated.file, repeated.order) < std::tie(known.file, known.order))
      std::tie(known.file, known.order) = std::tie(repeated.file, repeated.order);
  }
  [[nodiscard]] std::vector<Repeated> sorted() const {
    std::vector<Repeated> list;
    for (const auto& [key, repeated] : by_key_) list.push_back(repeated);
    std::sort(list.begin(), list.end(), [](const Repeated& a, const Repeated& b) {
      return std::tie(a.file, a.order, a.finding.subject, a.finding.text) < std::tie(b.file, b.order, b.finding.subject, b.finding.text);
    });
    return list;
  }

 private:
  std::map<Key, Repeated> by_key_;
};

Bytes encode(const std::vector<FileFinding>& mine) {
  WireWriter out;
  RepeatedFindings repeated;
  std::uint64_t order = 0;
  for (const FileFinding& found : mine) {
    if (!found.whole_file) {
      repeated.add({found.file, order++, 1, found.finding});
      continue;
    }
    out.number(1);
    out.number(found.file);
    write_finding(out, found.finding);
  }
  for (const Repeated& found : repeated.sorted()) {
    out.number(0);
    out.number(found.file);
    out.number(found.order);
    out.number(found.files);
    write_finding(out, found.finding);
  }
  return out.take();
}

struct United {
  std::map<FileId, Finding> files;
  RepeatedFindings tensors;
};

United decode(const std::vector<Bytes>& all) {
  United united;
  for (const Bytes& bytes : all) {
    for (WireReader in(bytes); !in.at_end();) {
      const bool whole_file = in.number_up_to(1) == 1;
      Repeated found;
      found.file = static_cast<FileId>(in.number_up_to(UINT32_MAX));
      if (!whole_file) {
        found.order = in.number();
        found.files = in.number();
      }
      found.finding = read_finding(in);
      if (whole_file) {
        united.files.try_emplace(found.file, std::move(found.finding));
      } else {
        united.tensors.add(found);
      }
    }
  }
  return united;
}

void append_files(const Source& source, const std::map<FileId, Finding>& files, std::vector<Finding>& findings) {
  std::vector<std::uint64_t> others;
  for (const auto& [file, finding] : files) {
    if (findings.size() < most_files_listed) {
      findings.push_back(finding);
    } else {
      others.push_back(source.world_size > 0 ? source.files.at(file).rank : file);
    }
  }
  if (others.empty()) return;
  std::sort(others.begin(), others.end());
  findings.push_back({Severity::error, source.folder,
                      std::to_string(others.size()) + " more files can't be read: " + (source.world_size > 0 ? "ranks " : "files number ") +
                          as_ranges(others),
                      files.rbegin()->second.code});
}

void append_tensors(const Source& source, const RepeatedFindings& tensors, std::vector<Finding>& findings) {
  std::size_t listed = 0, errors = 0;
  ErrorCode code = ErrorCode::bad_input;
  for (Repeated& found : tensors.sorted()) {
    if (listed == most_tensor_findings) {
      if (found.finding.severity == Severity::error) ++errors;
      code = found.finding.code;
      continue;
    }
    ++listed;
    const std::string& label = source.files.at(found.file).label;
    if (found.finding.subject != label && found.finding.subject != source.folder) {
      found.finding.text +=
          " (in " + printable(label, 4096) + (found.files > 1 ? " and " + std::to_string(found.files - 1) + " more files)" : ")");
    }
    findings.push_back(std::move(found.finding));
  }
  if (errors > 0) findings.push_back({Severity::error, source.folder, std::to_string(errors) + " more findings of this kind", code});
}

}  // namespace

std::vector<Finding> unite_findings(Comm& comm, const Source& source, const std::vector<FileFinding>& mine) {
  const Bytes encoded = collectively(comm, "catalog", [&] { return encode(mine); });
  const std::vector<Bytes> all = comm.gather_all(encoded);
  return collectively(comm, "catalog", [&] {
    const United united = decode(all);
    std::vector<Finding> findings;
    append_files(source, united.files, findings);
    append_tensors(source, united.tensors, findings);
    return findings;
  });
}

std::vector<ObjectNote> unite_objects(Comm& comm, const std::vector<ObjectNote>& mine) {
  using Kind = std::pair<std::string, std::string>;
  const auto pack = [&] {
    WireWriter out;
    std::map<Kind, bool> sent;
    for (const ObjectNote& note : mine) {
      if (sent.size() >= most_objects || !sent.try_emplace({note.key, note.what}, true).second) continue;
      out.number(note.file);
      out.text(note.key);
      out.text(note.what);
    }
    return out.take();
  };
  const std::vector<Bytes> all = comm.gather_all(collectively(comm, "catalog", pack));
  return collectively(comm, "catalog", [&] {
    std::map<Kind, std::pair<FileId, std::size_t>> lowest;
    std::size_t order = 0;
    for (const Bytes& bytes : all) {
      for (WireReader in(bytes); !in.at_end();) {
        const auto file = static_cast<FileId>(in.number_up_to(UINT32_MAX));
        std::string key = in.text();
        std::string what = in.text();
        const std::pair<FileId, std::size_t> place{file, order++};
        const auto [known, is_new] = lowest.try_emplace({std::move(key), std::move(what)}, place);
        if (!is_new && place < known->second) known->second = place;
      }
    }
    std::vector<std::pair<std::pair<FileId, std::size_t>, ObjectNote>> sorted;
    for (const auto& [kind, place] : lowest) sorted.push_back({place, {place.first, kind.first, kind.second}});
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    if (sorted.size() > most_objects) sorted.resize(most_objects);
    std::vector<ObjectNote> notes;
    for (auto& [place, note] : sorted) notes.push_back(std::move(note));
    return notes;
  });
}

void write_finding(WireWriter& out, const Finding& finding) {
  out.number(static_cast<std::uint64_t>(finding.severity));
  out.number(static_cast<std::uint64_t>(finding.code));
  out.text(finding.subject);
  out.text(finding.text);
}

Finding read_finding(WireReader& in) {
  Finding finding;
  finding.severity = static_cast<Severity>(in.number_up_to(static_cast<std::uint64_t>(Severity::error)));
  finding.code = static_cast<ErrorCode>(in.number_up_to(255));
  finding.subject = in.text();
  finding.text = in.text();
  return finding;
}

Finding finding_of(const Error& error, const ShardFile& file) {
  std::string text = error.what();
  for (const std::string& name : {file.label, printable(file.label), printable(file.label, 4096), file.path, printable(file.path, 4096)}) {
    if (!text.starts_with(name + ": ")) continue;
    text.erase(0, name.size() + 2);
    break;
  }
  return {Severity::error, file.label, text, error.code()};
}

}  // namespace unshard
