// Reading the headers of every file, each on one rank, and bringing the records of each tensor to its home rank.
//
// Records travel and wait as bytes (chunk_wire.h), collected by tensor while the files are read; they become values only at home.
#include "unshard/catalog.h"

#include <algorithm>
#include <optional>
#include <span>
#include <unordered_map>

#include "catalog_notes.h"
#include "chunk_order.h"
#include "chunk_wire.h"
#include "file_copies.h"
#include "file_owners.h"
#include "send_home.h"
#include "tensor_table.h"
#include "thread_loop.h"
#include "twin_files.h"
#include "unshard/agree.h"
#include "unshard/checkpoint_format.h"
#include "unshard/file_cache.h"

namespace unshard {
namespace {

void add_fact(Facts& facts, const std::string& name, std::uint64_t value) {
  const auto [place, is_new] = facts.emplace(name, value);
  if (is_new || place->second == value) return;
  throw Error(ErrorCode::bad_input, "the checkpoint: its files disagree about " + name + ": " + std::to_string(place->second) + " and " +
                                        std::to_string(value) + "; give the files of one checkpoint");
}

/// What the files of one rank hold.
struct OwnFiles {
  std::vector<SeenTensor> tensors;     ///< in order of first sighting
  std::vector<PackedRecords> records;  ///< of each tensor
  std::vector<ObjectNote> objects;
  std::vector<FileFinding> findings;
  std::vector<FilePrint> prints;
  Facts facts;
};

class HeaderReader {
 public:
  HeaderReader(const Source& source, FileCache& files) : source_(source), files_(files), format_(format_named(source.format)) {}

  /// `numbers` ascend. Headers are read on several threads, some files ahead; what they say is added in the order of files.
  void read(std::span<const FileId> numbers) {
    const auto threads = static_cast<std::size_t>(std::max(files_.limits().threads, 1));
    const std::size_t ahead = threads > 1 ? 4 * threads : 1;
    for (; !numbers.empty(); numbers = numbers.subspan(std::min(ahead, numbers.size()))) {
      const auto batch = numbers.first(std::min(ahead, numbers.size()));
      std::vector<ShardContents> contents(batch.size());
      std::vector<std::optional<Error>> failures(batch.size());
      loop_on_threads(batch.size(), threads, [&](std::size_t i) {
        stop_if_signalled(files_.limits());
        failures[i] = attempt([&] { contents[i] = format_.read_headers(source_, batch[i], *files_.get(batch[i])); });
      });
      for (std::size_t i = 0; i < batch.size(); ++i) {
        if (!failures[i]) failures[i] = attempt([&] { take(batch[i], std::move(contents[i])); });
        if (failures[i]) own.findings.push_back({batch[i], true, finding_of(*failures[i], source_.files[batch[i]])});
      }
    }
  }

  /// What the waiting files say about themselves.
  [[nodiscard]] Bytes about() const {
    WireWriter out;
    for (const auto& [file, contents] : waiting_) {
      out.number(file);
      out.bytes(contents.about);
    }
    return out.take();
  }

  /// `all`: what the files of each rank say.
  void place(const std::vector<Bytes>& all) {
    std::vector<std::vector<std::byte>> about(source_.files.size());
    for (const Bytes& bytes : all) {
      for (WireReader in(bytes); !in.at_end();) {
        const std::uint64_t file = in.number_up_to(about.size() - 1);
        const auto text = in.bytes();
        about[file].assign(text.begin(), text.end());
      }
    }
    format_.place(source_, about, waiting_);
    for (auto& [file, contents] : waiting_) {
      const auto failure = attempt([&, file = file, &contents = contents] { add(file, std::move(contents)); });
      if (failure) own.findings.push_back({file, true, finding_of(*failure, source_.files[file])});
    }
    waiting_.clear();
  }

  OwnFiles own;

 private:
  void take(FileId file, ShardContents contents) {
    if (format_.needs_all_files()) {
      waiting_.emplace_back(file, std::move(contents));
    } else {
      add(file, std::move(contents));
    }
  }

  void add(FileId file, ShardContents contents) {
    if (const auto print = print_of(file, contents.pieces)) own.prints.push_back(*print);
    std::size_t expected = 0;  // files of a job list the same tensors in the same order
    for (std::size_t position = 0; position < contents.pieces.size(); ++position) {
      const Piece& piece = contents.pieces[position];
      if (const auto impossible = attempt([&] { static_cast<void>(volume(piece.shape)); })) {
        own.findings.push_back({file, false, {Severity::error, piece.name, impossible->what(), impossible->code()}});
        continue;
      }
      const std::size_t index = index_of(piece, file, position, expected);
      expected = index + 1;
      pack(piece, file, own.records[index]);
    }
    constexpr std::size_t most_notes = 1000;  // of one file, which may be made to hold millions
    if (contents.objects.size() > most_notes) {
      contents.objects[most_notes] = {file, "", std::to_string(contents.objects.size() - most_notes) + " more objects"};
      contents.objects.resize(most_notes + 1);
    }
    for (ObjectNote& note : contents.objects) {
      note.file = file;
      own.objects.push_back(std::move(note));
    }
    for (Finding& finding : contents.findings) own.findings.push_back({file, false, std::move(finding)});
    for (const auto& [name, value] : contents.facts) add_fact(own.facts, name, value);
  }

