#include "catalog_cache.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "catalog_notes.h"
#include "catalog_tables.h"
#include "crc32c.h"
#include "formats/little_endian.h"
#include "sha256.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "value_bytes.h"

namespace unshard {
namespace {

constexpr std::string_view magic = "UNSHCAT3";  // changes with the meaning of any table
constexpr std::uint64_t most_cache_bytes = std::uint64_t{16} << 30;

/// The files of the source as the listing has them; none when one of them can't be told from others by that.
std::optional<std::vector<CachedFile>> files_of(FileSystem& system, const Tree& tree, const Source& source) {
  std::vector<CachedFile> files;
  for (const auto* list : {&source.files, &source.index_files}) {  // chunks have numbers of the first list
    for (const ShardFile& file : *list) {
      const TreeEntry* entry = tree.find(file.path);
      if (entry == nullptr || !file.copies.empty() || entry->status.inode == 0) return std::nullopt;
      files.push_back({system.canonical(file.path), entry->status.size_bytes, entry->status.mtime_ns, entry->status.inode});
    }
  }
  if (files.empty()) return std::nullopt;
  return files;
}

/// One file for the same paths, read with the same help: what else the headers of a file are compared or placed with.
std::string path_of(const std::string& cache_dir, const Source& source, const std::vector<CachedFile>& files) {
  Sha256 sha;
  const auto add = [&](const std::string& text) { sha.add(std::as_bytes(std::span(text.c_str(), text.size() + 1))); };
  add(source.format);
  for (const CachedFile& file : files) add(file.path);
  for (const auto& pairs : {source.names.renames, source.names.placements}) {
    add(std::to_string(pairs.size()));
    for (const auto& [from, to] : pairs) {
      add(from);
      add(to);
    }
  }
  add(source.index_label);
  for (const IndexEntry& entry : source.index) {
    add(entry.name);
    add(std::to_string(entry.file));
  }
  return join_path(cache_dir, "unshard-" + hexadecimal(sha.digest()).substr(0, 32) + ".h5");
}

struct UserBlock {
  std::uint64_t file_bytes = 0;
  std::uint32_t crc32c = 0;
};

std::array<std::byte, 24> user_block_of(const UserBlock& block) {
  std::array<std::byte, 24> bytes{};
  std::memcpy(bytes.data(), magic.data(), magic.size());
  for (std::size_t i = 0; i < 8; ++i) bytes[8 + i] = static_cast<std::byte>(block.file_bytes >> (8 * i) & 0xff);
  for (std::size_t i = 0; i < 4; ++i) bytes[16 + i] = static_cast<std::byte>(block.crc32c >> (8 * i) & 0xff);
  return bytes;
}

/// The tables of the file `path`, compared with its checksum. Throws Error(bad_input).
CatalogContent read_file(FileSystem& system, const std::string& path) {
  const auto file = system.open_for_reading(path);
  const auto refuse = [](const char* what) { throw Error(ErrorCode::bad_input, what); };
  if (file->size() < hdf5_userblock_bytes || file->size() > most_cache_bytes) refuse("has no length that such a file can have");
  std::vector<std::byte> bytes(static_cast<std::size_t>(file->size()));
  file->read_at(0, bytes);
  if (std::memcmp(bytes.data(), magic.data(), magic.size()) != 0) refuse("is of another version, or no such file");
  const auto rest = std::span<const std::byte>(bytes).subspan(hdf5_userblock_bytes);
  if (load_u64(bytes.data() + 8) != bytes.size() || load_u32(bytes.data() + 16) != crc32c(rest)) refuse("is damaged: its checksum differs");
  return content_of(hdf5().read_tables(bytes));
}

/// What the cache has; `note` says why it has nothing that is of use, "" when there is no file.
std::optional<CatalogContent> find(FileSystem& system, const std::string& path, const Source& source, const std::vector<CachedFile>& files,
                                   std::string& note) {
  if (!system.status(path)) return std::nullopt;
  try {
    CatalogContent content = read_file(system, path);
    if (content.format == source.format && content.files == files) return content;
    note = "is out of date";
  } catch (const Error& error) {
    note = error.what();
  }
  return std::nullopt;
}

/// The catalog's table, objects and notes as they travel from the rank that read the cache.
Bytes packed(const CatalogContent& content) {
  WireWriter out;
  out.number(content.tensors.size());
  for (const TensorRow& row : content.tensors) {
    out.text(row.name);
    out.number(static_cast<std::uint64_t>(row.dtype));
    out.shape(row.shape);
  }
  out.number(content.objects.size());
  for (const ObjectNote& object : content.objects) {
    out.number(object.file);
    out.text(object.key);
    out.text(object.what);
  }
  out.number(content.facts.size());
  for (const auto& [name, value] : content.facts) {
    out.text(name);
    out.number(value);
  }
  for (const Finding& note : content.notes) write_finding(out, note);
  return out.take();
}

Catalog unpacked(const Bytes& bytes) {
  Catalog catalog;
  WireReader in(bytes);
  for (std::size_t count = in.count(); count > 0; --count) {
    TensorRow row;
    row.name = in.text();
    row.dtype = static_cast<DType>(in.number_up_to(static_cast<std::uint64_t>(DType::c128)));
    row.shape = in.shape();
    catalog.tensors.push_back(std::move(row));
  }
  for (std::size_t count = in.count(); count > 0; --count) {
    ObjectNote object;
    object.file = static_cast<FileId>(in.number_up_to(UINT32_MAX));
    object.key = in.text();
    object.what = in.text();
    catalog.objects.push_back(std::move(object));
  }
  for (std::size_t count = in.count(); count > 0; --count) {
    const std::string name = in.text();
    catalog.facts[name] = in.number();
  }
  while (!in.at_end()) catalog.findings.push_back(read_finding(in));
  return catalog;
}

/// Collective. From the rank that has it to the homes of its tensors.
Catalog share(Comm& comm, std::optional<CatalogContent> content) {
  Bytes bytes = collectively(comm, "cache", [&] { return content ? packed(*content) : Bytes{}; });
  comm.broadcast(bytes, 0);
  Catalog catalog = collectively(comm, "cache", [&] { return unpacked(bytes); });
  std::vector<PackedRecords> records;
  std::vector<TensorId> ids;
  if (content) {
    records = std::move(content->records);
    for (TensorId id = 0; id < records.size(); ++id) ids.push_back(id);
  }
  catalog.chunks = send_home(comm, catalog.tensors, records, ids, std::vector<bool>(catalog.tensors.size(), false));
  return catalog;
}

/// Replaces the file in one step, whoever else does the same.
void write_file(FileSystem& system, const std::string& path, const CatalogContent& content, std::span<const Chunk> chunks) {
  system.make_folder(parent_path(path));
  std::random_device random;
  const std::string growing = path + "." + std::to_string(::getpid()) + "-" + std::to_string(random()) + ".part";
  try {
    hdf5().write_tables(growing, tables_of(content, chunks));
    const auto file = system.open_for_writing(growing, false);
    std::vector<std::byte> bytes(static_cast<std::size_t>(file->size()));
    file->read_at(0, bytes);
    const auto rest = std::span<const std::byte>(bytes).subspan(hdf5_userblock_bytes);
    file->write_at(0, user_block_of({bytes.size(), crc32c(rest)}));
    file->sync();
    system.rename(growing, path);
  } catch (...) {
    (void)attempt([&] { system.remove_file(growing); });
    throw;
  }
}

/// Collective. Keeps the catalog; what goes wrong is a line.
void keep(const Session& session, const Source& source, const std::vector<CachedFile>& files, const Catalog& catalog,
          const std::string& path) {
  WireWriter mine;
  for (const Chunk& chunk : catalog.chunks) {
    mine.number(chunk.tensor);
    write_chunk(mine, chunk);
  }
  const std::vector<Bytes> all = session.comm.gather(mine.take(), 0);
  std::string note;
  if (session.comm.rank() == 0) {
    const auto failure = attempt([&] {
      std::vector<Chunk> chunks;
      for (const Bytes& bytes : all) {
        for (WireReader in(bytes); !in.at_end();) {
          const auto tensor = static_cast<TensorId>(in.number_up_to(catalog.tensors.size() - 1));
          chunks.push_back(read_chunk(in, tensor, catalog.tensors[tensor].shape.size()));
        }
      }
      write_file(session.files, path, {source.format, files, catalog.tensors, {}, catalog.objects, catalog.findings, catalog.facts},
                 chunks);
    });
    if (failure) session.log.warning("--cache-dir: " + std::string(failure->what()));
  }
}

}  // namespace

Catalog read_cached_catalog(const Session& session, FileCache& files, const Tree& tree, const Source& source,
                            const std::string& cache_dir) {
  if (cache_dir.empty()) return read_catalog(session.comm, files, source);
  std::optional<std::vector<CachedFile>> listed;
  std::optional<CatalogContent> found;
  std::string path;
  collectively(session.comm, "cache", [&] {
    if (session.comm.rank() != 0) return;
    listed = files_of(session.files, tree, source);
    if (!listed) return;
    path = path_of(cache_dir, source, *listed);
    std::string note;
    found = find(session.files, path, source, *listed, note);
    if (!note.empty()) session.log.line("--cache-dir: " + printable(path, 4096) + ": ignored: " + printable(note, 500));
  });
  enum Answer : std::uint64_t { not_listed, not_found, is_found };
  const std::uint64_t mine = session.comm.rank() != 0 ? not_listed : found ? is_found : listed ? not_found : not_listed;
  const std::uint64_t answer = session.comm.reduce_all(mine, Reduction::max);
  if (answer == is_found) {
    session.log.detail("--cache-dir: the headers come from " + printable(path, 4096));
    return share(session.comm, std::move(found));
  }
  Catalog catalog = read_catalog(session.comm, files, source);
  const bool is_sound = std::none_of(catalog.findings.begin(), catalog.findings.end(),
                                     [](const Finding& finding) { return finding.severity == Severity::error; });
  if (answer == not_found && is_sound && !catalog.tensors.empty())
    keep(session, source, listed.value_or(std::vector<CachedFile>{}), catalog, path);
  return catalog;
}

}  // namespace unshard