  std::size_t index_of(const Piece& piece, FileId file, std::size_t position, std::size_t expected) {
    const Sighting sighting{file, position, piece.dtype, piece.shape};
    std::size_t index = expected;
    if (expected >= own.tensors.size() || own.tensors[expected].name != piece.name) {
      const auto [place, is_new] = places_.try_emplace(piece.name, own.tensors.size());
      index = place->second;
      if (is_new) {
        own.tensors.push_back({piece.name, sighting, std::nullopt});
        own.records.emplace_back();
      }
    }
    note_sighting(own.tensors[index], sighting);
    return index;
  }

  static void pack(const Piece& piece, FileId file, PackedRecords& records) {
    for (Chunk chunk : piece.chunks) {
      const std::size_t rank = piece.shape.size();
      if (chunk.box.offset.size() != rank || chunk.strides.size() != rank || !inside(chunk.box, piece.shape)) {
        throw Error(ErrorCode::internal, printable(piece.name) + ": " + to_string(chunk.box) + " is not inside " + to_string(piece.shape));
      }
      chunk.file = file;
      records.add(chunk);
    }
  }

  const Source& source_;
  FileCache& files_;
  const CheckpointFormat& format_;
  std::unordered_map<std::string, std::size_t> places_;
  std::vector<std::pair<FileId, ShardContents>> waiting_;
};

void read_own_files(const Comm& comm, FileCache& files, const Source& source, HeaderReader& reader) {
  reader.read(files_of(file_owners(comm, source), comm.rank()));
  stop_if_signalled(files.limits());  // of a rank that had no files
}

/// Collective. What all ranks' files state.
Facts unite_facts(Comm& comm, const Facts& mine) {
  WireWriter out;
  for (const auto& [name, value] : mine) {
    out.text(name);
    out.number(value);
  }
  const std::vector<Bytes> all = comm.gather_all(out.take());
  return collectively(comm, "catalog", [&] {
    Facts facts;
    for (const Bytes& bytes : all) {
      for (WireReader in(bytes); !in.at_end();) {
        const std::string name = in.text();
        add_fact(facts, name, in.number());
      }
    }
    return facts;
  });
}

bool has_errors(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& finding) { return finding.severity == Severity::error; });
}

}  // namespace

int home_of(TensorId id, std::size_t tensor_count, int ranks) {
  if (tensor_count == 0) return 0;
  return static_cast<int>(static_cast<std::uint64_t>(id) * static_cast<std::uint64_t>(ranks) / tensor_count);
}

Catalog read_catalog(Comm& comm, FileCache& files, const Source& source) {
  HeaderReader reader(source, files);
  collectively(comm, "catalog", [&] { read_own_files(comm, files, source, reader); });
  if (format_named(source.format).needs_all_files()) {
    const std::vector<Bytes> about = comm.gather_all(reader.about());
    collectively(comm, "catalog", [&] { reader.place(about); });
  }
  OwnFiles own = std::move(reader.own);
  Catalog catalog;
  catalog.facts = unite_facts(comm, own.facts);
  UnitedTable table = unite_tables(comm, source, own.tensors);
  catalog.tensors = std::move(table.rows);
  catalog.findings = unite_findings(comm, source, own.findings);
  catalog.findings.insert(catalog.findings.end(), table.findings.begin(), table.findings.end());
  for (Finding& finding : compare_file_copies(comm, files, source)) catalog.findings.push_back(std::move(finding));
  Twins twins = find_twins(comm, files, source, own.prints, format_named(source.format).needs_all_files());
  for (Finding& finding : twins.copies) catalog.findings.push_back(std::move(finding));
  catalog.replicas = std::move(twins.replicas);
  catalog.objects = unite_objects(comm, own.objects);
  catalog.chunks = send_home(comm, catalog.tensors, own.records, table.ids, table.contradictory);
  if (catalog.tensors.empty() && !has_errors(catalog.findings) && !source.files.empty()) {
    catalog.findings.push_back({Severity::error, source.folder, "its files hold no tensors", ErrorCode::bad_input});
  }
  return catalog;
}

}  // namespace unshard
